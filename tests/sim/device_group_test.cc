// The GPUs of a host that reduce among themselves, in whole simulated jobs: random programs under each schedule of the
// fake GPU, on one host and on several, in each order of adding, beside workers without GPUs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "abi/byteps.h"
#include "core/worker/device/gpu_group_options.h"
#include "device_plugins/fake/control.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/device_program.h"
#include "tests/sim/fake_gpus.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

// One host without servers, or with; or two hosts.
JobOptions Job(uint64_t seed, std::mt19937_64* random) {
  JobOptions options;
  options.seed = seed;
  options.local = true;
  options.workers = static_cast<uint32_t>(2 + (*random)() % 3);
  options.workers_per_host = options.workers;
  options.servers = static_cast<uint32_t>((*random)() % 2);
  if ((*random)() % 2 == 0) {
    const auto others = static_cast<uint32_t>(1 + (*random)() % 2);
    options.hosts = {options.workers, others};
    options.groups = "host";  // a host's GPUs reduce among themselves where a host is a group
    options.workers += others;
    options.servers = 1 + static_cast<uint32_t>((*random)() % 2);
  }
  return options;
}

GpuGroupOptions Group(std::mt19937_64* random) {
  GpuGroupOptions options;
  options.deterministic = (*random)() % 2 == 0;
  options.rings = static_cast<uint32_t>(1 + (*random)() % 2);
  options.rows_in_group = static_cast<uint32_t>(1 + (*random)() % 4);
  if ((*random)() % 3 == 0) options.roots = {static_cast<uint32_t>((*random)() % 2)};
  return options;
}

struct Shape {
  std::string name;
  uint64_t elements;
  bool broadcast;
  int32_t reduction;
};

struct Expected {
  DeviceProgram* program;
  DeviceCall* call;
  std::vector<float> numbers;
};

// The sum in the order of the ranks, or of the sums of the hosts.
std::vector<float> SumOf(const std::vector<std::vector<float>>& inputs, const std::vector<uint32_t>& hosts) {
  if (hosts.empty()) return SimulatedJob::Sum(inputs);
  std::vector<std::vector<float>> sums;
  auto first = inputs.begin();
  for (const uint32_t size : hosts) {
    sums.push_back(SimulatedJob::Sum({first, first + size}));
    first += size;
  }
  return SimulatedJob::Sum(sums);
}

// Numbers whose sum is the same in every order, and their average where halves and thirds are not needed.
std::vector<float> Whole(uint64_t count, std::mt19937_64* random) {
  std::vector<float> numbers(count);
  for (float& number : numbers) number = static_cast<float>(static_cast<int64_t>((*random)() % 2001) - 1000);
  return numbers;
}

class GroupProgram {
 public:
  GroupProgram(SimulatedJob* job, const std::vector<uint32_t>& hosts, const GpuGroupOptions& group,
               std::mt19937_64* random)
      : job_(*job), hosts_(hosts), random_(*random) {
    // Some worker may have no GPU, and its host reduces in the host's memory then.
    without_ = static_cast<uint32_t>(random_() % (2 * job_.workers()));
    for (uint32_t rank = 0; rank < job_.workers(); ++rank) {
      GpuGroupOptions own = group;
      // What differs among the workers of a host sends them through its memory.
      if (rank == 1 && random_() % 10 == 0) own.rings = 3;
      programs_.push_back(std::make_unique<DeviceProgram>(&job_.worker(rank), static_cast<int>(rank), own));
    }
    for (uint64_t i = 1 + random_() % 4; i > 0; --i) {
      shapes_.push_back({"t" + std::to_string(i), random_() % 4 == 0 ? random_() % 3 : random_() % 9000,
                         random_() % 5 == 0, random_() % 3 == 0 ? BPS_AVERAGE : BPS_SUM});
    }
  }

  void Round(bool exact) {
    std::vector<DeviceCall*> device_calls;
    std::vector<Call*> host_calls;
    const size_t before = all_.size();
    for (const Shape& shape : shapes_) {
      const auto root = static_cast<int32_t>(random_() % job_.workers());
      std::vector<std::vector<float>> inputs;
      for (uint32_t rank = 0; rank < job_.workers(); ++rank) {
        inputs.push_back(exact ? job_.Numbers(shape.elements) : Whole(shape.elements, &random_));
      }
      std::vector<float> expected = shape.broadcast ? inputs[static_cast<size_t>(root)] : SumOf(inputs, hosts_);
      if (!shape.broadcast && shape.reduction == BPS_AVERAGE) {
        for (float& number : expected) number /= static_cast<float>(job_.workers());
      }
      // Workers submit in an order of their own.
      for (uint32_t turn = 0, first = static_cast<uint32_t>(random_()) % job_.workers(); turn < job_.workers();
           ++turn) {
        const uint32_t rank = (first + turn) % job_.workers();
        const bool reads = !shape.broadcast || static_cast<int32_t>(rank) == root;
        const auto kind = shape.broadcast ? wire::Operation::kBroadcast : wire::Operation::kPushPull;
        if (rank == without_) {
          Ask ask;
          ask.name = shape.name;
          ask.shape = {static_cast<int64_t>(shape.elements)};
          const auto* bytes = reinterpret_cast<const std::byte*>(inputs[rank].data());
          if (reads) ask.input.assign(bytes, bytes + shape.elements * sizeof(float));
          ask.kind = kind;
          ask.reduction = shape.reduction;
          ask.root = root;
          host_calls.push_back(job_.worker(rank).Submit(ask));
          ASSERT_NE(host_calls.back(), nullptr);
          continue;
        }
        DeviceAsk ask;
        ask.name = shape.name;
        ask.elements = shape.elements;
        if (reads) ask.input = inputs[rank];
        ask.kind = kind;
        ask.reduction = shape.reduction;
        ask.root = root;
        ask.priority = static_cast<int64_t>(random_() % 3);
        ask.in_place = random_() % 2 == 0;
        ask.later = random_() % 2 == 0;
        ask.pinned = random_() % 12 == 0;
        absl::Status refused;
        DeviceCall* call = programs_[rank]->Submit(ask, &refused);
        ASSERT_NE(call, nullptr) << refused;
        device_calls.push_back(call);
        all_.push_back({programs_[rank].get(), call, expected});
        if (random_() % 4 == 0) job_.RunFor(static_cast<Time>(random_() % 3) * kMillisecond);
      }
    }
    ASSERT_TRUE(job_.RunUntil([&] {
      for (const auto& program : programs_) program->UseStagesIfAsked();
      for (const DeviceCall* call : device_calls) {
        if (!call->ended() && (call->pinned || !call->in_stream())) return false;
      }
      for (const Call* call : host_calls) {
        if (!call->ended()) return false;
      }
      return true;
    }));
    for (size_t i = before; i < all_.size(); ++i) {
      ASSERT_TRUE(!all_[i].call->ended() || all_[i].call->outcome().ok()) << all_[i].call->outcome();
      all_[i].program->Read(all_[i].call);
    }
    for (const Call* call : host_calls) EXPECT_TRUE(call->ok()) << call->outcome();
  }

  void Check() {
    for (const auto& program : programs_) program->Synchronize();
    for (const Expected& expected : all_) {
      EXPECT_EQ(expected.call->result(), expected.numbers);
      ASSERT_TRUE(job_.RunUntil([&] { return expected.call->ended(); }));
      EXPECT_TRUE(expected.call->outcome().ok()) << expected.call->outcome();
    }
  }

 private:
  SimulatedJob& job_;
  const std::vector<uint32_t> hosts_;
  std::mt19937_64& random_;
  uint32_t without_ = 0;
  std::vector<std::unique_ptr<DeviceProgram>> programs_;
  std::vector<Shape> shapes_;
  std::vector<Expected> all_;
};

TEST(DeviceGroupTest, RandomProgramsComputeTheSameInEverySchedule) {
  ForEachSeed(1000, [](uint64_t seed) {
    std::mt19937_64 random(seed);
    const JobOptions options = Job(seed, &random);
    UseGpus(options.workers, seed);
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const GpuGroupOptions group = Group(&random);
    GroupProgram program(&job, options.hosts, group, &random);
    const uint64_t before = Counts().synchronisations;
    for (int round = 0; round < 3; ++round) program.Round(group.deterministic && !testing::Test::HasFailure());
    EXPECT_EQ(Counts().synchronisations, before) << "the library waited for a device";
    program.Check();
    ExpectNoRaces();
    job.Finish();
  });
}

// In the middle of a round a call of the driver fails, a GPU is lost, a worker cancels, or one does not come: every
// operation ends, what ended well is right, and nothing is touched behind the end.
TEST(DeviceGroupTest, TroubleEndsEveryOperation) {
  ForEachSeed(600, [](uint64_t seed) {
    std::mt19937_64 random(seed);
    const JobOptions options = Job(seed, &random);
    UseGpus(options.workers, seed);
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const GpuGroupOptions group = Group(&random);
    std::vector<std::unique_ptr<DeviceProgram>> programs;
    for (uint32_t rank = 0; rank < job.workers(); ++rank) {
      programs.push_back(std::make_unique<DeviceProgram>(&job.worker(rank), static_cast<int>(rank), group));
    }
    const std::string verbs[] = {
        "state",          "begin",         "end",         "join",         "event_create",   "event_record",
        "event_query",    "stream_create", "stream_wait", "copy_to_host", "copy_to_device", "register_host",
        "reduce_scatter", "all_gather",    "all_reduce",  "broadcast",    "send",           "fold",
        "allocate"};
    const std::string verb = verbs[random() % std::size(verbs)];
    const uint64_t trouble = random() % 4;
    const auto victim = static_cast<uint32_t>(random() % job.workers());
    SCOPED_TRACE("trouble " + std::to_string(trouble) + " " + verb);
    bool lost = false;
    for (int round = 0; round < 4; ++round) {
      const bool troubled = round == static_cast<int>(seed % 3);
      std::vector<Expected> all;
      for (const char* name : {"a", "b"}) {
        const uint64_t elements = 1 + random() % 9000;
        const bool broadcast = random() % 4 == 0;
        std::vector<std::vector<float>> inputs;
        for (uint32_t rank = 0; rank < job.workers(); ++rank) inputs.push_back(Whole(elements, &random));
        const std::vector<float> expected = broadcast ? inputs[0] : SimulatedJob::Sum(inputs);
        for (uint32_t rank = 0; rank < job.workers(); ++rank) {
          if (troubled && trouble == 3 && rank == victim) continue;
          if (lost && rank == victim) continue;
          DeviceAsk ask;
          ask.name = name + std::to_string(round);
          ask.elements = elements;
          if (!broadcast || rank == 0) ask.input = inputs[rank];
          ask.kind = broadcast ? wire::Operation::kBroadcast : wire::Operation::kPushPull;
          ask.timeout = 5 * kSecond;
          absl::Status refused;
          DeviceCall* call = programs[rank]->Submit(ask, &refused);
          // The session may be over by now.
          if (call == nullptr) {
            ASSERT_NE(round, 0) << refused;
            continue;
          }
          all.push_back({programs[rank].get(), call, expected});
        }
      }
      if (troubled) {
        job.RunFor(static_cast<Time>(random() % 4) * kMillisecond);
        if (trouble == 0) FakeGpu().fail(verb.c_str(), random() % 6, BPS_RESOURCE_EXHAUSTED);
        if (trouble == 1) FakeGpu().lose(static_cast<int32_t>(victim));
        if (trouble == 2) job.worker(victim).Cancel(all[all.size() / 2].call->request.get());
        lost = lost || trouble == 1;
      }
      for (const Expected& each : all) {
        ASSERT_TRUE(job.RunUntil([&] { return each.call->ended(); }));
      }
      FakeGpu().fail(verb.c_str(), UINT64_MAX, BPS_OK);
      for (const Expected& each : all) {
        if (lost || !each.call->outcome().ok()) continue;
        each.program->Read(each.call);
        each.program->Synchronize();
        EXPECT_EQ(each.call->result(), each.numbers);
      }
      // Where no event could be recorded, nothing tells when a copy has ended.
      if (lost || (trouble == 0 && verb == "event_record")) continue;
      // The session may have failed in the middle of it.
      for (const Expected& each : all) each.program->Overwrite(*each.call);
      for (const auto& program : programs) program->Synchronize();
    }
    ExpectNoRaces();
  });
}

// A round ends for a worker with a GPU before the other one comes, which has its tensor in the memory of the host.
TEST(DeviceGroupTest, AWorkerWithoutAGpuHearsThatTheRoundHasEnded) {
  for (const uint32_t first : {0U, 1U}) {
    SCOPED_TRACE(first);
    UseGpus(2, 3);
    JobOptions options = {.seed = 5, .workers = 2, .workers_per_host = 2, .servers = 0, .adverse = false};
    options.local = true;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    std::vector<std::unique_ptr<DeviceProgram>> programs;
    for (const uint32_t rank : {0U, 1U}) {
      programs.push_back(std::make_unique<DeviceProgram>(&job.worker(rank), static_cast<int>(rank), GpuGroupOptions()));
    }
    const std::vector<float> numbers = job.Numbers(1000);
    const auto on_gpu = [&](uint32_t rank) {
      return programs[rank]->Submit({.name = "x", .elements = numbers.size(), .input = numbers});
    };
    const auto round = [&] {
      const std::vector<DeviceCall*> calls = {on_gpu(0), on_gpu(1)};
      for (const DeviceCall* call : calls) {
        ASSERT_NE(call, nullptr);
        ASSERT_TRUE(job.RunUntil([&] { return call->ended(); }));
        ASSERT_TRUE(call->outcome().ok()) << call->outcome();
      }
    };
    round();
    DeviceCall* cancelled = on_gpu(first);
    ASSERT_NE(cancelled, nullptr);
    job.RunFor(10 * kMillisecond);
    job.worker(first).Cancel(cancelled->request.get());
    ASSERT_TRUE(job.RunUntil([&] { return cancelled->ended(); }));
    job.RunFor(kSecond);  // the other worker has heard of it
    Ask ask;
    ask.name = "x";
    ask.shape = {static_cast<int64_t>(numbers.size())};
    const auto* bytes = reinterpret_cast<const std::byte*>(numbers.data());
    ask.input.assign(bytes, bytes + numbers.size() * sizeof(float));
    ask.timeout = 600 * kSecond;
    Call* const late = job.worker(1 - first).Submit(ask);
    ASSERT_NE(late, nullptr);
    job.RunFor(kSecond);
    ASSERT_TRUE(late->ended());
    EXPECT_EQ(late->outcome().code(), absl::StatusCode::kAborted) << late->outcome();
    EXPECT_THAT(std::string(late->outcome().message()), testing::HasSubstr("gave up"));
    round();
    ExpectNoRaces();
  }
}

// The worker whose tensor is in the memory of the host has submitted when it hears that the round has ended: its
// operation has passed by the GPUs' stage. Messages take so long that the order of events is that of these times.
class MeanwhileTest : public testing::TestWithParam<std::tuple<Time, uint32_t, bool, size_t, bool>> {};

TEST_P(MeanwhileTest, AWorkerWithoutAGpuHearsThatTheRoundHasEnded) {
  const auto [latency, first, knows, elements, two_hosts] = GetParam();
  UseGpus(3, 3);
  JobOptions options = {.seed = 5, .workers = 2, .workers_per_host = 2, .servers = 0, .adverse = false};
  options.local = true;
  options.link.latency = latency;
  options.peer_timeout = 600 * kSecond;
  if (two_hosts) {
    options.workers = 3;
    options.hosts = {2, 1};
    options.groups = "host";
    options.servers = 1;
  }
  SimulatedJob job(options);
  ASSERT_TRUE(job.Start());
  std::vector<std::unique_ptr<DeviceProgram>> programs;
  for (uint32_t rank = 0; rank < job.workers(); ++rank) {
    programs.push_back(std::make_unique<DeviceProgram>(&job.worker(rank), static_cast<int>(rank), GpuGroupOptions()));
  }
  std::mt19937_64 random(5);
  const std::vector<float> numbers = Whole(elements, &random);
  const auto on_gpu = [&](uint32_t rank) {
    return programs[rank]->Submit({.name = "x", .elements = numbers.size(), .input = numbers});
  };
  const auto on_host = [&](uint32_t rank) {
    Ask ask;
    ask.name = "x";
    ask.shape = {static_cast<int64_t>(numbers.size())};
    const auto* bytes = reinterpret_cast<const std::byte*>(numbers.data());
    ask.input.assign(bytes, bytes + numbers.size() * sizeof(float));
    return job.worker(rank).Submit(ask);
  };
  const auto good_round = [&](bool all_on_gpus) {
    std::vector<DeviceCall*> calls;
    Call* other = nullptr;
    for (uint32_t rank = 0; rank < job.workers(); ++rank) {
      if (!all_on_gpus && rank == 1 - first) {
        other = on_host(rank);
        ASSERT_NE(other, nullptr);
      } else {
        calls.push_back(on_gpu(rank));
        ASSERT_NE(calls.back(), nullptr);
      }
    }
    for (const DeviceCall* call : calls) {
      ASSERT_TRUE(job.RunUntil([&] { return call->ended(); }));
      ASSERT_TRUE(call->outcome().ok()) << call->outcome();
    }
    if (other != nullptr) {
      ASSERT_TRUE(job.RunUntil([&] { return other->ended(); }));
      ASSERT_TRUE(other->ok()) << other->outcome();
    }
  };
  ASSERT_NO_FATAL_FAILURE(good_round(true));
  DeviceCall* const cancelled = on_gpu(first);
  ASSERT_NE(cancelled, nullptr);
  DeviceCall* const elsewhere = two_hosts ? on_gpu(2) : nullptr;
  Call* late = nullptr;
  if (knows) {
    job.RunFor(latency * 7 / 10);
    job.worker(first).Cancel(cancelled->request.get());
    job.RunFor(latency / 2);
    late = on_host(1 - first);
  } else {
    job.RunFor(latency / 2);
    late = on_host(1 - first);
    job.RunFor(latency / 5);
    job.worker(first).Cancel(cancelled->request.get());
  }
  ASSERT_NE(late, nullptr);
  job.RunFor(10 * latency);
  ASSERT_TRUE(late->ended());
  EXPECT_EQ(late->outcome().code(), absl::StatusCode::kAborted) << late->outcome();
  EXPECT_THAT(std::string(late->outcome().message()), testing::HasSubstr("gave up"));
  ASSERT_TRUE(cancelled->ended());
  EXPECT_EQ(cancelled->outcome().code(), absl::StatusCode::kCancelled) << cancelled->outcome();
  if (elsewhere != nullptr) {
    ASSERT_TRUE(elsewhere->ended());
    EXPECT_EQ(elsewhere->outcome().code(), absl::StatusCode::kAborted) << elsewhere->outcome();
  }
  ASSERT_NO_FATAL_FAILURE(good_round(false));
  ASSERT_NO_FATAL_FAILURE(good_round(true));
  ExpectNoRaces();
  job.Finish();
}

// By rank 0, which gives the orders, or 1; before or when the other one knows of the round; in an OFFER, or in memory
// that is shown; on one host or two. 2 s: an order comes when the one that has cancelled waits no more.
INSTANTIATE_TEST_SUITE_P(All, MeanwhileTest,
                         testing::Combine(testing::Values(100 * kMillisecond, 2 * kSecond), testing::Values(0U, 1U),
                                          testing::Bool(), testing::Values(size_t{10}, size_t{3000}), testing::Bool()));

// Between the submission and the result a caller captures the stream that is to wait for it, or ends it: that operation
// fails, on that rank alone.
TEST(DeviceGroupTest, AStreamThatCannotWaitEndsItsOperationAlone) {
  for (const uint32_t servers : {0U, 1U}) {
    for (const bool captured : {true, false}) {
      for (const uint32_t victim : {0U, 1U}) {
        SCOPED_TRACE(testing::Message() << servers << " servers, rank " << victim << (captured ? ": captured" : ""));
        UseGpus(2, 3);
        JobOptions options = {.seed = 5, .workers = 2, .workers_per_host = 2, .servers = servers, .adverse = false};
        options.local = true;
        SimulatedJob job(options);
        ASSERT_TRUE(job.Start());
        std::vector<std::unique_ptr<DeviceProgram>> programs;
        for (int rank = 0; rank < 2; ++rank) {
          programs.push_back(
              std::make_unique<DeviceProgram>(&job.worker(static_cast<uint32_t>(rank)), rank, GpuGroupOptions()));
        }
        std::mt19937_64 random(5);
        const std::vector<float> numbers = Whole(9000, &random);
        const auto round = [&](bool troubled) {
          std::vector<DeviceCall*> calls;
          for (const auto& program : programs) {
            calls.push_back(program->Submit(
                {.name = "w", .elements = numbers.size(), .input = numbers, .in_place = true, .apart = troubled}));
            ASSERT_NE(calls.back(), nullptr);
          }
          const DeviceProgram& caller = *programs[victim];
          if (troubled && captured) FakeGpu().capture(caller.output_stream(), 1);
          if (troubled && !captured) {
            ASSERT_EQ(FakeGpu().table->stream_destroy(caller.device(), caller.output_stream(), nullptr), BPS_OK);
          }
          ASSERT_TRUE(job.RunUntil([&] { return calls[0]->ended() && calls[1]->ended(); }));
          if (troubled) {
            const absl::Status outcome = calls[victim]->outcome();
            EXPECT_EQ(outcome.code(),
                      captured ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kInvalidArgument);
            EXPECT_THAT(std::string(outcome.message()),
                        testing::HasSubstr(captured ? "is being captured into a CUDA graph: it cannot wait for a result"
                                                    : "this handle is no stream"));
          }
          for (const uint32_t rank : {0U, 1U}) {
            if (troubled && rank == victim) continue;
            ASSERT_TRUE(calls[rank]->outcome().ok()) << calls[rank]->outcome();
            programs[rank]->Read(calls[rank]);
            const bps_device_stream stream = calls[rank]->stream;
            ASSERT_EQ(FakeGpu().table->synchronize(programs[rank]->device(), stream, nullptr), BPS_OK);
            EXPECT_EQ(calls[rank]->result(), SimulatedJob::Sum({numbers, numbers}));
          }
        };
        ASSERT_NO_FATAL_FAILURE(round(false));
        ASSERT_NO_FATAL_FAILURE(round(true));
        ASSERT_NO_FATAL_FAILURE(round(false));
        ExpectNoRaces();
        job.Finish();
      }
    }
  }
}

// On one host nothing goes through the memory of the host, and after the first rounds nothing is made. The first
// operation of all is a broadcast, as at the beginning of a training.
TEST(DeviceGroupTest, TheSteadyStateMakesNothing) {
  for (const bool deterministic : {false, true}) {
    SCOPED_TRACE(deterministic);
    UseGpus(3, 3);
    JobOptions options = {.seed = 5, .workers = 3, .workers_per_host = 3, .servers = 0, .adverse = false};
    options.local = true;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    GpuGroupOptions group;
    group.deterministic = deterministic;
    std::vector<std::unique_ptr<DeviceProgram>> programs;
    for (int rank = 0; rank < 3; ++rank) {
      programs.push_back(std::make_unique<DeviceProgram>(&job.worker(static_cast<uint32_t>(rank)), rank, group));
    }
    const std::vector<float> numbers = job.Numbers(20'000);
    const auto round = [&](wire::Operation kind) {
      std::vector<DeviceCall*> calls;
      for (const auto& program : programs) {
        const DeviceAsk ask = {.name = kind == wire::Operation::kBroadcast ? "b" : "w",
                               .elements = numbers.size(),
                               .input = numbers,
                               .kind = kind,
                               .in_place = true};
        calls.push_back(program->Submit(ask));
        ASSERT_NE(calls.back(), nullptr);
      }
      for (DeviceCall* call : calls) {
        ASSERT_TRUE(job.RunUntil([&] { return call->ended(); }));
        ASSERT_TRUE(call->outcome().ok()) << call->outcome();
        call->gpu = nullptr;
      }
    };
    const fake_gpu_counts first = Counts();
    for (int i = 0; i < 2; ++i) round(wire::Operation::kBroadcast);
    for (int i = 0; i < 2; ++i) round(wire::Operation::kPushPull);
    const fake_gpu_counts before = Counts();
    for (int i = 0; i < 10; ++i) round(wire::Operation::kBroadcast);
    for (int i = 0; i < 10; ++i) round(wire::Operation::kPushPull);
    const fake_gpu_counts after = Counts();
    EXPECT_EQ(after.synchronisations, first.synchronisations);
    EXPECT_EQ(after.copies_to_host, first.copies_to_host);
    EXPECT_EQ(after.registrations, first.registrations);
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.streams, before.streams);
    EXPECT_EQ(after.events, before.events);
    // The trainers' own: the inputs.
    EXPECT_EQ(after.bytes_to_device - before.bytes_to_device, 20 * 3 * numbers.size() * sizeof(float));
    ExpectNoRaces();
  }
}

// On two hosts, whose GPUs take their shares to the servers: what is made is made in the first rounds.
TEST(DeviceGroupTest, TheSteadyStateOfTwoHostsMakesNothing) {
  for (const bool deterministic : {false, true}) {
    SCOPED_TRACE(deterministic);
    UseGpus(4, 3);
    JobOptions options = {.seed = 5, .workers = 4, .servers = 2, .adverse = false};
    options.hosts = {2, 2};
    options.groups = "host";
    options.local = true;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    GpuGroupOptions group;
    group.deterministic = deterministic;
    std::vector<std::unique_ptr<DeviceProgram>> programs;
    for (int rank = 0; rank < 4; ++rank) {
      programs.push_back(std::make_unique<DeviceProgram>(&job.worker(static_cast<uint32_t>(rank)), rank, group));
    }
    std::mt19937_64 random(5);
    const std::vector<float> numbers = Whole(20'000, &random);
    const auto round = [&] {
      std::vector<DeviceCall*> calls;
      for (const auto& program : programs) {
        const DeviceAsk ask = {.name = "w", .elements = numbers.size(), .input = numbers, .in_place = true};
        calls.push_back(program->Submit(ask));
        ASSERT_NE(calls.back(), nullptr);
      }
      for (DeviceCall* call : calls) {
        ASSERT_TRUE(job.RunUntil([&] { return call->ended(); }));
        ASSERT_TRUE(call->outcome().ok()) << call->outcome();
        call->gpu = nullptr;
      }
    };
    const fake_gpu_counts first = Counts();
    for (int i = 0; i < 20; ++i) round();
    fake_gpu_counts before = Counts(), after = before;
    // How many events are under way at once differs from round to round: the most of all comes some time.
    for (int turn = 0; turn < 10 && (turn == 0 || after.events != before.events); ++turn) {
      before = Counts();
      for (int i = 0; i < 20; ++i) round();
      after = Counts();
    }
    EXPECT_EQ(after.synchronisations, first.synchronisations);
    EXPECT_EQ(before.registrations - first.registrations, 4u);
    EXPECT_EQ(after.registrations, before.registrations);
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.streams, before.streams);
    EXPECT_EQ(after.events, before.events);
    // Each host's memory has each byte once, and not once for each GPU.
    EXPECT_EQ(after.bytes_to_host - before.bytes_to_host, 20 * 2 * numbers.size() * sizeof(float));
    ExpectNoRaces();
  }
}

// Names that are not used again do not pin more and more memory: an area is kept for 10 s.
TEST(DeviceGroupTest, TensorsThatAreNamedAnewShareMemory) {
  constexpr int kNames = 1000, kWithinTheKeepTime = 100;
  UseGpus(3, 3);
  JobOptions options = {.seed = 5, .workers = 3, .servers = 1, .adverse = false};
  options.hosts = {2, 1};
  options.groups = "host";
  options.local = true;
  SimulatedJob job(options);
  ASSERT_TRUE(job.Start());
  std::vector<std::unique_ptr<DeviceProgram>> programs;
  for (int rank = 0; rank < 3; ++rank) {
    programs.push_back(
        std::make_unique<DeviceProgram>(&job.worker(static_cast<uint32_t>(rank)), rank, GpuGroupOptions()));
  }
  // Some parts for each GPU.
  std::mt19937_64 random(5);
  const std::vector<float> numbers = Whole(3 * options.partition_bytes / sizeof(float), &random);
  const auto round = [&](const std::string& name) {
    std::vector<DeviceCall*> calls;
    for (const auto& program : programs) {
      calls.push_back(program->Submit({.name = name, .elements = numbers.size(), .input = numbers, .in_place = true}));
      ASSERT_NE(calls.back(), nullptr);
    }
    for (size_t rank = 0; rank < calls.size(); ++rank) {
      ASSERT_TRUE(job.RunUntil([&] { return calls[rank]->ended(); }));
      ASSERT_TRUE(calls[rank]->outcome().ok()) << calls[rank]->outcome();
    }
    programs[0]->Read(calls[0]);
    programs[0]->Synchronize();
    EXPECT_EQ(calls[0]->result(), SimulatedJob::Sum({numbers, numbers, numbers}));
  };
  // Two that are used again keep theirs.
  for (const char* name : {"first", "second", "first", "second"}) round(name);
  const uint64_t of_two = Counts().registrations;
  EXPECT_EQ(of_two, 2u * 3);
  for (int i = 0; i < kNames; ++i) {
    ASSERT_NO_FATAL_FAILURE(round("noname." + std::to_string(i)));
    job.RunFor(10 * kSecond / kWithinTheKeepTime);
  }
  const fake_gpu_counts before = Counts();
  // Of each GPU, and those of one more look.
  EXPECT_LE(before.registrations - of_two, 3u * (kWithinTheKeepTime + 2));
  EXPECT_GE(before.registrations - of_two, 3u * kWithinTheKeepTime / 2);
  for (const char* name : {"first", "second"}) round(name);
  EXPECT_EQ(Counts().registrations, before.registrations);
  ExpectNoRaces();
}

// More groups than may be under way at once: the first worker orders the next when the first have ended, of which
// nothing but its GPU tells.
TEST(DeviceGroupTest, TheNextGroupsFollowTheFirst) {
  for (const uint64_t seed : {3, 4, 5}) {
    SCOPED_TRACE(seed);
    ASSERT_EQ(FakeGpu().reset(("devices=2,schedule=late,patience=300,seed=" + std::to_string(seed)).c_str()), 1);
    JobOptions options = {.seed = seed, .workers = 2, .workers_per_host = 2, .servers = 1, .adverse = false};
    options.local = true;
    options.heartbeat = 60 * kSecond;
    options.peer_timeout = 600 * kSecond;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    GpuGroupOptions group;
    group.rows_in_group = 1;
    const std::vector<float> numbers = job.Numbers(options.partition_bytes / sizeof(float) * 2 * 30);
    std::vector<std::unique_ptr<DeviceProgram>> programs;
    std::vector<DeviceCall*> calls;
    for (int rank = 0; rank < 2; ++rank) {
      programs.push_back(std::make_unique<DeviceProgram>(&job.worker(static_cast<uint32_t>(rank)), rank, group));
      calls.push_back(programs.back()->Submit({.name = "w", .elements = numbers.size(), .input = numbers}));
      ASSERT_NE(calls.back(), nullptr);
    }
    ASSERT_TRUE(job.RunUntil([&] { return calls[0]->ended() && calls[1]->ended(); }, 5 * kSecond));
    for (const DeviceCall* call : calls) EXPECT_TRUE(call->outcome().ok()) << call->outcome();
    EXPECT_EQ(Counts().copies_to_host, 0u);
    ExpectNoRaces();
  }
}

}  // namespace
}  // namespace byteps
