// The coordinator and its members, whole, in one thread and in virtual time: who hears of a start that fails, and why.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/membership/coordinator.h"
#include "tests/server/membership/control_job.h"
#include "tests/server/membership/control_trio.h"
#include "tests/server/membership/says.h"

namespace byteps {
namespace {

TEST(FailedStartTest, ThoseThatWaitHearWhoWasRefused) {
  CoordinatorOptions options{.token = "secret"};
  options.start_timeout = 600 * kSecond;
  ControlJob job(options);
  ControlMember& worker = job.AddWorker({});
  job.Settle();
  const auto add = [&](auto change) {
    control::Hello hello = ControlJob::ServerHello({});
    change(&hello);
    ControlMember& server = job.Add(hello);
    job.Settle();
    EXPECT_FALSE(server.failure.ok());
    job.Advance(2 * kSecond);
  };
  add([](auto* hello) { hello->set_job("other"); });
  add([](auto* hello) { hello->set_preferred_rank(7); });
  job.token = "guess";
  add([](auto*) {});
  ASSERT_EQ(worker.refusals.size(), 3u);
  EXPECT_TRUE(Says(worker.refusals[0], {"server", "pid 7", "BYTEPS_JOB_ID=other, this coordinator's is job"}));
  EXPECT_TRUE(Says(worker.refusals[1], {"server 7", "DMLC_RANK=7 is not between -1 and 0"}));
  EXPECT_TRUE(Says(worker.refusals[2], {"127.0.0.1", "BYTEPS_JOB_TOKEN"}));
  EXPECT_TRUE(worker.failure.ok()) << worker.failure;
  // One that comes later hears of them, too, and the error of a member that has waited in vain names them.
  job.token = "secret";
  ControlMember& server = job.AddServer({.servers = 1, .preferred_rank = 0});
  job.Settle();
  EXPECT_EQ(server.client().state(), ControlState::kActive);
  EXPECT_EQ(worker.client().state(), ControlState::kActive) << worker.failure;
  job.Kill(worker);
  job.Settle();
  // They belong to the start that they were refused in.
  ControlMember& next = job.AddWorker({.host = 0, .hosts = 2, .session = "next"});
  job.Settle();
  job.Advance(kSecond);
  EXPECT_TRUE(next.refusals.empty());
}

TEST(FailedStartTest, AMemberThatWaitsInVainHearsAtTheEndWhoWasRefused) {
  ControlJob job;
  ControlMember& worker = job.AddWorker({});
  job.Settle();
  control::Hello hello = ControlJob::ServerHello({});
  hello.set_preferred_rank(7);
  job.Add(hello);
  job.Settle();
  job.Advance(61 * kSecond);
  EXPECT_TRUE(Says(worker.failure_text(), {"waits for 1 of 1 server", "it has refused: server 7", "DMLC_RANK=7"}));
}

TEST(FailedStartTest, ManyStrangersAreFewWordsForThoseThatWait) {
  ControlJob job({.token = "secret"});
  ControlMember& worker = job.AddWorker({});
  job.Settle();
  job.Advance(kSecond);
  job.token = "guess";
  for (int i = 0; i < 1000; ++i) {
    control::Hello hello = ControlJob::WorkerHello({});
    hello.set_job(std::to_string(i) + std::string(200, '\n'));
    job.Add(hello);
    job.Settle();
    job.Advance(10 * kMillisecond);
  }
  EXPECT_GE(worker.refusals.size(), 3u);
  EXPECT_LE(worker.refusals.size(), ControlHandler::kMostRefusals);
  for (const std::string& why : worker.refusals) {
    EXPECT_EQ(why.find('\n'), std::string::npos);
    EXPECT_LE(why.size(), 512u);
  }
}

TEST(FailedStartTest, AMemberThatComesLateForAStartThatFailedHearsWhy) {
  ControlJob job;
  ControlMember& first = job.AddWorker({.host = 0, .hosts = 3});
  job.Settle();
  ControlMember& other = job.AddWorker({.host = 1, .hosts = 3, .transport = "verbs"});
  job.Settle();
  EXPECT_TRUE(Says(other.failure_text(), {"the transport differs", "verbs", "tcp"}));
  EXPECT_EQ(first.failure, other.failure);
  job.Advance(20 * kSecond);
  ControlMember& late = job.AddWorker({.host = 2, .hosts = 3});
  job.Settle();
  EXPECT_EQ(late.failure, other.failure);
  // Another session has nothing to do with it.
  ControlMember& elsewhere = job.AddWorker({.host = 2, .hosts = 3, .session = "elsewhere"});
  job.Settle();
  EXPECT_TRUE(elsewhere.failure.ok()) << elsewhere.failure;
  // Started anew, a member that comes first.
  std::vector<ControlMember*> again;
  for (const int host : {2, 0, 1}) again.push_back(&job.AddWorker({.host = host, .hosts = 3}));
  job.AddServer({});
  job.Settle();
  for (ControlMember* worker : again) EXPECT_EQ(worker->client().state(), ControlState::kActive) << worker->failure;
}

TEST(FailedStartTest, AStartWithoutAgreementEndsForEveryRoleAtOnce) {
  for (const std::string odd : {"worker", "server"}) {
    SCOPED_TRACE(odd);
    ControlJob job(ByHand());
    ControlMember& server = job.AddServer({.servers = 2});
    ControlMember& worker = job.AddWorker({.hosts = 2, .servers = 2});
    job.Settle();
    std::vector<ControlMember*> members = {&server, &worker};
    members.push_back(&job.AddServer({.servers = 2, .transport = odd == "server" ? "verbs" : "tcp"}));
    members.push_back(
        &job.AddWorker({.host = 1, .hosts = 2, .servers = 2, .transport = odd == "worker" ? "verbs" : "tcp"}));
    job.Settle();
    job.Advance(kSecond);
    for (const ControlMember* each : members) {
      EXPECT_TRUE(Says(each->failure_text(), {"the transport differs: verbs at " + odd, "tcp at", "pid"}));
      EXPECT_EQ(each->failure, members.front()->failure);
    }
    EXPECT_TRUE(job.coordinator().over());
    EXPECT_EQ(job.coordinator().outcome(), server.failure);
  }
}

TEST(FailedStartTest, TheCoordinatorStaysForThoseThatAreStillToCome) {
  ControlJob job(ByHand());
  ControlMember& first = job.AddServer({.servers = 2});
  ControlMember& wrong = job.AddWorker({.hosts = 2, .servers = 2, .transport = "verbs"});
  job.Settle();
  EXPECT_TRUE(Says(first.failure_text(), {"the transport differs"})) << first.failure;
  job.Advance(50 * kSecond);
  EXPECT_FALSE(job.coordinator().over());
  ControlMember& late_server = job.AddServer({.servers = 2});
  ControlMember& late_worker = job.AddWorker({.host = 1, .hosts = 2, .servers = 2});
  job.Settle();
  EXPECT_EQ(late_server.failure, wrong.failure);
  EXPECT_EQ(late_worker.failure, wrong.failure);
  job.Advance(kSecond);
  EXPECT_TRUE(job.coordinator().over());
  EXPECT_EQ(job.coordinator().outcome(), wrong.failure);
}

TEST(FailedStartTest, TheCoordinatorStaysNoLongerThanAMinute) {
  ControlJob job(ByHand());
  job.AddServer({});
  ControlMember& wrong = job.AddWorker({.hosts = 2, .transport = "verbs"});
  job.Settle();
  job.Advance(59 * kSecond);
  EXPECT_FALSE(job.coordinator().over());
  job.Advance(2 * kSecond);
  EXPECT_TRUE(job.coordinator().over());
  EXPECT_EQ(job.coordinator().outcome(), wrong.failure);
}

TEST(FailedStartTest, AfterAStartThatFailedAnotherOneMayWork) {
  ControlJob job(ByHand());
  job.AddServer({});
  job.AddWorker({.hosts = 2, .transport = "verbs"});
  job.Settle();
  ControlMember& server = job.AddServer({});
  std::vector<ControlMember*> workers;
  for (const int host : {0, 1}) workers.push_back(&job.AddWorker({.host = host, .hosts = 2}));
  job.Settle();
  for (ControlMember* each : workers) EXPECT_EQ(each->client().state(), ControlState::kActive) << each->failure;
  EXPECT_TRUE(server.failure.ok()) << server.failure;
  job.Advance(120 * kSecond);
  EXPECT_FALSE(job.coordinator().over());
}

TEST(FailedStartTest, AMemberThatComesMuchLaterIsNoLatecomer) {
  ControlJob job;
  job.AddWorker({.host = 0, .hosts = 3});
  job.AddWorker({.host = 1, .hosts = 3, .transport = "verbs"});
  job.Settle();
  job.Advance(61 * kSecond);
  ControlMember& fresh = job.AddWorker({.host = 2, .hosts = 3});
  job.Settle();
  EXPECT_TRUE(fresh.failure.ok()) << fresh.failure;
}

TEST(FailedStartTest, WorkersHearOfServersThatDisagreed) {
  ControlJob job;
  job.AddServer({.servers = 2, .preferred_rank = 0});
  ControlMember& wrong = job.AddServer({.servers = 2, .preferred_rank = 1, .transport = "verbs"});
  job.Settle();
  ControlMember& late = job.AddWorker({.servers = 2});
  job.Settle();
  EXPECT_TRUE(Says(wrong.failure_text(), {"the transport differs", "verbs", "tcp"}));
  EXPECT_EQ(late.failure, wrong.failure);
  job.AddServer({.servers = 2, .preferred_rank = 1});
  ControlMember& again = job.AddWorker({.servers = 2});
  job.Settle();
  EXPECT_EQ(again.client().state(), ControlState::kActive) << again.failure;
}

}  // namespace
}  // namespace byteps
