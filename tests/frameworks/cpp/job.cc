// What each worker of a job of two does with byteps.hpp: spans, callbacks, futures, memory that requests own, groups,
// errors as values, two sessions, rounds that are given up, numbers that must agree. test_cpp_job.py builds and starts
// it; the exit status is 0 if everything was right.
#include <atomic>
#include <chrono>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "frameworks/cpp/byteps.hpp"

namespace {

using byteps::Collective;
using byteps::Op;
using Vector = std::vector<float>;

constexpr size_t kLarge = 100'000;  // travels in several parts: of a small tensor the inputs may be everywhere at once

#define EXPECT(condition)                                                          \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (false)

byteps::TensorOf<float> Declare(byteps::Session& session, const std::string& name, size_t size) {
  return session.Declare<float>(name, {static_cast<int64_t>(size)});
}

// A container that says when it is freed.
struct Watched {
  explicit Watched(size_t size, std::shared_ptr<std::atomic<bool>> flag) : values(size, 1), freed(std::move(flag)) {}
  Watched(Watched&& other) noexcept = default;
  auto begin() const { return values.begin(); }
  auto end() const { return values.end(); }
  ~Watched() {
    if (freed == nullptr) return;
    std::fill(values.begin(), values.end(), -1.0F);  // what the library still uses must not change
    *freed = true;
  }
  float* data() { return values.data(); }
  const float* data() const { return values.data(); }
  size_t size() const { return values.size(); }

  Vector values;
  std::shared_ptr<std::atomic<bool>> freed;
};

void Spans(byteps::Session& session, int rank) {
  const auto tensor = Declare(session, "spans", 3);
  const Vector input = {1.0F + static_cast<float>(rank), -2, 4};
  Vector output(3);
  session.PushPull(tensor, input, output, Op::kAverage).Wait();
  EXPECT((output == Vector{1.5F, -2, 4}));
  session.PushPull(tensor, output, Op::kSum, {.priority = 7, .timeout = std::chrono::seconds(60)}).Wait();
  EXPECT((output == Vector{3, -4, 8}));
  Vector values(3, static_cast<float>(rank));
  session.Broadcast(tensor, values, /*root=*/1).Wait();
  EXPECT((values == Vector(3, 1)));

  auto buffer = session.NewBuffer<std::complex<double>>(1000);
  for (auto& value : buffer) value = {1, static_cast<double>(rank)};
  session.PushPull(session.Declare<std::complex<double>>("complex", {10, 100}), buffer.span(), Op::kSum).Wait();
  EXPECT((buffer[999] == std::complex<double>{2, 1}));

  bool flags[2] = {rank == 0, rank == 1};
  session.PushPull(session.Declare<bool>("flags", {2}), flags, Op::kBitOr).Wait();
  EXPECT(flags[0] && flags[1]);
}

void Callbacks(byteps::Session& session) {
  Vector values(100, 1);
  std::promise<byteps::Status> ended;
  auto request = session.PushPull(Declare(session, "callback", 100), values, Op::kSum,
                                  {.done = [&](byteps::Status status) { ended.set_value(std::move(status)); }});
  EXPECT(ended.get_future().get().ok());
  request.Wait();
  EXPECT(values[99] == 2);
  std::vector<std::future<void>> futures;
  std::vector<Vector> all(20, values);
  for (size_t i = 0; i < all.size(); ++i) {
    futures.push_back(session.PushPullFuture(Declare(session, "future" + std::to_string(i), 100), all[i], Op::kSum));
  }
  for (auto& future : futures) future.get();
  for (const Vector& one : all) EXPECT((one == Vector(100, 4)));
  session.BroadcastFuture(Declare(session, "b", 100), values, 0).get();
}

void OwnedMemory(byteps::Session& session, int rank) {
  EXPECT((session.PushPullOwned(Declare(session, "owned", 5), Vector(5, 1), Op::kSum).Wait() == Vector(5, 2)));
  const auto tensor = Declare(session, "dropped", kLarge);
  if (rank == 0) {
    auto freed = std::make_shared<std::atomic<bool>>(false);
    { auto dropped = session.PushPullOwned(tensor, Watched(kLarge, freed), Op::kSum); }
    EXPECT(!*freed);  // The other rank has not begun: the library still reads it.
    session.Barrier();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!*freed && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT(*freed);
  } else {
    session.Barrier();
    EXPECT((session.PushPullOwned(tensor, Vector(kLarge, 2), Op::kSum).Wait() == Vector(kLarge, 3)));
  }
}

void Groups(byteps::Session& session, int rank) {
  std::vector<Vector> all;
  for (size_t i = 0; i < 20; ++i) all.emplace_back(1000 * i + 1, 1);
  byteps::Group group;
  for (size_t i = 0; i < all.size(); ++i) {
    group.Add(session.PushPull(Declare(session, "group" + std::to_string(i), all[i].size()), all[i], Op::kSum));
  }
  group.Wait();
  for (const Vector& one : all) EXPECT((one == Vector(one.size(), 2)));

  const auto tensor = Declare(session, "left", kLarge);
  if (rank == 0) {
    try {
      Vector values(kLarge, 1);  // goes before the exception is caught, and after the group
      byteps::Group left;
      left.Add(session.PushPull(tensor, values, Op::kSum));
      throw std::runtime_error("on purpose");
    } catch (const std::runtime_error&) {
    }
    session.Barrier();
  } else {
    session.Barrier();
    Vector values(kLarge, 1);
    EXPECT(session.PushPull(tensor, values, Op::kSum).TryWait().code() == BPS_ABORTED);
  }
}

void Errors(byteps::Session& session, int rank) {
  Vector values(10 + static_cast<size_t>(rank), 1);
  const byteps::Status status = session.PushPull(Declare(session, "shape", values.size()), values, Op::kSum).TryWait();
  EXPECT(status.code() == BPS_FAILED_PRECONDITION && status.message().find("\"shape\"") != std::string::npos);
  auto future = session.PushPullFuture(Declare(session, "shape2", values.size()), values, Op::kSum);
  try {
    future.get();
    EXPECT(false);
  } catch (const byteps::Error& error) {
    EXPECT(error.code() == BPS_FAILED_PRECONDITION);
  }
  auto [memory, owned] = session.PushPullOwned(Declare(session, "shape3", values.size()), values, Op::kSum).TryWait();
  EXPECT(owned.code() == BPS_FAILED_PRECONDITION && memory.size() == values.size());
  const auto wrong = session.TryPushPull(Declare(session, "t", 3), values, values, Op::kSum);
  EXPECT(!wrong.ok() && wrong.status().code() == BPS_INVALID_ARGUMENT);
}

void TwoSessions(byteps::Session& session) {
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  args.name = "second";
  byteps::Session second = byteps::Session::TryOpen(args).value();
  Vector one(10, 1);
  Vector ten(10, 10);
  auto first_request = session.PushPull(Declare(session, "same name", 10), one, Op::kSum);
  second.PushPull(Declare(second, "same name", 10), ten, Op::kSum).Wait();
  first_request.Wait();
  EXPECT((one == Vector(10, 2)) && (ten == Vector(10, 20)));
  second.Shutdown();
}

void Collectives(byteps::Session& session, int rank) {
  const auto own = static_cast<float>(rank);
  // Rows differ between ranks.
  auto gathered = session.Start(Collective::AllGather("gather", Vector(2 * (own + 1), own), {rank + 1, 2}));
  gathered.Wait();
  const byteps::Output<float> rows = gathered.Output<float>();
  EXPECT((Vector(rows.data.begin(), rows.data.end()) == Vector{0, 0, 1, 1, 1, 1}));
  EXPECT((rows.shape == byteps::Shape{3, 2}) && (rows.splits == std::vector<int64_t>{1, 2}));
  EXPECT(gathered.TryOutput<double>().status().code() == BPS_INVALID_ARGUMENT);

  const Vector three = {1, 2, 3};
  Vector output(3);
  session.Start(Collective::AllReduce("max", three, {3}, Op::kMax).Into(std::span(output))).Wait();
  EXPECT(output == three);
  const auto set = session.NewProcessSet({rank});
  const byteps::CollectiveOptions alone = {.set = set, .factors = byteps::Factors{2, 0.25}};
  auto scaled = session.Start(Collective::AllReduce("max", three, {3}, Op::kSum, alone));
  scaled.Wait();
  EXPECT(scaled.Output<float>().data[2] == 1.5F);
  auto adasum = session.Start(Collective::AllReduce("adasum", three, {3}, Op::kAdasum));
  adasum.Wait();
  EXPECT(adasum.Output<float>().data[0] == 1);  // equal vectors: their mean

  auto scattered = session.Start(Collective::ReduceScatter("rs", three, {3}, Op::kSum, {.splits = {1, 2}}));
  scattered.Wait();
  EXPECT(scattered.Output<float>().data.back() == (rank == 0 ? 2.0F : 6.0F));
  auto exchanged = session.Start(Collective::AllToAll("a2a", std::vector<int32_t>{10 * rank, 10 * rank + 1}, {2}));
  exchanged.Wait();
  EXPECT(exchanged.Output<int32_t>().data[0] == rank && exchanged.Output<int32_t>().data[1] == 10 + rank);

  auto reduced = session.Start(Collective::Reduce("reduce", three, {3}, Op::kProduct, 1));
  reduced.Wait();
  EXPECT(rank == 0 ? reduced.Output<float>().data.empty() : reduced.Output<float>().data[2] == 9);
  auto to_root = session.Start(Collective::Gather("to root", three, {3}, 0));
  to_root.Wait();
  EXPECT(to_root.Output<float>().data.size() == (rank == 0 ? 6U : 0U));
  const std::vector<int64_t> none;
  auto from_root = rank == 0 ? session.Start(Collective::Scatter("s", std::vector<int64_t>{5, 6, 7}, {3}, 0))
                             : session.Start(Collective::Scatter("s", none, {0}, 0));
  from_root.Wait();
  EXPECT(from_root.Output<int64_t>().data[0] == (rank == 0 ? 5 : 7));
  auto copied = session.Start(Collective::Broadcast("b", std::vector<double>(rank == 1 ? 2 : 0, 4), {2}, 1));
  copied.Wait();
  EXPECT(copied.Output<double>().data[1] == 4);

  // Each to the other, in the order of submission.
  auto first = session.Start(Collective::Send(1 - rank, 3, Vector{own}, {1}));
  auto second = session.Start(Collective::Receive<float>(1 - rank, 3, {0}));
  second.Wait();
  first.Wait();
  EXPECT(second.Output<float>().data[0] == 1 - own);

  auto together =
      session.StartGroup({Collective::AllReduce("one", Vector(kLarge, 1), {kLarge}, Op::kSum),
                          Collective::AllGather("two", std::vector<int16_t>(1, 7), {1}), Collective::Barrier("three")});
  together.Wait();
  EXPECT(together.Output<float>(0).data[kLarge - 1] == 2 && together.Output<int16_t>(1).data[1] == 7);

  const int64_t numbers[] = {rank, 90};
  auto sparse = session.SparseAllReduce<float>("sparse", numbers, Vector{1, 1, 2, 2}, {100, 2}, Op::kSum);
  sparse.Wait();
  EXPECT(sparse.Output<float>().data[5] == 4 && sparse.Output<int64_t>(1).data[2] == 90);

  // What a request owns lives until the end of the operation, also when no thread waits.
  if (rank == 0) {
    auto freed = std::make_shared<std::atomic<bool>>(false);
    session.Start(Collective::AllGather("dropped", Watched(kLarge, freed), {kLarge}));
    EXPECT(!*freed);
    session.Barrier();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!*freed && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT(*freed);
  } else {
    session.Barrier();
    auto all = session.Start(Collective::AllGather("dropped", Vector(kLarge, 2), {kLarge}));
    all.Wait();
    EXPECT(all.Output<float>().data[0] == 1 && all.Output<float>().data[kLarge] == 2);
  }

  const auto wrong = session.TryStart(Collective::AllGather("wrong", three, {2, 3}));
  EXPECT(wrong.status().code() == BPS_INVALID_ARGUMENT);
  auto apart = session.Start(Collective::AllGather("apart", three, {3 - 2 * rank, 1 + 2 * rank}));
  EXPECT(apart.TryWait().code() == BPS_FAILED_PRECONDITION);
  EXPECT(apart.TryOutput<float>().status().code() == BPS_FAILED_PRECONDITION);

  // Rank 1 has twice as many steps.
  const auto tensor = Declare(session, "steps", 3);
  for (int step = 0; step < (rank == 0 ? 2 : 4); ++step) {
    Vector values = three;
    session.PushPull(tensor, values, Op::kSum).Wait();
    EXPECT(values[0] == (step < 2 ? 2 : 1));
  }
  EXPECT(session.Join().Wait() == 1);
}

// Rank 0 does not come to a round; the next one is whole.
void GivenUpRounds(byteps::Session& session, int rank) {
  const auto tensor = Declare(session, "given up", 3);
  const Vector three = {1, 2, 3};
  const auto check = [rank](const byteps::Status& status) {
    EXPECT(status.code() == (rank == 0 ? BPS_CANCELLED : BPS_ABORTED));
    EXPECT(status.message().find("no memory") != std::string::npos);
    EXPECT(rank == 0 || status.message().find("rank 0") != std::string::npos);
  };
  Vector values = three;
  check(rank == 0 ? session.GiveUpPushPull(tensor, Op::kSum, "no memory").TryWait()
                  : session.PushPull(tensor, values, Op::kSum).TryWait());
  check(rank == 0 ? session.GiveUpBroadcast(tensor, 1, "no memory").TryWait()
                  : session.Broadcast(tensor, values, 1).TryWait());
  values = three;
  session.PushPull(tensor, values, Op::kSum).Wait();
  EXPECT((values == Vector{2, 4, 6}));

  const auto gather = [&] { return Collective::AllGather("given up", three, {3}, {.match = 5}); };
  check(rank == 0
            ? session.GiveUp(Collective::AllGather("given up", Vector(), {3}, {.match = 5}), "no memory").TryWait()
            : session.Start(gather()).TryWait());
  auto whole = session.Start(gather());
  whole.Wait();
  EXPECT(whole.Output<float>().data.size() == 6);

  const int64_t last = 8;
  const std::span<const int64_t> rows(&last, 1);
  const auto add = [&] { return session.SparseAllReduce<float>("given up rows", rows, three, {9, 3}, Op::kSum); };
  check(rank == 0 ? session.GiveUpSparseAllReduce<float>("given up rows", {9, 3}, Op::kSum, "no memory").TryWait()
                  : add().TryWait());
  auto sum = add();
  sum.Wait();
  EXPECT(sum.Output<float>().data.back() == 6);
}

void NumbersThatMustAgree(byteps::Session& session, int rank) {
  const auto tensor = Declare(session, "matched", 3);
  const auto number = static_cast<uint64_t>(rank) + 7;
  const auto check = [](const byteps::Status& status) { EXPECT(status.code() == BPS_FAILED_PRECONDITION); };
  Vector values(3, 1);
  check(session.PushPull(tensor, values, Op::kSum, {.match = number}).TryWait());
  check(session.Broadcast(tensor, values, 0, {.match = number}).TryWait());
  values = Vector(3, 1);
  session.PushPull(tensor, values, Op::kSum, {.match = 7}).Wait();
  EXPECT(values[2] == 2);

  const byteps::CollectiveOptions options = {.match = number};
  check(session.Start(Collective::AllReduce("matched", values, {3}, Op::kSum, options)).TryWait());
  const int64_t first = 0;
  const std::span<const int64_t> rows(&first, 1);
  check(session.SparseAllReduce<float>("matched rows", rows, values, {9, 3}, Op::kSum, options).TryWait());
  session.Start(Collective::Barrier("matched", {.match = 7})).Wait();
}

}  // namespace

int main() {
  byteps::Session session;
  const int rank = session.Info().rank;
  EXPECT(session.Info().size == 2);
  Spans(session, rank);
  Callbacks(session);
  OwnedMemory(session, rank);
  Groups(session, rank);
  Errors(session, rank);
  TwoSessions(session);
  GivenUpRounds(session, rank);
  NumbersThatMustAgree(session, rank);
  Collectives(session, rank);  // the last: it joins
  session.Shutdown();
  std::printf("rank %d: everything was right\n", rank);
  return 0;
}
