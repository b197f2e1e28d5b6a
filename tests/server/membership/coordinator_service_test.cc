// The coordinator and its members, whole, in one thread and in virtual time: tensors and barriers of sessions that run.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "server/membership/coordinator.h"
#include "tests/server/membership/control_job.h"
#include "tests/server/membership/control_trio.h"
#include "tests/server/membership/says.h"

namespace byteps {
namespace {

// ---- Tensors ----

TEST(CoordinatorServiceTest, TheAnswerToADeclareIsTheSameForAll) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Declare(job.now(), {Spec("x", {1000, 1000}), Spec("y", {3})});
  job.Settle();
  trio.c.client().Declare(job.now(), {Spec("y", {3}), Spec("x", {1000, 1000}), Spec("x", {10})});
  job.Settle();
  ASSERT_EQ(trio.a.assignments.size(), 2u);
  ASSERT_EQ(trio.c.assignments.size(), 3u);
  EXPECT_EQ(trio.a.assignments[0].SerializeAsString(), trio.c.assignments[1].SerializeAsString());
  EXPECT_EQ(trio.a.assignments[1].SerializeAsString(), trio.c.assignments[0].SerializeAsString());
  const control::Assignment& x = trio.a.assignments[0];
  const control::Assignment& other_shape = trio.c.assignments[2];
  EXPECT_EQ(x.key() >> 16, other_shape.key() >> 16);
  EXPECT_NE(x.key(), other_shape.key());
  EXPECT_NE(x.key() >> 16, trio.a.assignments[1].key() >> 16);
  // One home for all shapes of a name.
  EXPECT_EQ(x.runs(0).server(), other_shape.runs(0).server());
  EXPECT_EQ(x.runs(0).lane(), other_shape.runs(0).lane());
}

// n worker hosts named "w0", "w1", ... with a server each, and k servers on hosts of their own: what each server gets
// of a large tensor, in parts.
std::vector<uint64_t> PartsOfServers(ControlJob* job, int n, int k) {
  ControlMember* worker = nullptr;
  for (int server = 0; server < n + k; ++server) {
    control::Hello hello = ControlJob::ServerHello({.servers = n + k, .preferred_rank = server});
    hello.mutable_host()->set_id((server < n ? "w" : "s") + std::to_string(server));
    job->Add(hello);
  }
  for (int host = 0; host < n; ++host) {
    control::Hello hello = ControlJob::WorkerHello({.host = host, .hosts = n, .servers = n + k});
    hello.mutable_host()->set_id("w" + std::to_string(host));
    worker = &job->Add(hello);
  }
  job->Settle();
  worker->client().Declare(job->now(), {Spec("x", {1 << 20, 100})});
  job->Settle();
  std::vector<uint64_t> parts(static_cast<size_t>(n + k));
  if (worker->assignments.size() != 1) return parts;
  for (const control::Assignment::Run& run : worker->assignments[0].runs()) parts[run.server()] += run.parts();
  return parts;
}

TEST(CoordinatorServiceTest, MixedModeGivesTheSharesOfTheOptimum) {
  // n = 4, k = 2: 6/20 for a dedicated server, 2/20 for a colocated one; 800 parts.
  for (const MixedMode mode : {MixedMode::kAuto, MixedMode::kOn, MixedMode::kOff}) {
    CoordinatorOptions options;
    options.mixed_mode = mode;
    ControlJob job(options);
    const std::vector<uint64_t> parts = PartsOfServers(&job, 4, 2);
    for (size_t server = 0; server < 6; ++server) {
      const double share = mode == MixedMode::kOff ? 1.0 / 6 : server < 4 ? 0.1 : 0.3;
      EXPECT_NEAR(static_cast<double>(parts[server]), 800 * share, 3) << server;
    }
  }
}

TEST(CoordinatorServiceTest, AKeyHashPlacesByNameAndPart) {
  CoordinatorOptions options;
  options.hash.function = KeyHash::Function::kNaive;
  ControlJob job(options);
  // Parts 0, 1, 2, ... of the first name: 9973 is 1 modulo 3.
  ControlMember* worker = nullptr;
  for (int server = 0; server < 3; ++server) job.AddServer({.servers = 3, .preferred_rank = server});
  worker = &job.AddWorker({.servers = 3, .partition_bytes = 1024});
  job.Settle();
  worker->client().Declare(job.now(), {Spec("x", {256 * 6}), Spec("y", {256 * 3})});
  job.Settle();
  ASSERT_EQ(worker->assignments.size(), 2u);
  for (int name = 0; name < 2; ++name) {
    uint32_t part = 0;
    for (const control::Assignment::Run& run : worker->assignments[static_cast<size_t>(name)].runs()) {
      for (uint32_t i = 0; i < run.parts(); ++i, ++part) {
        EXPECT_EQ(run.server(), (static_cast<uint32_t>(name) + part) * 9973 % 3);
      }
    }
    EXPECT_EQ(part, name == 0 ? 6u : 3u);
  }
}

TEST(CoordinatorServiceTest, ServersMayChangeBetweenTwoOpens) {
  ControlJob job;
  job.AddServer({.servers = 2, .preferred_rank = 0, .lanes = 1});
  ControlMember& leaving = job.AddServer({.servers = 2, .preferred_rank = 1, .lanes = 1});
  ControlMember& first = job.AddWorker({.servers = 2});
  job.Settle();
  first.client().Declare(job.now(), {Spec("x", {1 << 20})});
  job.Settle();
  first.client().Goodbye(job.now(), kSecond);
  job.Settle();
  job.Kill(leaving);
  // The next generation waits for a second server, and is placed on those that are there: other lanes, other slots.
  ControlMember& second = job.AddWorker({.servers = 2});
  job.Advance(kSecond);
  EXPECT_TRUE(Says(second.waiting, {"1 of 2 servers", "server rank 1", "is gone", "another one may take its place"}));
  job.AddServer({.servers = 2, .lanes = 3, .slot_bytes = 128 << 10});
  job.Settle();
  ASSERT_EQ(second.epochs.size(), 1u);
  EXPECT_EQ(second.epochs[0].servers(1).lanes_size(), 3);
  second.client().Declare(job.now(), {Spec("x", {1 << 20})});
  job.Settle();
  ASSERT_EQ(first.assignments.size(), 1u);
  ASSERT_EQ(second.assignments.size(), 1u);
  EXPECT_GT(4 * first.assignments[0].part_elements(), uint64_t{128} << 10);
  EXPECT_LE(4 * second.assignments[0].part_elements(), uint64_t{128} << 10);
  std::set<uint32_t> lanes;
  for (const control::Assignment::Run& run : second.assignments[0].runs()) {
    if (run.server() == 1) lanes.insert(run.lane());
  }
  EXPECT_EQ(lanes.size(), 3u);
}

TEST(CoordinatorServiceTest, SessionsHaveTensorsOfTheirOwn) {
  ControlJob job;
  job.AddServer({});
  ControlMember& one = job.AddWorker({.session = "one", .partition_bytes = 1024});
  ControlMember& two = job.AddWorker({.session = "two"});
  job.Settle();
  one.client().Declare(job.now(), {Spec("a", {100000})});
  two.client().Declare(job.now(), {Spec("a", {100000})});
  job.Settle();
  ASSERT_EQ(one.assignments.size(), 1u);
  ASSERT_EQ(two.assignments.size(), 1u);
  EXPECT_EQ(one.assignments[0].part_elements(), 256u);
  EXPECT_GT(two.assignments[0].part_elements(), 256u);
}

TEST(CoordinatorServiceTest, LongRepliesAreCut) {
  ControlJob job;
  job.AddServer({.lanes = 64});
  ControlMember& worker = job.AddWorker({.partition_bytes = 4});
  job.Settle();
  std::vector<control::TensorSpec> specs;
  for (int i = 0; i < 20; ++i) specs.push_back(Spec("t" + std::to_string(i), {100000}));
  worker.client().Declare(job.now(), specs);
  job.Settle();
  EXPECT_EQ(worker.assignments.size(), 20u);
}

// ---- Barriers ----

TEST(CoordinatorServiceTest, BarriersMeetByNameAndCall) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Barrier(job.now(), "x", 10 * kSecond);
  trio.a.client().Barrier(job.now(), "x", 10 * kSecond);
  trio.b.client().Barrier(job.now(), "x", 10 * kSecond);
  trio.b.client().Barrier(job.now(), "y", 10 * kSecond);
  job.Settle();
  EXPECT_TRUE(trio.a.barriers.empty());
  trio.c.client().Barrier(job.now(), "x", 10 * kSecond);
  job.Settle();
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) {
    ASSERT_EQ(member->barriers.size(), 1u);
    EXPECT_TRUE(member->barriers.at("x 1").ok());
  }
}

TEST(CoordinatorServiceTest, ABarriersDeadlineNamesWhoIsMissingAndTheSessionGoesOn) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Barrier(job.now(), "x", 100 * kSecond);
  job.Advance(kSecond);
  trio.c.client().Barrier(job.now(), "x", 5 * kSecond);
  job.Advance(4 * kSecond);
  EXPECT_TRUE(trio.a.barriers.empty());
  job.Advance(1 * kSecond);
  for (ControlMember* member : {&trio.a, &trio.c}) {
    const absl::Status& status = member->barriers.at("x 1");
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Says(status.ToString(), {"\"x\"", "5 s", "rank 1 (host \"host1\", 10.0.0.1, pid 1010)", "rank 2"}));
  }
  // The late one is told at once, and the next call meets.
  trio.b.client().Barrier(job.now(), "x", 100 * kSecond);
  job.Settle();
  EXPECT_EQ(trio.b.barriers.at("x 1").code(), absl::StatusCode::kDeadlineExceeded);
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) member->client().Barrier(job.now(), "x", 5 * kSecond);
  job.Settle();
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) EXPECT_TRUE(member->barriers.at("x 2").ok());
}

TEST(CoordinatorServiceTest, ABarrierThatAMemberCannotMeetFailsAtOnce) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Barrier(job.now(), "x", 100 * kSecond);
  trio.b.client().Goodbye(job.now(), 100 * kSecond);
  job.Settle();
  EXPECT_TRUE(Says(trio.a.barriers.at("x 1").ToString(), {"rank 1", "has left", "rank 2"}));
  trio.c.client().Barrier(job.now(), "z", 100 * kSecond);
  job.Settle();
  EXPECT_TRUE(Says(trio.c.barriers.at("z 1").ToString(), {"rank 1", "has left"}));
}

}  // namespace
}  // namespace byteps
