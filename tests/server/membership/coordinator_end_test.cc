// The coordinator and its members, whole, in one thread and in virtual time: deaths, goodbyes, and the end of the job.
#include <gtest/gtest.h>

#include "server/membership/coordinator.h"
#include "tests/server/membership/control_job.h"
#include "tests/server/membership/control_trio.h"
#include "tests/server/membership/says.h"

namespace byteps {
namespace {

// ---- Deaths ----

TEST(CoordinatorEndTest, AWorkersDeathIsToldToAllWithItsName) {
  ControlJob job;
  Trio trio(&job);
  const uint64_t session = trio.a.welcome.session_id();
  job.Kill(trio.b);
  for (ControlMember* member : {&trio.a, &trio.c}) {
    EXPECT_EQ(member->failure.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(Says(member->failure_text(), {"worker rank 1", "host1", "10.0.0.1", "pid 1010", "closed"}));
  }
  ASSERT_EQ(trio.server.ended.count(session), 1u);
  EXPECT_TRUE(Says(trio.server.ended[session].ToString(), {"worker rank 1"}));
  EXPECT_TRUE(trio.server.failure.ok());
  EXPECT_EQ(job.coordinator().sessions(), 0u);
  EXPECT_EQ(job.coordinator().connections(), 1u);
}

TEST(CoordinatorEndTest, ASilentWorkerIsDead) {
  ControlJob job({.heartbeat = kSecond, .peer_timeout = 10 * kSecond});
  Trio trio(&job);
  job.Freeze(trio.c);
  job.Advance(9 * kSecond);
  EXPECT_TRUE(trio.a.failure.ok());
  job.Advance(2 * kSecond);
  EXPECT_TRUE(Says(trio.a.failure_text(), {"worker rank 2", "pid 1011", "silent for 10 s"}));
  EXPECT_TRUE(trio.server.failure.ok());
}

TEST(CoordinatorEndTest, ManyIdleHoursAreNoSilence) {
  ControlJob job;
  Trio trio(&job);
  job.Advance(3600 * kSecond);
  EXPECT_EQ(trio.a.client().state(), ControlState::kActive);
  EXPECT_EQ(trio.server.client().state(), ControlState::kActive);
}

TEST(CoordinatorEndTest, AServersDeathFailsEverySession) {
  ControlJob job;
  Trio one(&job, "one");
  ControlMember& other = job.AddWorker({.session = "two"});
  ControlMember& gathering = job.AddWorker({.host = 0, .hosts = 2, .session = "three"});
  job.Settle();
  ASSERT_EQ(other.client().state(), ControlState::kActive);
  job.Kill(one.server);
  for (ControlMember* member : {&one.a, &one.b, &one.c, &other}) {
    EXPECT_TRUE(Says(member->failure_text(), {"server rank 0", "serverhost", "pid 7"}));
  }
  EXPECT_TRUE(gathering.failure.ok());
  job.Advance(kSecond);
  EXPECT_TRUE(Says(gathering.waiting, {"1 of 1 server"}));
  // A new server takes its place.
  job.AddServer({});
  job.AddWorker({.host = 1, .hosts = 2, .session = "three"});
  job.Settle();
  EXPECT_EQ(gathering.client().state(), ControlState::kActive);
}

TEST(CoordinatorEndTest, OneThatGivesUpSaysWhy) {
  ControlJob job;
  Trio trio(&job);
  trio.b.client().Fail(job.now(), absl::DataLossError("the disk is full"));
  job.Settle();
  EXPECT_TRUE(Says(trio.a.failure_text(), {"worker rank 1", "gave up", "the disk is full"}));
}

TEST(CoordinatorEndTest, AServerMayReportALostWorker) {
  ControlJob job;
  Trio trio(&job);
  ControlMember& other = job.AddWorker({.session = "two"});
  job.Settle();
  const uint64_t session = trio.a.welcome.session_id();
  trio.server.client().BreakSession(job.now(), session, trio.b.welcome.member(),
                                    absl::UnavailableError("no answer for 30 s"));
  // Once more, as another lane would; and a session that there is not.
  trio.server.client().BreakSession(job.now(), session, 0, absl::UnavailableError("again"));
  trio.server.client().BreakSession(job.now(), session + 1000, 0, absl::UnavailableError("unknown"));
  job.Settle();
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) {
    EXPECT_TRUE(Says(member->failure_text(), {"worker rank 1", "pid 1010", "server rank 0", "no answer for 30 s"}));
  }
  EXPECT_EQ(trio.server.ended.size(), 1u);
  EXPECT_EQ(trio.server.client().state(), ControlState::kActive);
  EXPECT_EQ(other.client().state(), ControlState::kActive);
  EXPECT_EQ(job.coordinator().connections(), 2u);
}

// Its links close a moment after it has spoken, and who misses them may be heard first.
TEST(CoordinatorEndTest, WhatALostWorkerHasSaidItselfIsTheCause) {
  for (const bool only_stuck : {false, true}) {
    ControlJob job;
    Trio trio(&job);
    const uint64_t session = trio.a.welcome.session_id();
    const absl::Status trouble = absl::InternalError("its scheduler gave out what it has not got");
    if (only_stuck) trio.b.client().BreakSession(job.now(), session, 0, trouble);
    trio.server.client().BreakSession(job.now(), session, trio.b.welcome.member(),
                                      absl::UnavailableError("the connection is lost"));
    if (!only_stuck) trio.b.client().Fail(job.now(), trouble);
    job.Settle();
    for (ControlMember* member : {&trio.a, &trio.c}) {
      EXPECT_TRUE(Says(member->failure_text(), {"worker rank 1", "pid 1010", "gave out what it has not got"}));
      EXPECT_EQ(member->failure_text().find("the connection is lost"), std::string::npos) << member->failure_text();
    }
    EXPECT_EQ(trio.server.ended.size(), 1u);
  }
}

// Of one link both ends say that it is gone. Either may be the one that knows why.
TEST(CoordinatorEndTest, WhereBothEndsMissEachOtherBothAreHeard) {
  ControlJob job;
  Trio trio(&job);
  const uint64_t session = trio.a.welcome.session_id();
  trio.b.client().BreakSession(job.now(), session, 0, absl::UnavailableError("it closed its connection"));
  trio.server.client().BreakSession(job.now(), session, trio.b.welcome.member(),
                                    absl::UnavailableError("it broke the protocol"));
  job.Settle();
  EXPECT_TRUE(Says(trio.a.failure_text(), {"worker rank 1", "server rank 0", "it broke the protocol; worker rank 1",
                                           "cannot go on: it closed its connection"}));
  EXPECT_EQ(trio.a.failure.code(), absl::StatusCode::kUnavailable);
}

TEST(CoordinatorEndTest, AGoodbyeBehindTheReportOfALossIsNoLoss) {
  ControlJob job;
  Trio trio(&job);
  const uint64_t session = trio.a.welcome.session_id();
  trio.server.client().BreakSession(job.now(), session, trio.b.welcome.member(), absl::UnavailableError("gone"));
  trio.b.client().Goodbye(job.now(), 60 * kSecond);
  job.Settle();
  EXPECT_TRUE(trio.a.failure.ok()) << trio.a.failure;
  EXPECT_EQ(trio.a.client().state(), ControlState::kActive);
}

TEST(CoordinatorEndTest, OneThatBreaksTheProtocolIsDead) {
  control::Envelope envelope;
  envelope.mutable_epoch();
  ControlJob job;
  Trio trio(&job);
  job.coordinator().OnFrame(job.now(), trio.b.connection, envelope);
  job.Settle();
  EXPECT_TRUE(Says(trio.b.failure_text(), {"does not keep to the protocol", "epoch"}));
  EXPECT_TRUE(Says(trio.a.failure_text(), {"worker rank 1", "does not keep to the protocol"}));
}

TEST(CoordinatorEndTest, OtherSessionsGoOnWhenOneFails) {
  ControlJob job;
  Trio one(&job, "one");
  ControlMember& other = job.AddWorker({.session = "two"});
  job.Settle();
  job.Kill(one.a);
  EXPECT_FALSE(one.b.failure.ok());
  EXPECT_EQ(other.client().state(), ControlState::kActive);
  EXPECT_EQ(one.server.epochs.size(), 2u);
  EXPECT_EQ(one.server.ended.size(), 1u);
}

// ---- The start that does not come ----

constexpr Time kStart = 20 * kSecond;

TEST(CoordinatorEndTest, AJobThatNoMemberComesToEndsAndNamesWhoIsMissing) {
  ControlJob job({.num_servers = 2, .start_timeout = kStart});
  job.Advance(kStart - kSecond);
  EXPECT_FALSE(job.coordinator().over());
  job.Advance(kSecond);
  ASSERT_TRUE(job.coordinator().over());
  EXPECT_EQ(job.coordinator().outcome().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(job.coordinator().outcome().ToString(), {"within 20 s", "all workers, 2 of 2 servers"}));
}

TEST(CoordinatorEndTest, AJobThatSomeComeToWaitsForTheOthersFromTheLastArrivalOn) {
  ControlJob job({.start_timeout = kStart});
  job.Advance(15 * kSecond);
  ControlMember& server = job.AddServer({.servers = 2});
  job.Advance(2 * kSecond);
  // Members bring their own patience: 60 s.
  job.Advance(57 * kSecond);
  EXPECT_FALSE(job.coordinator().over());
  job.Advance(2 * kSecond);
  ASSERT_TRUE(job.coordinator().over());
  EXPECT_TRUE(Says(job.coordinator().outcome().ToString(),
                   {"all workers, 1 of 2 servers", "there are server", "serverhost", "pid 7"}));
  EXPECT_TRUE(Says(server.failure_text(), {"no session has started", "all workers"}));
}

TEST(CoordinatorEndTest, AJobThatHasStartedOnceEndsByItsLingerOnly) {
  ControlJob job({.linger = 1000 * kSecond, .start_timeout = kStart});
  Trio trio(&job);
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) member->client().Goodbye(job.now(), kSecond);
  job.Advance(500 * kSecond);
  EXPECT_FALSE(job.coordinator().over());
  job.Advance(500 * kSecond);
  EXPECT_TRUE(job.coordinator().over());
  EXPECT_TRUE(job.coordinator().outcome().ok()) << job.coordinator().outcome();
}

// ---- The end ----

TEST(CoordinatorEndTest, AServerThatIsToldToEndLeavesInOrder) {
  ControlJob job;
  Trio trio(&job);
  trio.server.client().Goodbye(job.now(), kSecond);
  job.Settle();
  EXPECT_TRUE(trio.server.goodbye.has_value() && trio.server.goodbye->ok());
  EXPECT_TRUE(Says(trio.a.failure_text(), {"server rank 0", "told to end"}));
}

TEST(CoordinatorEndTest, GoodbyeOfAllEndsTheSessionInOrder) {
  ControlJob job;
  Trio trio(&job);
  const uint64_t session = trio.a.welcome.session_id();
  trio.a.client().Goodbye(job.now(), 10 * kSecond);
  trio.b.client().Goodbye(job.now(), 10 * kSecond);
  job.Advance(5 * kSecond);
  EXPECT_FALSE(trio.a.goodbye.has_value());
  trio.c.client().Goodbye(job.now(), 10 * kSecond);
  job.Settle();
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) {
    ASSERT_TRUE(member->goodbye.has_value());
    EXPECT_TRUE(member->goodbye->ok()) << *member->goodbye;
    EXPECT_EQ(member->client().state(), ControlState::kLeft);
    EXPECT_TRUE(member->failure.ok());
  }
  EXPECT_TRUE(trio.server.ended.at(session).ok());
  EXPECT_EQ(trio.server.client().state(), ControlState::kActive);
}

TEST(CoordinatorEndTest, AMemberThatLeavesBeforeTheOthersHearsWhoStays) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), 3 * kSecond);
  job.Advance(2 * kSecond);
  EXPECT_FALSE(trio.a.goodbye.has_value());  // they may come yet
  job.Advance(kSecond);
  ASSERT_TRUE(trio.a.goodbye.has_value());
  EXPECT_TRUE(trio.a.goodbye->ok()) << *trio.a.goodbye;
  EXPECT_TRUE(Says(trio.a.client().staying(), {"rank 1", "rank 2", "pid 1011"}));
  // The others go on, and end without it.
  EXPECT_EQ(trio.b.client().state(), ControlState::kActive);
  trio.b.client().Goodbye(job.now(), 3 * kSecond);
  trio.c.client().Goodbye(job.now(), 3 * kSecond);
  job.Settle();
  EXPECT_TRUE(trio.b.goodbye->ok());
  EXPECT_TRUE(trio.c.goodbye->ok());
  EXPECT_EQ(trio.b.client().staying(), "");
}

// To the servers it looks like a death; the others hear what it was.
TEST(CoordinatorEndTest, AMemberThatHasLeftBeforeTheOthersIsNamedWhenItIsMissed) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), kSecond);
  job.Advance(kSecond);
  ASSERT_TRUE(trio.a.goodbye.has_value());
  const uint64_t session = trio.a.welcome.session_id();
  trio.server.client().BreakSession(job.now(), session, trio.a.welcome.member(),
                                    absl::UnavailableError("the connection to rank 0 is lost"));
  job.Settle();
  // Perhaps no member needs it any more.
  EXPECT_TRUE(trio.b.failure.ok());
  EXPECT_TRUE(trio.c.failure.ok());
  trio.b.client().BreakSession(job.now(), session, 0, absl::UnavailableError("the server says so"));
  job.Settle();
  for (const ControlMember* member : {&trio.b, &trio.c}) {
    EXPECT_TRUE(Says(member->failure_text(), {"worker rank 0", "has left the session before the others"}));
  }
  EXPECT_FALSE(trio.server.ended.at(session).ok());
}

TEST(CoordinatorEndTest, AMemberThatHasLeftBeforeTheOthersIsNamedToAMemberThatWasFasterThanTheServer) {
  ControlJob job;
  Trio trio(&job);
  const uint64_t session = trio.a.welcome.session_id();
  // Of a member that is there, nothing follows: if it has died, that is seen here.
  trio.c.client().BreakSession(job.now(), session, trio.b.welcome.member(), absl::UnavailableError("lost"));
  job.Settle();
  EXPECT_TRUE(trio.b.failure.ok());
  trio.a.client().Goodbye(job.now(), kSecond);
  job.Advance(kSecond);
  trio.b.client().BreakSession(job.now(), session, 0, absl::UnavailableError("the server says so"));
  job.Settle();
  EXPECT_TRUE(trio.b.failure.ok());
  trio.server.client().BreakSession(job.now(), session, trio.a.welcome.member(),
                                    absl::UnavailableError("the connection to rank 0 is lost"));
  job.Settle();
  EXPECT_TRUE(Says(trio.b.failure_text(), {"worker rank 0", "has left the session before the others"}));
}

TEST(CoordinatorEndTest, ANeighbourThatHasLeftBeforeTheOthersIsNamedToWhoMissesIt) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), kSecond);
  job.Advance(kSecond);
  trio.b.client().BreakSession(job.now(), trio.a.welcome.session_id(), trio.a.welcome.member(),
                               absl::UnavailableError("the connection to rank 0 is lost"));
  job.Settle();
  for (const ControlMember* member : {&trio.b, &trio.c}) {
    EXPECT_TRUE(Says(member->failure_text(), {"worker rank 0", "has left the session before the others"}));
  }
}

TEST(CoordinatorEndTest, LeavingAfterGoodbyeIsNoDeath) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), 100 * kSecond);
  job.Settle();
  job.Kill(trio.a);
  EXPECT_TRUE(trio.b.failure.ok());
  trio.b.client().Goodbye(job.now(), 100 * kSecond);
  trio.c.client().Goodbye(job.now(), 100 * kSecond);
  job.Settle();
  EXPECT_TRUE(trio.b.goodbye->ok());
}

TEST(CoordinatorEndTest, TheNextGenerationMayGatherWhileTheLastOneEnds) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), kSecond);
  job.Advance(kSecond);  // left alone: a timeout
  ControlMember& again = job.AddWorker({.host = 0, .hosts = 2});
  job.Settle();
  EXPECT_EQ(again.client().state(), ControlState::kGathering);
  EXPECT_EQ(again.welcome.generation(), 2u);
  EXPECT_EQ(trio.b.client().state(), ControlState::kActive);
}

TEST(CoordinatorEndTest, HundredsOfGenerationsLeaveNothingBehind) {
  ControlJob job;
  ControlMember& server = job.AddServer({});
  uint64_t last_session = 0;
  uint32_t last_member = 0;
  for (uint64_t generation = 1; generation <= 300; ++generation) {
    ControlMember& a = job.AddWorker({.local_rank = 0, .local_size = 2});
    ControlMember& b = job.AddWorker({.local_rank = 1, .local_size = 2});
    job.Settle();
    ASSERT_EQ(a.client().state(), ControlState::kActive) << generation << ": " << a.failure;
    EXPECT_EQ(a.epochs[0].generation(), generation);
    EXPECT_GT(a.welcome.session_id(), last_session);
    EXPECT_GT(a.welcome.member(), last_member);
    last_session = a.welcome.session_id();
    last_member = b.welcome.member();
    a.client().Declare(job.now(), {Spec("t", {10})});
    a.client().Barrier(job.now(), "x", 5 * kSecond);
    if (generation % 3 == 0) {
      job.Kill(b);
      EXPECT_FALSE(a.failure.ok());
    } else {
      a.client().Goodbye(job.now(), 5 * kSecond);
      b.client().Goodbye(job.now(), 5 * kSecond);
      job.Settle();
      EXPECT_TRUE(a.goodbye->ok());
    }
    EXPECT_EQ(job.coordinator().sessions(), 0u);
    EXPECT_EQ(job.coordinator().connections(), 1u);
    EXPECT_EQ(server.ended.count(last_session), 1u);
  }
  EXPECT_EQ(server.client().state(), ControlState::kActive);
}

TEST(CoordinatorEndTest, TheJobEndsWhenNoSessionIsOpenForTheLinger) {
  ControlJob job({.linger = 20 * kSecond});
  ControlMember& server = job.AddServer({});
  job.Advance(1000 * kSecond);
  EXPECT_TRUE(server.job_ended.empty()) << "nobody has come yet";
  for (int life = 0; life < 2; ++life) {
    ControlMember& worker = job.AddWorker({});
    job.Settle();
    job.Advance(100 * kSecond);
    worker.client().Goodbye(job.now(), kSecond);
    job.Advance(19 * kSecond);
    EXPECT_FALSE(job.coordinator().over());
  }
  job.Advance(2 * kSecond);
  EXPECT_TRUE(job.coordinator().over());
  EXPECT_TRUE(Says(server.job_ended, {"20 s"}));
  EXPECT_EQ(server.client().state(), ControlState::kOver);
  EXPECT_EQ(job.coordinator().connections(), 0u);
}

TEST(CoordinatorEndTest, WithoutLingerLimitItStays) {
  ControlJob job({.linger = kNever});
  ControlMember& server = job.AddServer({});
  ControlMember& worker = job.AddWorker({});
  job.Settle();
  worker.client().Goodbye(job.now(), kSecond);
  job.Advance(36000 * kSecond);
  EXPECT_FALSE(job.coordinator().over());
  EXPECT_TRUE(server.job_ended.empty());
}

TEST(CoordinatorEndTest, NotToLingerIsToEndWithTheLastSession) {
  ControlJob job({.linger = kNever});
  ControlMember& server = job.AddServer({});
  ControlMember& worker = job.AddWorker({});
  job.Settle();
  job.coordinator().DoNotLinger(job.now());
  job.Advance(100 * kSecond);
  EXPECT_FALSE(job.coordinator().over()) << "a session is open";
  worker.client().Goodbye(job.now(), kSecond);
  job.Advance(kSecond);
  EXPECT_TRUE(job.coordinator().over());
  EXPECT_EQ(server.client().state(), ControlState::kOver);
}

TEST(CoordinatorEndTest, NotToLingerBeforeAnyMemberCameIsToEnd) {
  ControlJob job({.linger = kNever});
  job.coordinator().DoNotLinger(job.now());
  job.Advance(kSecond);
  EXPECT_TRUE(job.coordinator().over());
}

// A program that opens no session, under srun: its servers are still starting when it has ended.
TEST(CoordinatorEndTest, NotToLingerBeforeAnySessionSendsServersHomeThatComeLate) {
  ControlJob job({.num_servers = 2, .linger = kNever});
  ControlMember& first = job.AddServer({.servers = 2});
  job.Settle();
  job.coordinator().DoNotLinger(job.now());
  job.Advance(kSecond);
  EXPECT_FALSE(job.coordinator().over()) << "a server is on its way";
  ControlMember& second = job.AddServer({.servers = 2});
  job.Settle();
  job.Advance(kSecond);
  EXPECT_TRUE(job.coordinator().over());
  for (const ControlMember* server : {&first, &second}) {
    EXPECT_TRUE(Says(server->job_ended, {"no session was ever opened"}));
    EXPECT_TRUE(server->failure.ok()) << server->failure;
  }
}

TEST(CoordinatorEndTest, NotToLingerDoesNotWaitForServersForEver) {
  ControlJob job({.num_servers = 1, .linger = kNever});
  job.coordinator().DoNotLinger(job.now());
  job.Advance(5 * kSecond);
  EXPECT_FALSE(job.coordinator().over());
  job.Advance(10 * kSecond);
  EXPECT_TRUE(job.coordinator().over());
}

TEST(CoordinatorEndTest, NotToLingerDoesNotWaitForServersThatHaveGone) {
  ControlJob job({.num_servers = 1, .linger = kNever});
  ControlMember& server = job.AddServer({});
  job.Settle();
  job.Kill(server);
  job.Settle();
  job.coordinator().DoNotLinger(job.now());
  job.Advance(kSecond);
  EXPECT_TRUE(job.coordinator().over());
}

TEST(CoordinatorEndTest, NotToLingerFailsASessionThatCannotStart) {
  ControlJob job({.num_servers = 1, .linger = kNever});
  ControlMember& early = job.AddWorker({.host = 1, .hosts = 2});
  job.Settle();
  job.coordinator().DoNotLinger(job.now());
  job.Settle();
  EXPECT_TRUE(Says(early.failure_text(), {"no session starts any more", "the process that has started"}));
  ControlMember& late = job.AddWorker({.host = 1, .hosts = 2});
  job.Settle();
  EXPECT_TRUE(Says(late.failure_text(), {"no session starts any more"}));
  ControlMember& server = job.AddServer({});
  job.Settle();
  job.Advance(kSecond);
  EXPECT_TRUE(job.coordinator().over());
  EXPECT_TRUE(server.failure.ok()) << server.failure;
}

TEST(CoordinatorEndTest, StoppingTellsAll) {
  ControlJob job;
  Trio trio(&job);
  job.coordinator().Stop(job.now(), absl::UnavailableError("the coordinator was ended by SIGTERM"));
  job.Settle();
  EXPECT_TRUE(Says(trio.a.failure_text(), {"SIGTERM"}));
  EXPECT_TRUE(Says(trio.server.job_ended, {"SIGTERM"}));
  EXPECT_TRUE(job.coordinator().over());
  EXPECT_EQ(job.coordinator().NextTimer(), kNever);
}

}  // namespace
}  // namespace byteps
