// Tensors in the memory of GPUs, in whole simulated jobs: random programs under each schedule of the fake GPU, beside
// workers without GPUs, and what becomes of failures.

#include "abi/device.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/plugin/plugin_host.h"
#include "core/worker/device/device_stage.h"
#include "device_plugins/fake/control.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/device_program.h"
#include "tests/sim/fake_gpus.h"
#include "tests/sim/simulated_job.h"

extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host* host, const bps_device_plugin** plugin);

namespace byteps {
namespace {

using testing::HasSubstr;

// The ways of a job: through servers, among the workers of one host, and both.
JobOptions Way(uint64_t seed, std::mt19937_64* random) {
  JobOptions options;
  options.seed = seed;
  options.workers = static_cast<uint32_t>(2 + (*random)() % 2);
  options.servers = static_cast<uint32_t>(1 + (*random)() % 2);
  const uint64_t way = (*random)() % 3;
  if (way != 0) options.local = true;
  if (way == 1) {
    options.workers_per_host = options.workers;
    options.servers = 0;
  } else if (way == 2) {
    options.hosts = {options.workers, 1};
    options.workers += 1;
  }
  return options;
}

struct Shape {
  std::string name;
  uint64_t elements;
  bool broadcast;
  bool apart;
};

TEST(DeviceTest, RandomProgramsComputeTheSameInEverySchedule) {
  ForEachSeed(1000, [](uint64_t seed) {
    std::mt19937_64 random(seed);
    const JobOptions options = Way(seed, &random);
    UseGpus(options.workers, seed);
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    // Some worker may have no GPU.
    const uint32_t without = static_cast<uint32_t>(random() % (options.workers + 2));
    std::vector<std::unique_ptr<DeviceProgram>> programs;
    for (uint32_t rank = 0; rank < job.workers(); ++rank) {
      programs.push_back(rank == without ? nullptr
                                         : std::make_unique<DeviceProgram>(&job.worker(rank), static_cast<int>(rank)));
    }
    std::vector<Shape> shapes;
    for (uint64_t i = 1 + random() % 3; i > 0; --i) {
      shapes.push_back({"t" + std::to_string(i), random() % 4 == 0 ? random() % 3 : random() % 5000, random() % 4 == 0,
                        random() % 3 == 0});
    }
    const uint64_t before = Counts().synchronisations;
    struct Expected {
      DeviceProgram* program;
      DeviceCall* call;
      std::vector<float> numbers;
    };
    std::vector<Expected> all;
    for (int round = 0; round < 3; ++round) {
      std::vector<DeviceCall*> device_calls;
      std::vector<Call*> host_calls;
      for (const Shape& shape : shapes) {
        const auto root = static_cast<int32_t>(random() % job.workers());
        std::vector<std::vector<float>> inputs;
        for (uint32_t rank = 0; rank < job.workers(); ++rank) inputs.push_back(job.Numbers(shape.elements));
        const std::vector<float> expected =
            shape.broadcast ? inputs[static_cast<size_t>(root)] : SimulatedJob::Sum(inputs);
        for (uint32_t rank = 0; rank < job.workers(); ++rank) {
          const bool reads = !shape.broadcast || static_cast<int32_t>(rank) == root;
          if (programs[rank] == nullptr) {
            Ask ask;
            ask.name = shape.name;
            ask.shape = {static_cast<int64_t>(shape.elements)};
            const auto* bytes = reinterpret_cast<const std::byte*>(inputs[rank].data());
            if (reads) ask.input.assign(bytes, bytes + shape.elements * sizeof(float));
            ask.kind = shape.broadcast ? wire::Operation::kBroadcast : wire::Operation::kPushPull;
            ask.root = root;
            host_calls.push_back(job.worker(rank).Submit(ask));
            ASSERT_NE(host_calls.back(), nullptr);
            continue;
          }
          DeviceAsk ask;
          ask.name = shape.name;
          ask.elements = shape.elements;
          if (reads) ask.input = inputs[rank];
          ask.kind = shape.broadcast ? wire::Operation::kBroadcast : wire::Operation::kPushPull;
          ask.root = root;
          ask.priority = static_cast<int64_t>(random() % 3);
          ask.apart = shape.apart;
          ask.in_place = random() % 2 == 0 && !shape.apart;  // its next input is written in the other stream
          ask.later = random() % 2 == 0;
          ask.pinned = random() % 5 == 0;
          absl::Status refused;
          DeviceCall* call = programs[rank]->Submit(ask, &refused);
          ASSERT_NE(call, nullptr) << refused;
          device_calls.push_back(call);
          all.push_back({programs[rank].get(), call, expected});
        }
      }
      ASSERT_TRUE(job.RunUntil([&] {
        for (const DeviceCall* call : device_calls) {
          if (!call->ended() && (call->pinned || !call->in_stream())) return false;
        }
        for (const Call* call : host_calls) {
          if (!call->ended()) return false;
        }
        return true;
      }));
      // In the trainer's stream, whether the copies have ended or not; the next round begins behind that.
      for (size_t i = all.size() - device_calls.size(); i < all.size(); ++i) all[i].program->Read(all[i].call);
      for (const Call* call : host_calls) EXPECT_TRUE(call->ok()) << call->outcome();
    }
    EXPECT_EQ(Counts().synchronisations, before) << "the library waited for a device";
    for (const auto& program : programs) {
      if (program != nullptr) program->Synchronize();
    }
    for (const Expected& expected : all) {
      EXPECT_EQ(expected.call->result(), expected.numbers);
      ASSERT_TRUE(job.RunUntil([&] { return expected.call->ended(); }));
      EXPECT_TRUE(expected.call->outcome().ok()) << expected.call->outcome();
    }
    ExpectNoRaces();
    job.Finish();
  });
}

TEST(DeviceTest, TheSteadyStateMakesNothing) {
  UseGpus(2, 3);
  SimulatedJob job({.seed = 5, .adverse = false});
  ASSERT_TRUE(job.Start());
  DeviceProgram a(&job.worker(0), 0), b(&job.worker(1), 1);
  const auto round = [&](const std::vector<float>& numbers) {
    DeviceCall* x = a.Submit({.name = "w", .elements = numbers.size(), .input = numbers, .in_place = true});
    DeviceCall* y = b.Submit({.name = "w", .elements = numbers.size(), .input = numbers, .in_place = true});
    ASSERT_TRUE(job.RunUntil([&] { return x->ended() && y->ended(); }));
    ASSERT_TRUE(x->outcome().ok() && y->outcome().ok());
    x->gpu = y->gpu = nullptr;
  };
  const std::vector<float> numbers = job.Numbers(20'000);
  round(numbers);
  round(numbers);
  const fake_gpu_counts before = Counts();
  for (int i = 0; i < 20; ++i) round(numbers);
  const fake_gpu_counts after = Counts();
  EXPECT_EQ(after.synchronisations, before.synchronisations);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.registrations, before.registrations);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  // Two pinned allocations are the trainers' own: input and result.
  EXPECT_EQ(after.host_allocations, before.host_allocations + 20 * 2 * 2);
  EXPECT_EQ(after.bytes_to_host - before.bytes_to_host, 20 * 2 * numbers.size() * sizeof(float));
  ExpectNoRaces();
}

// Names that are not used again do not pin more and more memory.
TEST(DeviceTest, TensorsThatAreNamedAnewShareMemory) {
  constexpr int kNames = 120;
  UseGpus(2, 3);
  SimulatedJob job({.seed = 5, .adverse = false});
  ASSERT_TRUE(job.Start());
  DeviceProgram a(&job.worker(0), 0), b(&job.worker(1), 1);
  const std::vector<float> numbers = job.Numbers(20'000);
  const auto round = [&](const std::string& name) {
    const DeviceAsk ask = {.name = name, .elements = numbers.size(), .input = numbers, .in_place = true};
    DeviceCall* x = a.Submit(ask);
    DeviceCall* y = b.Submit(ask);
    ASSERT_TRUE(job.RunUntil([&] { return x->ended() && y->ended(); }));
    ASSERT_TRUE(x->outcome().ok() && y->outcome().ok());
    a.Read(x);
    a.Synchronize();
    EXPECT_EQ(x->result(), SimulatedJob::Sum({numbers, numbers}));
  };
  // Two that are used again keep theirs.
  for (const char* name : {"first", "second", "first", "second"}) round(name);
  for (int i = 0; i < kNames; ++i) {
    round("noname." + std::to_string(i));
    job.RunFor(2 * kSecond);
  }
  const fake_gpu_counts before = Counts();
  EXPECT_LE(before.registrations, 2u * (2 + 12));
  for (const char* name : {"first", "second"}) round(name);
  EXPECT_EQ(Counts().registrations, before.registrations);
  ExpectNoRaces();
}

// No member's stream waits for a result before the tensor is submitted again: its copies out of the pinned area are
// still under way when the next input could be copied into it. Without `last` in DeviceStage::AreaReady these race, and
// this test alone says so: in the random programs above the trainer's stream orders the two.
TEST(DeviceTest, AResultThatWasNotWaitedForIsNotOverwritten) {
  ForEachSeed(20, [](uint64_t seed) {
    const std::string options = "devices=2,schedule=late,patience=40,seed=" + std::to_string(seed);
    ASSERT_EQ(FakeGpu().reset(options.c_str()), 1);
    SimulatedJob job({.seed = seed});
    ASSERT_TRUE(job.Start());
    DeviceProgram a(&job.worker(0), 0), b(&job.worker(1), 1);
    DeviceCall* x = nullptr;
    std::vector<std::vector<float>> inputs;
    for (int round = 0; round < 5; ++round) {
      inputs = {job.Numbers(5000), job.Numbers(5000)};
      x = a.Submit({.name = "w", .elements = 5000, .input = inputs[0], .later = true});
      DeviceCall* y = b.Submit({.name = "w", .elements = 5000, .input = inputs[1], .later = true});
      ASSERT_TRUE(x != nullptr && y != nullptr);
      ASSERT_TRUE(job.RunUntil([&] { return x->in_stream() && y->in_stream(); }));
    }
    a.Read(x);
    a.Synchronize();
    EXPECT_EQ(x->result(), SimulatedJob::Sum(inputs));
    ExpectNoRaces();
    job.Finish();
  });
}

// In the middle of a round: pinned memory, a copy, the context. Both ranks hear of it, and no member hangs.
TEST(DeviceTest, AFailureOfTheDeviceEndsTheOperationOnEveryRank) {
  for (const char* verb : {"register_host", "stream_create", "copy_to_host", "copy_to_device", "event_record", ""}) {
    SCOPED_TRACE(verb);
    UseGpus(2, 3);
    SimulatedJob job({.seed = 7});
    ASSERT_TRUE(job.Start());
    DeviceProgram a(&job.worker(0), 0), b(&job.worker(1), 1);
    const std::vector<float> numbers = job.Numbers(5000);
    // The trainers' own calls come first, and what is recorded when they submit.
    const uint64_t own = std::string(verb) == "copy_to_device" ? 2 : std::string(verb) == "event_record" ? 4 : 0;
    if (*verb != '\0') FakeGpu().fail(verb, own, BPS_RESOURCE_EXHAUSTED);
    const DeviceAsk ask = {.name = "w", .elements = numbers.size(), .input = numbers, .timeout = 20 * kSecond};
    DeviceCall* x = a.Submit(ask);
    DeviceCall* y = b.Submit(ask);
    ASSERT_NE(x, nullptr);
    ASSERT_NE(y, nullptr);
    if (*verb == '\0') FakeGpu().lose(0);
    ASSERT_TRUE(job.RunUntil([&] { return x->ended() && y->ended(); }));
    const bool both = !x->outcome().ok() && !y->outcome().ok();
    // A result that cannot be copied back is this rank's loss alone.
    EXPECT_TRUE(both || (std::string(verb) == "copy_to_device" && x->outcome().ok() != y->outcome().ok()))
        << x->outcome() << y->outcome();
    const absl::Status& why = x->outcome().code() == absl::StatusCode::kAborted ? y->outcome() : x->outcome();
    const std::string text(why.message());
    EXPECT_THAT(x->outcome().ok() ? std::string(y->outcome().message()) : text, HasSubstr("GPU "));
    if (*verb == '\0') {
      EXPECT_EQ(x->outcome().code(), absl::StatusCode::kDataLoss) << x->outcome();
      continue;
    }
    // The session goes on.
    DeviceCall* again_x = a.Submit(ask);
    DeviceCall* again_y = b.Submit(ask);
    ASSERT_TRUE(again_x != nullptr && again_y != nullptr);
    ASSERT_TRUE(job.RunUntil([&] { return again_x->ended() && again_y->ended(); }));
    EXPECT_TRUE(again_x->outcome().ok()) << again_x->outcome();
    EXPECT_TRUE(again_y->outcome().ok()) << again_y->outcome();
  }
}

// What is in a stream with no event behind it may be under way for a while: neither pinned memory nor the caller's is
// used meanwhile, and that pinned memory never again.
TEST(DeviceTest, ACopyThatNoEventTellsOfIsHeld) {
  for (uint64_t failing = 0; failing < 4; ++failing) {
    SCOPED_TRACE(failing);
    UseGpus(2, 0);
    SimulatedJob job({.seed = failing, .adverse = false});
    ASSERT_TRUE(job.Start());
    DeviceProgram a(&job.worker(0), 0), b(&job.worker(1), 1);
    // One part, so one copy each way.
    const std::vector<float> numbers = job.Numbers(1000);
    const auto round = [&](int expected) {
      const DeviceAsk ask = {.name = "w", .elements = numbers.size(), .input = numbers};
      DeviceCall* const calls[] = {a.Submit(ask), b.Submit(ask)};
      int failed = 0;
      for (const DeviceCall* call : calls) {
        ASSERT_NE(call, nullptr);
        ASSERT_TRUE(job.RunUntil([&] { return call->ended(); }));
        failed += call->outcome().ok() ? 0 : 1;
      }
      EXPECT_EQ(failed, expected);
      if (failed != 0) return;
      a.Read(calls[0]);
      a.Synchronize();
      EXPECT_EQ(calls[0]->result(), SimulatedJob::Sum({numbers, numbers}));
    };
    round(0);
    const uint64_t registrations = Counts().registrations;
    const Time begin = job.worker(0).now();
    // Behind what is recorded at the submissions: the inputs of both ranks, then their results.
    FakeGpu().fail("event_record", 4 + failing, BPS_INTERNAL);
    round(failing < 2 ? 2 : 1);
    EXPECT_GE(job.worker(0).now(), begin + DeviceStage::kReleaseTime);
    EXPECT_EQ(Counts().registrations, registrations);
    // That of the callers is theirs again behind that time; no event orders what they do with it.
    a.UseNewMemory("w");
    b.UseNewMemory("w");
    const Time again = job.worker(0).now();
    round(0);
    EXPECT_LT(job.worker(0).now(), again + DeviceStage::kReleaseTime);
    EXPECT_EQ(Counts().registrations, registrations + 1);
    ExpectNoRaces();
    job.Finish();
  }
}

// The streams of five GPUs wait for a collective among them, whose last member comes behind a tensor of a sixth one.
TEST(DeviceTest, BusyStreamsHoldUpNoOther) {
  constexpr int kBusy = 5;
  UseGpus(kBusy + 1, 3);
  SimulatedJob job({.seed = 5, .workers = 1});
  ASSERT_TRUE(job.Start());
  const bps_device_plugin* plugin = nullptr;
  ASSERT_EQ(bps_device_plugin_v1_fake(PluginHost(), &plugin), BPS_OK);
  const bps_device_collectives& together = *plugin->collectives;
  uint8_t id[BPS_DEVICE_COMM_ID] = {};
  ASSERT_EQ(together.unique_id(nullptr, id, nullptr), BPS_OK);
  const std::vector<float> numbers = job.Numbers(3000);
  const DeviceAsk first = {.name = "first", .elements = numbers.size(), .input = numbers, .in_place = true};
  std::vector<std::unique_ptr<DeviceProgram>> programs;
  programs.push_back(std::make_unique<DeviceProgram>(&job.worker(0), 0));
  DeviceCall* call = programs[0]->Submit(first);
  ASSERT_TRUE(job.RunUntil([&] { return call->ended(); }));
  for (int index = 1; index <= kBusy; ++index) programs.push_back(std::make_unique<DeviceProgram>(*programs[0], index));
  std::vector<bps_device_comm*> comms(programs.size());
  std::vector<void*> memory(programs.size());
  const auto meet = [&](size_t member) {
    ASSERT_EQ(together.begin(comms[member], nullptr), BPS_OK);
    ASSERT_EQ(together.all_reduce(comms[member], memory[member], memory[member], 4, BPS_FLOAT32, BPS_SUM,
                                  programs[member]->stream(), nullptr),
              BPS_OK);
    ASSERT_EQ(together.end(comms[member], nullptr), BPS_OK);
  };
  for (size_t member = 0; member < programs.size(); ++member) {
    bps_device_join_args args = {};
    args.struct_size = sizeof args;
    args.id = id;
    args.rank = static_cast<int32_t>(member);
    args.size = static_cast<int32_t>(programs.size());
    ASSERT_EQ(together.join(programs[member]->device(), &args, &comms[member], nullptr), BPS_OK);
    ASSERT_EQ(FakeGpu().table->allocate(programs[member]->device(), 16, &memory[member], nullptr), BPS_OK);
  }
  std::vector<DeviceCall*> calls;
  for (size_t member = 0; member < programs.size(); ++member) {
    const bool last = member + 1 == programs.size();
    if (!last) meet(member);
    calls.push_back(programs[member]->Submit({.name = "t" + std::to_string(member),
                                              .elements = numbers.size(),
                                              .input = numbers,
                                              .in_place = true,
                                              .timeout = 20 * kSecond}));
    ASSERT_NE(calls.back(), nullptr);
    if (last) {
      ASSERT_TRUE(job.RunUntil([&] { return calls.back()->ended(); }));
      EXPECT_TRUE(calls.back()->outcome().ok()) << calls.back()->outcome();
      meet(member);
      programs[member]->Synchronize();
    }
  }
  for (const DeviceCall* each : calls) {
    ASSERT_TRUE(job.RunUntil([&] { return each->ended(); }));
    EXPECT_TRUE(each->outcome().ok()) << each->outcome();
  }
  for (bps_device_comm* comm : comms) together.abort(comm);
  ExpectNoRaces();
}

// Work in the stream of an output alone holds up its own tensor, until it has ended; no other tensor does.
TEST(DeviceTest, ABusyStreamOfAnOutputHoldsUpItsOwnTensorAlone) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    UseGpus(2, seed);
    SimulatedJob job({.seed = seed});
    ASSERT_TRUE(job.Start());
    DeviceProgram a(&job.worker(0), 0), b(&job.worker(1), 1);
    static int32_t go;
    go = 0;
    ASSERT_EQ(FakeGpu().hold(0, a.output_stream(), &go), BPS_OK);
    const std::vector<float> numbers = job.Numbers(5000);
    const DeviceAsk busy = {.name = "busy", .elements = numbers.size(), .input = numbers, .apart = true};
    const DeviceAsk idle = {.name = "idle", .elements = numbers.size(), .input = numbers, .timeout = 30 * kSecond};
    DeviceCall* busy_a = a.Submit(busy);
    DeviceCall* busy_b = b.Submit(busy);
    DeviceCall* idle_a = a.Submit(idle);
    DeviceCall* idle_b = b.Submit(idle);
    ASSERT_TRUE(job.RunUntil([&] { return idle_a->ended() && idle_b->ended(); }));
    EXPECT_TRUE(idle_a->outcome().ok()) << idle_a->outcome();
    EXPECT_TRUE(idle_b->outcome().ok()) << idle_b->outcome();
    EXPECT_FALSE(busy_a->in_stream());
    go = 1;
    ASSERT_TRUE(job.RunUntil([&] { return busy_a->ended() && busy_b->ended(); }));
    EXPECT_TRUE(busy_a->outcome().ok()) << busy_a->outcome();
    a.Read(busy_a);
    a.Synchronize();
    EXPECT_EQ(busy_a->result(), SimulatedJob::Sum({numbers, numbers}));
    ExpectNoRaces();
  }
}

TEST(DeviceTest, CancelsAndDeadlinesEndInOrder) {
  ForEachSeed(60, [](uint64_t seed) {
    UseGpus(2, seed);
    SimulatedJob job({.seed = seed});
    ASSERT_TRUE(job.Start());
    DeviceProgram a(&job.worker(0), 0), b(&job.worker(1), 1);
    const std::vector<float> numbers = job.Numbers(5000);
    const DeviceAsk ask = {.name = "w", .elements = numbers.size(), .input = numbers, .timeout = 5 * kSecond};
    // No other member comes.
    DeviceCall* alone = a.Submit(ask);
    job.RunFor(static_cast<Time>(seed % 7) * kMillisecond);
    if (seed % 2 == 0) job.worker(0).Cancel(alone->request.get());
    ASSERT_TRUE(job.RunUntil([&] { return alone->ended(); }));
    EXPECT_EQ(alone->outcome().code(),
              seed % 2 == 0 ? absl::StatusCode::kCancelled : absl::StatusCode::kDeadlineExceeded)
        << alone->outcome();
    // The other comes now, too late; then both go on.
    DeviceCall* late = b.Submit(ask);
    ASSERT_TRUE(job.RunUntil([&] { return late->ended(); }));
    EXPECT_FALSE(late->outcome().ok());
    DeviceCall* x = a.Submit(ask);
    DeviceCall* y = b.Submit(ask);
    ASSERT_TRUE(job.RunUntil([&] { return x->ended() && y->ended(); }));
    EXPECT_TRUE(x->outcome().ok()) << x->outcome();
    EXPECT_TRUE(y->outcome().ok()) << y->outcome();
    ExpectNoRaces();
  });
}

}  // namespace
}  // namespace byteps
