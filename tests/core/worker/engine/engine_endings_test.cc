// How operations of the engine end: by errors, cancels, deadlines, and lost servers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/core/worker/engine/engine_test.h"

namespace byteps {
namespace {

TEST_P(EngineTest, AnErrorFailsTheRoundOnceAndTheSessionGoesOn) {
  EngineJobOptions options = Options(1, 2);
  options.server.error = BPS_FAILED_PRECONDITION;
  options.server.error_text = "rank 0 wants this, rank 1 that";
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  std::vector<float> a = Ramp(5000, 1), x(5000);
  auto request = job.PushPull(0, "w", a, &x);
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  EXPECT_EQ(request->outcome().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsRetryable(request->outcome()));
  EXPECT_NE(request->outcome().message().find("rank 0 wants this"), absl::string_view::npos) << request->outcome();
  EXPECT_NE(request->outcome().message().find("\"w\""), absl::string_view::npos) << request->outcome();
  EXPECT_EQ(job.workers[0]->engine->in_flight(), 0u);

  for (auto& server : job.servers) server->script.error = 0;
  request = job.PushPull(0, "w", a, &x);
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  EXPECT_TRUE(request->outcome().ok()) << request->outcome();
  EXPECT_EQ(x, a);
}

// The answer comes while the round before is under way, which it does not concern.
TEST_P(EngineTest, ACutThatIsRefusedEndsTheTensorAtItsRound) {
  EngineJobOptions options = Options(1, 2);
  options.no_cut_from = 4;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  std::vector<float> a = Ramp(5000, 1);
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    std::vector<float> x(5000);
    auto request = job.PushPull(0, "w", a, &x);
    ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
    if (round < 4) {
      EXPECT_TRUE(request->outcome().ok()) << request->outcome();
      EXPECT_EQ(x, a);
    } else {
      EXPECT_NE(request->outcome().message().find("there is no such cut"), absl::string_view::npos)
          << request->outcome();
    }
  }
  EXPECT_EQ(job.workers[0]->engine->in_flight(), 0u);
}

TEST_P(EngineTest, CancelTellsEveryServerAndLetsGoOfTheMemory) {
  EngineJobOptions options = Options(1, 2);
  options.server.silent = true;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  std::vector<float> a = Ramp(5000, 1), x(5000);
  auto request = job.PushPull(0, "w", a, &x);
  const Time began = job.fabric.now();
  ASSERT_FALSE(job.RunUntil([&] { return request->ended(); }, 100 * kMillisecond));
  job.workers[0]->engine->Cancel(job.fabric.now(), request.get());
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  EXPECT_EQ(request->outcome().code(), absl::StatusCode::kCancelled);
  EXPECT_LT(job.fabric.now() - began, kSecond);
  job.RunUntil([&] { return job.servers[0]->cancels.size() + job.servers[1]->cancels.size() == 20; }, kSecond);
  EXPECT_EQ(job.servers[0]->cancels.size() + job.servers[1]->cancels.size(), 20u) << "parts";
  for (auto& server : job.servers) server->script.silent = false;
  request = job.PushPull(0, "w", a, &x);
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  EXPECT_EQ(x, a);
}

TEST_P(EngineTest, AResultThatIsUnderWayWhenItIsCancelledStillFindsItsMemory) {
  for (Time cancel_at : {6, 8, 10, 12, 14}) {
    EngineJobOptions options = Options(1, 1);
    options.fabric.link.latency = 4 * kMillisecond;
    options.worker_flags |= BPS_TRANSPORT_REG_ADDRESSES;
    EngineJob job(options);
    ASSERT_TRUE(job.Connect());
    job.RunUntil([] { return false; }, 100 * kMillisecond);  // the slots are lent
    std::vector<float> a = Ramp(300, 1), x(300);
    auto request = job.PushPull(0, "w", a, &x);  // what it registers is kept
    ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
    request = job.PushPull(0, "w", a, &x);
    job.RunUntil([&] { return request->ended(); }, cancel_at * kMillisecond);
    job.workers[0]->engine->Cancel(job.fabric.now(), request.get());
    ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }, kSecond));
    EXPECT_TRUE(request->outcome().ok() || request->outcome().code() == absl::StatusCode::kCancelled);
    const std::vector<float> at_end = x;
    job.RunUntil([] { return false; }, 100 * kMillisecond);
    EXPECT_EQ(x, at_end) << "touched after its end";
    EXPECT_EQ(job.fabric.stats().dropped_writes, 0u) << "a write went to memory that was no longer shown";
    request = job.PushPull(0, "w", a, &x);
    ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
    EXPECT_EQ(x, a);
  }
}

TEST_P(EngineTest, AServerThatNeverConfirmsACancelLosesItsAccess) {
  EngineJobOptions options = Options(1, 1);
  options.server.silent = true;
  options.server.error_to_cancel = false;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  std::vector<float> a = Ramp(5000, 1), x(5000);
  auto request = job.PushPull(0, "w", a, &x);
  ASSERT_FALSE(job.RunUntil([&] { return request->ended(); }, 100 * kMillisecond));
  const Time began = job.fabric.now();
  job.workers[0]->engine->Cancel(job.fabric.now(), request.get());
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  EXPECT_LE(job.fabric.now() - began, 2 * kSecond + kMillisecond);
}

// What is registered stays so while a tensor's memory is the same and its operations end well, if a registration is of
// addresses. The fence is as before: an operation that fails takes its registrations along.
TEST_P(EngineTest, RegistrationsOutliveOperationsThatEndWell) {
  const uint32_t flags = GetParam().flags;
  // Of the input, where it must be, and of the output.
  const uint64_t each = flags == BPS_TRANSPORT_CHEAP_REG ? 2 : (flags & BPS_TRANSPORT_CHEAP_REG) != 0 ? 1 : 0;
  for (const bool addresses : {true, false}) {
    SCOPED_TRACE(addresses);
    EngineJobOptions options = Options(1, 2);
    if (addresses) options.worker_flags |= BPS_TRANSPORT_REG_ADDRESSES;
    EngineJob job(options);
    ASSERT_TRUE(job.Connect());
    const std::vector<float> a = Ramp(5000, 1), b = Ramp(5000, 2);
    std::vector<float> x(5000), y(5000);
    const auto registrations = [&] {
      const auto& by_node = job.fabric.stats().registrations;
      const auto found = by_node.find("worker0");
      return found == by_node.end() ? 0 : found->second;
    };
    const auto registered_by = [&](const std::vector<float>& in, std::vector<float>* out) {
      const uint64_t before = registrations();
      std::fill(out->begin(), out->end(), 0);
      const auto request = job.PushPull(0, "w", in, out);
      EXPECT_TRUE(job.RunUntil([&] { return request->ended(); }));
      EXPECT_TRUE(request->outcome().ok()) << request->outcome();
      EXPECT_EQ(*out, in);
      return registrations() - before;
    };
    registered_by(a, &x);  // whatever the first one takes
    const uint64_t again = addresses ? 0 : each;
    EXPECT_EQ(registered_by(a, &x), again);
    EXPECT_EQ(registered_by(a, &y), addresses ? each != 0 : each) << "another output";
    EXPECT_EQ(registered_by(b, &y), addresses ? each == 2 : each) << "another input";
    EXPECT_EQ(registered_by(b, &y), again);
    for (int turn = 0; turn < 4; ++turn) EXPECT_EQ(registered_by(b, turn % 2 == 0 ? &x : &y), again) << "in turns";

    const auto silence = [&](bool silent) {
      for (auto& server : job.servers) server->script.silent = silent;
    };
    silence(true);
    const auto request = job.PushPull(0, "w", b, &y);
    ASSERT_FALSE(job.RunUntil([&] { return request->ended(); }, 100 * kMillisecond));
    job.workers[0]->engine->Cancel(job.fabric.now(), request.get());
    ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
    EXPECT_FALSE(request->outcome().ok());
    silence(false);
    EXPECT_EQ(registered_by(b, &y), each) << "a cancelled operation has left a way into memory";
    EXPECT_EQ(registered_by(b, &y), again);
  }
}

TEST_P(EngineTest, ItsOwnClockIsTheFallbackOfADeadline) {
  EngineJobOptions options = Options(1, 1);
  options.server.silent = true;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  std::vector<float> a = Ramp(500, 1), x(500);
  Submission asked;
  asked.tensor = job.Declare(0, "w", 500);
  asked.input = reinterpret_cast<const std::byte*>(a.data());
  asked.output = reinterpret_cast<std::byte*>(x.data());
  asked.timeout = 3 * kSecond;
  const Time began = job.fabric.now();
  auto request = job.Submit(0, asked);
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  EXPECT_EQ(request->outcome().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(job.fabric.now() - began, 5 * kSecond);
  EXPECT_LE(job.fabric.now() - began, 5 * kSecond + 100 * kMillisecond);
  EXPECT_NE(request->outcome().message().find("host-of-server-0"), absl::string_view::npos) << request->outcome();
}

TEST_P(EngineTest, ADeclarationThatIsNeverAnsweredEndsAtTheDeadlineAndIsPaidLater) {
  EngineJobOptions options = Options(1, 1);
  options.assign = false;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  std::vector<float> a = Ramp(500, 1), x(500);
  const Time began = job.fabric.now();
  auto request = job.PushPull(0, "w", a, &x);
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  EXPECT_EQ(request->outcome().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LE(job.fabric.now() - began, 10 * kSecond + 100 * kMillisecond);
  // The answer comes after all: the servers hear that the round was given up, and the next one is an ordinary one.
  ASSERT_EQ(job.workers[0]->unanswered.size(), 1u);
  job.workers[0]->engine->OnAssignment(job.fabric.now(), job.Assign(job.workers[0]->unanswered[0]));
  request = job.PushPull(0, "w", a, &x);
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  EXPECT_TRUE(request->outcome().ok()) << request->outcome();
  ASSERT_EQ(job.servers[0]->cancels.size(), 2u) << "two parts";
  EXPECT_EQ(job.servers[0]->cancels[0].round, 0u);
}

TEST_P(EngineTest, OneNameOneOperationManyShapes) {
  EngineJobOptions options = Options(1, 1);
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  std::vector<float> a = Ramp(500, 1), x(500), b = Ramp(7, 1), y(7);
  auto request = job.PushPull(0, "w", a, &x);
  absl::Status refused;
  EXPECT_EQ(job.PushPull(0, "w", b, &y, &refused), nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  request = job.PushPull(0, "w", b, &y);
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  EXPECT_EQ(y, b);
  EXPECT_NE(job.Declare(0, "w", 500), job.Declare(0, "w", 7));
  EXPECT_EQ(job.Declare(0, "w", 7), job.Declare(0, "w", 7));
  EXPECT_EQ(job.Declare(0, "w", 7)->name().rounds, 2u);
}

TEST_P(EngineTest, ADeadServerEndsEverythingOnceWithItsName) {
  EngineJobOptions options = Options(1, 2);
  options.server.silent = true;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  std::vector<float> a = Ramp(5000, 1), x(5000), b = a, y(5000);
  std::vector<std::shared_ptr<Request>> requests = {job.PushPull(0, "w", a, &x), job.PushPull(0, "v", b, &y)};
  ASSERT_FALSE(job.RunUntil([&] { return Ended(requests); }, 50 * kMillisecond));
  job.fabric.Kill("server1");
  ASSERT_TRUE(job.RunUntil([&] { return Ended(requests); }));
  for (const auto& request : requests) {
    EXPECT_EQ(request->outcome().code(), absl::StatusCode::kUnavailable) << request->outcome();
    EXPECT_FALSE(IsRetryable(request->outcome()));
    EXPECT_NE(request->outcome().message().find("server 1"), absl::string_view::npos) << request->outcome();
  }
  ASSERT_EQ(job.workers[0]->failures.size(), 1u);
  auto late = job.PushPull(0, "w", a, &x);
  ASSERT_TRUE(job.RunUntil([&] { return late->ended(); }));
  EXPECT_EQ(late->outcome(), requests[0]->outcome());
}

// A server hears of a worker's death before the coordinator does, often: what the caller is told first must be what all
// later calls are told, and that is the coordinator's word.
TEST_P(EngineTest, AServerThatGivesTheSessionUpLeavesTheLastWordToTheCoordinator) {
  for (const bool coordinator : {true, false}) {
    EngineJobOptions options = Options(1, 1);
    options.server.error = BPS_UNAVAILABLE;
    options.server.error_text = "the connection to rank 1 is lost";
    options.server.error_flags = wire::kFlagSessionOver;
    options.fatal_grace = kSecond;
    EngineJob job(options);
    ASSERT_TRUE(job.Connect());
    std::vector<float> a = Ramp(5000, 1), x(5000);
    auto request = job.PushPull(0, "w", a, &x);
    ASSERT_FALSE(job.RunUntil([&] { return request->ended(); }, 500 * kMillisecond)) << request->outcome();
    if (coordinator) {
      job.workers[0]->engine->Fail(job.fabric.now(), absl::UnavailableError("worker rank 1 is gone"));
      for (Completion& completion : job.workers[0]->engine->TakeCompletions()) completion.Run();
    } else {
      ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }, kSecond)) << "the coordinator says nothing";
    }
    EXPECT_EQ(request->outcome().message(), coordinator ? "worker rank 1 is gone" : "the connection to rank 1 is lost");
    EXPECT_FALSE(IsRetryable(request->outcome()));
    auto late = job.PushPull(0, "w", a, &x);
    ASSERT_TRUE(job.RunUntil([&] { return late->ended(); }));
    EXPECT_EQ(late->outcome(), request->outcome());
  }
}

TEST_P(EngineTest, FailureFromTheControlPlaneReleasesAllMemory) {
  EngineJobOptions options = Options(1, 1);
  options.server.silent = true;
  EngineJob job(options);
  ASSERT_TRUE(job.Connect());
  std::vector<float> a = Ramp(5000, 1), x(5000);
  auto request = job.PushPull(0, "w", a, &x);
  ASSERT_FALSE(job.RunUntil([&] { return request->ended(); }, 50 * kMillisecond));
  job.workers[0]->engine->Fail(job.fabric.now(), absl::UnavailableError("worker 1 (host b) died"));
  for (Completion& completion : job.workers[0]->engine->TakeCompletions()) completion.Run();
  ASSERT_TRUE(request->ended());
  EXPECT_EQ(request->outcome().message(), "worker 1 (host b) died");
  EXPECT_TRUE(job.workers[0]->failures.empty());
}

BPS_INSTANTIATE_ENGINE_TEST();

}  // namespace
}  // namespace byteps
