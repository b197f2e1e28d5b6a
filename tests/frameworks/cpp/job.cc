// What each worker of a job of two does with byteps.hpp: spans, callbacks, futures, memory that requests own, groups,
// errors as values, two sessions. test_cpp_job.py builds and starts it; the exit status is 0 if everything was right.
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
  ~Watched() {
    if (freed == nullptr) return;
    std::fill(values.begin(), values.end(), -1.0F);  // what the library still uses must not change
    *freed = true;
  }
  float* data() { return values.data(); }
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
  session.Shutdown();
  std::printf("rank %d: everything was right\n", rank);
  return 0;
}
