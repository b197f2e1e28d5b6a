// The local stage of two workers over shared memory, in one process and one thread: one of them can be stopped between
// two blocks, for as long as time, which is ours, goes on.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "abi/transport.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "core/link/block_fold.h"
#include "core/plugin/plugin_host.h"
#include "core/plugin/scheduler.h"
#include "core/plugin/transport.h"
#include "core/worker/engine/engine.h"
#include "core/worker/memory/buffer.h"
#include "gtest/gtest.h"

extern "C" int32_t bps_transport_plugin_v1_shm(const bps_plugin_host* host, const bps_transport_plugin** plugin);
extern "C" int32_t bps_scheduler_plugin_v1_fifo(const bps_plugin_host* host, const bps_scheduler_plugin** plugin);

namespace byteps {
namespace {

constexpr size_t kElements = size_t{1} << 18;  // of float32: eight blocks
constexpr size_t kBytes = kElements * sizeof(float);

// Shared memory whose news of losses can be kept back: as if other events had filled what a poll takes at once. Counts
// the registrations of ordinary memory.
class SlowNews {
 public:
  static const bps_transport_plugin* Of(const bps_transport_plugin* plugin) {
    table_ = real_ = *plugin->table;
    table_.poll = Poll;
    table_.reg = [](bps_transport* transport, void* base, size_t size, bps_region** region, bps_failure* failure) {
      ++registrations;
      return real_.reg(transport, base, size, region, failure);
    };
    plugin_ = *plugin;
    plugin_.table = &table_;
    return &plugin_;
  }

  static inline bool kept_back = false;
  static inline std::vector<bps_event> losses;
  static inline int registrations = 0;

 private:
  static size_t Poll(bps_transport* transport, bps_event* events, size_t capacity) {
    size_t count = real_.poll(transport, events, capacity);
    if (kept_back) {
      bps_event* const end = std::stable_partition(
          events, events + count, [](const bps_event& event) { return event.type != BPS_EVENT_PEER_DOWN; });
      // What they say is valid until the next poll.
      std::for_each(end, events + count, [](bps_event& event) { event.size = 0; });
      losses.insert(losses.end(), end, events + count);
      return static_cast<size_t>(end - events);
    }
    while (!losses.empty() && count < capacity) {
      events[count++] = losses.back();
      losses.pop_back();
    }
    return count;
  }

  static inline bps_transport_table real_{}, table_{};
  static inline bps_transport_plugin plugin_{};
};

// A transport's configuration: nothing is set, or that processes do not copy from each other's memory.
class Configuration : public PluginConfig {
 public:
  explicit Configuration(bool staged) : staged_(staged) {}
  const char* PluginValue(std::string_view name) const override {
    return staged_ && name == "BYTEPS_SHM_PROCESS_VM" ? "0" : nullptr;
  }

 private:
  const bool staged_;
};

class Worker : public EngineHandler {
 public:
  explicit Worker(Logger* log, bool staged = false) : config(staged) {
    const bps_transport_plugin* shm = nullptr;
    const bps_scheduler_plugin* fifo = nullptr;
    EXPECT_EQ(bps_transport_plugin_v1_shm(PluginHost(), &shm), BPS_OK);
    EXPECT_EQ(bps_scheduler_plugin_v1_fifo(PluginHost(), &fifo), BPS_OK);
    bps_transport_open_args args{};
    args.struct_size = sizeof args;
    args.config = static_cast<const PluginConfig*>(&config);
    absl::StatusOr<Transport> transport = Transport::Open(*SlowNews::Of(shm), args);
    EXPECT_TRUE(transport.ok()) << transport.status();
    provider = transport->provider();
    address = *transport->Address();
    EngineOptions options;
    options.local.release_grace = options.fatal_grace = 2 * kSecond;
    EngineHandler* handler = this;
    engine = std::make_unique<Engine>(options, handler, log);
    EndpointOptions endpoint;
    endpoint.hello_interval = kMillisecond;
    endpoint.hello_timeout = endpoint.ping_interval = endpoint.peer_timeout = kNever / 2;
    engine->UseLocal(*Scheduler::Create(*fifo, BPS_DIRECTION_PUSH, nullptr, log), *std::move(transport), endpoint);
    buffers.Share([] {});
    buffer = *buffers.Allocate(kBytes);
  }

  void OnDeclare(const std::vector<control::TensorSpec>& tensors) override {
    for (const control::TensorSpec& spec : tensors) {
      control::Assignment assignment;
      *assignment.mutable_tensor() = spec;
      assignment.set_key(uint64_t{1} << 16);
      assignment.set_part_elements(kElements);
      assignment.add_runs()->set_parts(1);
      engine->OnAssignment(now, assignment);
    }
  }
  void OnFailed(const absl::Status& why) override {
    failure = why;
    if (!may_fail) ADD_FAILURE() << why;
  }

  void Step(Time at) {
    now = at;
    engine->Poll(at);
    for (Completion& completion : engine->TakeCompletions()) completion.Run();
  }

  float* data() const { return reinterpret_cast<float*>(buffer->data()); }
  void Fill(float value) { std::fill_n(data(), kElements, value); }

  // In place, in the buffer, or in memory that is not the library's.
  void Submit(wire::Operation kind, Time timeout, std::vector<float>* ordinary = nullptr) {
    std::byte* const memory = ordinary != nullptr ? reinterpret_cast<std::byte*>(ordinary->data()) : buffer->data();
    const int64_t shape[] = {kElements};
    Submission asked;
    asked.tensor = *engine->tensors().Declare("t", BPS_FLOAT32, shape);
    asked.kind = kind;
    asked.reduction = BPS_SUM;
    asked.input = asked.output = memory;
    asked.timeout = timeout;
    asked.request = request = std::make_shared<Request>(nullptr, nullptr);
    request->Hold(buffers.Use(memory, kBytes), buffers.Use(memory, kBytes));
    const absl::Status admitted = engine->Admit(asked);
    ASSERT_TRUE(admitted.ok()) << admitted;
    engine->Submit(now, asked);
  }

  const Configuration config;
  std::string provider, address;
  BufferTable buffers;
  std::shared_ptr<Buffer> buffer;
  std::unique_ptr<Engine> engine;
  std::shared_ptr<Request> request;
  bool may_fail = false;
  absl::Status failure;
  Time now = 0;
};

class LocalStageTest : public testing::TestWithParam<wire::Operation> {
 protected:
  explicit LocalStageTest(bool staged = false) : workers_{Worker(&log_, staged), Worker(&log_, staged)} {}

  void SetUp() override {
    control::Epoch epoch;
    epoch.set_session_id(42);
    epoch.set_epoch(1);
    epoch.set_nonce("nonce");
    epoch.set_inline_bytes(1024);
    epoch.add_group_sizes(2);
    epoch.add_local_sizes(2);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      control::Member* member = epoch.add_workers();
      member->set_member(100 + rank);
      member->set_rank(static_cast<int32_t>(rank));
      member->mutable_local()->set_transport("shm");
      member->mutable_local()->set_provider(workers_[rank].provider);
      member->mutable_local()->set_address(workers_[rank].address);
    }
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const absl::Status joined = workers_[rank].engine->Join(now_, epoch, 100 + rank);
      ASSERT_TRUE(joined.ok()) << joined;
    }
    ASSERT_TRUE(Until([&] { return workers_[0].engine->ready() && workers_[1].engine->ready(); }));
  }

  void TearDown() override {
    SlowNews::kept_back = false;
    SlowNews::losses.clear();
  }

  // Steps these until `done`; a minute of real time at most.
  bool Until(const std::function<bool()>& done, bool first = true, bool second = true) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    // Nothing here has a thread of its own, so no step waits for another; a sched_yield would cost each of them some
    // milliseconds on a busy machine.
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      now_ += 1000;
      if (first) workers_[0].Step(now_);
      if (done()) return true;
      if (second) workers_[1].Step(now_);
    }
    return true;
  }

  Logger log_{LogOptions{}};
  std::array<Worker, 2> workers_;
  Time now_ = kSecond;
};

// It wakes up when the other has given up long ago, taken its memory back, and filled it with something else. What it
// read there is not what was meant.
TEST_P(LocalStageTest, OneThatWasStoppedInTheMiddleDoesNotTakeForAResultWhatItFindsLater) {
  Worker &root = workers_[0], &stopped = workers_[1];
  root.Fill(3);
  stopped.Fill(0.5);
  root.Submit(GetParam(), kSecond);
  stopped.Submit(GetParam(), 600 * kSecond);
  // The second has its first block, and no more. In a sum it has the second half of the tensor.
  const size_t first = GetParam() == wire::Operation::kBroadcast ? 0 : kElements / 2;
  ASSERT_TRUE(Until([&] { return stopped.data()[first] != 0.5f; }));
  ASSERT_EQ(stopped.data()[kElements - 1], 0.5f);
  ASSERT_FALSE(stopped.request->ended());
  ASSERT_TRUE(Until(
      [&] {
        now_ += 10 * kMillisecond;
        return root.request->ended();
      },
      true, false));
  EXPECT_FALSE(root.request->outcome().ok());
  root.Fill(-1e30f);
  ASSERT_TRUE(Until([&] { return stopped.request->ended(); }));
  EXPECT_FALSE(stopped.request->outcome().ok());
  for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(root.data()[i], -1e30f) << "touched after the end, element " << i;

  // The next round is as if nothing had been.
  root.Fill(4);
  stopped.Fill(0.5);
  for (Worker& worker : workers_) worker.Submit(GetParam(), 600 * kSecond);
  ASSERT_TRUE(Until([&] { return root.request->ended() && stopped.request->ended(); }));
  const float expected = GetParam() == wire::Operation::kBroadcast ? 4.0f : 4.5f;
  for (const Worker& worker : workers_) {
    EXPECT_TRUE(worker.request->outcome().ok()) << worker.request->outcome();
    EXPECT_EQ(std::count(worker.data(), worker.data() + kElements, expected), static_cast<ptrdiff_t>(kElements));
  }
}

TEST_P(LocalStageTest, RegistrationsOutliveRoundsThatEndWell) {
  std::array<std::vector<float>, 2> memory, other;
  const auto registered = [&](std::array<std::vector<float>, 2>* in) {
    const int before = SlowNews::registrations;
    for (size_t rank = 0; rank < 2; ++rank) {
      (*in)[rank].assign(kElements, static_cast<float>(rank + 2));
      workers_[rank].Submit(GetParam(), 600 * kSecond, &(*in)[rank]);
    }
    EXPECT_TRUE(Until([&] { return workers_[0].request->ended() && workers_[1].request->ended(); }));
    const float expected = GetParam() == wire::Operation::kBroadcast ? 2.0f : 5.0f;
    for (const std::vector<float>& each : *in) {
      EXPECT_EQ(std::count(each.begin(), each.end(), expected), static_cast<ptrdiff_t>(kElements));
    }
    return SlowNews::registrations - before;
  };
  // What is broadcast is fetched from its root.
  const int each = GetParam() == wire::Operation::kBroadcast ? 1 : 2;
  EXPECT_EQ(registered(&memory), each);
  EXPECT_EQ(registered(&memory), 0);
  EXPECT_EQ(registered(&other), each);
  for (int round = 0; round < 3; ++round) EXPECT_EQ(registered(round % 2 == 0 ? &memory : &other), 0);

  // One that fails does not leave its memory open. (The second is refused before it has shown any.)
  workers_[0].Submit(GetParam(), kSecond, &memory[0]);
  const auto ended = [&] {
    now_ += 10 * kMillisecond;
    return workers_[0].request->ended();
  };
  ASSERT_TRUE(Until(ended));
  EXPECT_FALSE(workers_[0].request->outcome().ok());
  workers_[1].Submit(GetParam(), kSecond, &memory[1]);
  ASSERT_TRUE(Until([&] { return workers_[1].request->ended(); }));
  EXPECT_FALSE(workers_[1].request->outcome().ok());
  EXPECT_EQ(registered(&memory), 1);
}

// One that fails takes its memory away, and closes. A worker in the middle of a block then finds the memory gone before
// it hears of that: the loss is what everything ends with, and not the one operation alone.
TEST_P(LocalStageTest, OneWhoseMemoryIsGoneBeforeTheNewsIsLost) {
  Worker &root = workers_[0], &stopped = workers_[1];
  root.Submit(GetParam(), 600 * kSecond);
  root.Fill(3);
  stopped.Fill(0.5);
  stopped.Submit(GetParam(), 600 * kSecond);
  const size_t first = GetParam() == wire::Operation::kBroadcast ? 0 : kElements / 2;
  ASSERT_TRUE(Until([&] { return stopped.data()[first] != 0.5f; }));
  stopped.may_fail = true;
  SlowNews::kept_back = true;
  root.engine.reset();
  ASSERT_TRUE(Until([&] { return !SlowNews::losses.empty(); }, false, true));
  EXPECT_FALSE(stopped.request->ended()) << stopped.request->outcome();
  SlowNews::kept_back = false;
  const auto ended = [&] {
    now_ += 10 * kMillisecond;
    return stopped.request->ended();
  };
  ASSERT_TRUE(Until(ended, false, true));
  const std::string why(stopped.request->outcome().message());
  EXPECT_EQ(stopped.request->outcome(), stopped.failure) << why;
  EXPECT_NE(why.find("rank 0 (worker, "), std::string::npos) << why;
  EXPECT_EQ(why.find("could not be read"), std::string::npos) << why;
}

// The transport knows that the other is gone, and refuses to show memory to it, before it has said so.
TEST_P(LocalStageTest, OneThatIsLostWhileATensorIsHandedToItIsNamedWithTheCause) {
  Worker &survivor = workers_[0], &lost = workers_[1];
  for (Worker& worker : workers_) worker.Submit(GetParam(), 600 * kSecond);
  ASSERT_TRUE(Until([&] { return survivor.request->ended() && lost.request->ended(); }));
  survivor.may_fail = true;
  lost.engine.reset();
  SlowNews::kept_back = true;
  ASSERT_TRUE(Until([&] { return !SlowNews::losses.empty(); }, true, false));
  survivor.Submit(GetParam(), 600 * kSecond);
  survivor.Step(now_);
  SlowNews::kept_back = false;
  // The coordinator, which may know better, says nothing.
  const auto ended = [&] {
    now_ += 10 * kMillisecond;
    return survivor.request->ended();
  };
  ASSERT_TRUE(Until(ended, true, false));
  const std::string why(survivor.request->outcome().message());
  EXPECT_EQ(survivor.request->outcome(), survivor.failure);
  EXPECT_NE(why.find("rank 1 (worker, "), std::string::npos) << why;
  EXPECT_EQ(why.find("cannot be shown"), std::string::npos) << why;
}

// Where no member may read the memory of others, a copy is shown.
class StagedTest : public LocalStageTest {
 protected:
  StagedTest() : LocalStageTest(true) {}
};

// The thread that copies also says that this worker is alive: it copies a block in each step, and no more.
TEST_P(StagedTest, CopiesInAndOutAreMadeInSteps) {
  constexpr size_t kBlock = BlockFold::kBlockBytes / sizeof(float);
  std::array<std::vector<float>, 2> memory;
  for (size_t rank = 0; rank < 2; ++rank) {
    memory[rank].assign(kElements, static_cast<float>(rank + 2));
    workers_[rank].Submit(GetParam(), 600 * kSecond, &memory[rank]);
  }
  // The declaration, then the first block: the last element has not been copied yet, so what it is now counts.
  for (int step = 0; step < 2; ++step) {
    now_ += 1000;
    for (Worker& worker : workers_) worker.Step(now_);
  }
  memory[0].back() = 40;
  const bool broadcast = GetParam() == wire::Operation::kBroadcast;
  const float expected = broadcast ? 2.0f : 5.0f, last = broadcast ? 40.0f : 43.0f;
  std::vector<float>& taker = memory[1];
  size_t home = 0, most = 0;
  ASSERT_TRUE(Until([&] {
    const auto now_home = static_cast<size_t>(std::count(taker.begin(), taker.end() - 1, expected));
    most = std::max(most, now_home - home);
    home = now_home;
    return workers_[0].request->ended() && workers_[1].request->ended();
  }));
  EXPECT_GT(most, 0U);
  EXPECT_LE(most, kBlock);
  EXPECT_EQ(home, kElements - 1);
  for (const Worker& worker : workers_) EXPECT_TRUE(worker.request->outcome().ok()) << worker.request->outcome();
  EXPECT_EQ(taker.back(), last);
  EXPECT_EQ(memory[0].back(), broadcast ? 40.0f : 43.0f);
}

// Only a sum has a result to copy out: what is broadcast is fetched into the output itself.
class StagedSumTest : public StagedTest {};

// An operation that is given up while its result is copied out touches the output no more.
TEST_P(StagedSumTest, OneThatIsGivenUpBetweenTwoStepsLeavesTheRestAlone) {
  std::array<std::vector<float>, 2> memory;
  for (size_t rank = 0; rank < 2; ++rank) {
    memory[rank].assign(kElements, static_cast<float>(rank + 2));
    workers_[rank].Submit(GetParam(), (rank == 1 ? 5 : 600) * kSecond, &memory[rank]);
  }
  const float expected = 5;
  std::vector<float>& taker = memory[1];
  ASSERT_TRUE(Until([&] { return taker[0] == expected; }));
  ASSERT_FALSE(workers_[1].request->ended());
  now_ += 10 * kSecond;
  ASSERT_TRUE(Until([&] { return workers_[0].request->ended() && workers_[1].request->ended(); }));
  EXPECT_TRUE(workers_[0].request->outcome().ok()) << workers_[0].request->outcome();
  EXPECT_FALSE(workers_[1].request->outcome().ok());
  EXPECT_EQ(taker.back(), 3);
  // The next one is as if nothing had been.
  for (size_t rank = 0; rank < 2; ++rank) {
    memory[rank].assign(kElements, static_cast<float>(rank + 2));
    workers_[rank].Submit(GetParam(), 600 * kSecond, &memory[rank]);
  }
  ASSERT_TRUE(Until([&] { return workers_[0].request->ended() && workers_[1].request->ended(); }));
  EXPECT_EQ(std::count(taker.begin(), taker.end(), expected), static_cast<ptrdiff_t>(kElements));
}

std::string NameOf(const testing::TestParamInfo<wire::Operation>& kind) {
  return kind.param == wire::Operation::kBroadcast ? "Broadcast" : "PushPull";
}
INSTANTIATE_TEST_SUITE_P(Kinds, LocalStageTest,
                         testing::Values(wire::Operation::kBroadcast, wire::Operation::kPushPull), NameOf);
INSTANTIATE_TEST_SUITE_P(Kinds, StagedSumTest, testing::Values(wire::Operation::kPushPull), NameOf);
INSTANTIATE_TEST_SUITE_P(Kinds, StagedTest, testing::Values(wire::Operation::kBroadcast, wire::Operation::kPushPull),
                         NameOf);

}  // namespace
}  // namespace byteps
