#include "server/membership/startup_disagreement.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace byteps {
namespace {

constexpr Time kStart = 1000 * kSecond;

// Sessions "a" and "b" gather; each has the workers that were added.
class StartupDisagreementTest : public testing::Test {
 protected:
  static control::Hello Worker(const std::string& session, int32_t host) {
    control::Hello hello;
    hello.set_role(control::WORKER);
    hello.set_session(session);
    hello.set_host_index(host);
    return hello;
  }

  static control::Hello Server() {
    control::Hello hello;
    hello.set_role(control::SERVER);
    return hello;
  }

  JobSession* Session(const std::string& name, SessionState state = SessionState::kGathering) {
    const uint64_t id = sessions_.size() + 1;
    sessions_[id] = std::make_unique<JobSession>();
    sessions_[id]->id = id;
    sessions_[id]->name = name;
    sessions_[id]->state = state;
    return sessions_[id].get();
  }

  void Add(JobSession* session, int32_t host) {
    JobMember& member = members_.emplace_back();
    member.hello = Worker(session->name, host);
    session->workers.push_back(&member);
  }

  absl::Status Tell(const std::string& session, int32_t host, Time now = kStart + kSecond) {
    return disagreement_.Tell(now, Worker(session, host));
  }

  const absl::Status why_ = absl::FailedPreconditionError("they disagree");
  std::deque<JobMember> members_;
  JobSessions sessions_;
  StartupDisagreement disagreement_;
};

TEST_F(StartupDisagreementTest, KnowsOfNothingAtFirst) { EXPECT_TRUE(Tell("a", 0).ok()); }

TEST_F(StartupDisagreementTest, AMemberThatComesLateIsTold) {
  Add(Session("a"), 0);
  disagreement_.Remember(kStart, why_, Worker("a", 1), sessions_);
  EXPECT_EQ(Tell("a", 2), why_);
  EXPECT_EQ(Tell("a", 3), why_);
}

TEST_F(StartupDisagreementTest, AMemberThatComesASecondTimeBeginsANewStart) {
  Add(Session("a"), 0);
  disagreement_.Remember(kStart, why_, Worker("a", 1), sessions_);
  EXPECT_EQ(Tell("a", 2), why_);
  // It was told, and comes again: then every member may.
  EXPECT_TRUE(Tell("a", 2).ok());
  EXPECT_TRUE(Tell("a", 3).ok());
}

TEST_F(StartupDisagreementTest, TheCulpritWasTold) {
  Add(Session("a"), 0);
  disagreement_.Remember(kStart, why_, Worker("a", 1), sessions_);
  EXPECT_TRUE(Tell("a", 1).ok());
}

TEST_F(StartupDisagreementTest, AMemberThatWasThereWasTold) {
  Add(Session("a"), 0);
  disagreement_.Remember(kStart, why_, Worker("a", 1), sessions_);
  EXPECT_TRUE(Tell("a", 0).ok());
}

TEST_F(StartupDisagreementTest, AMinuteLaterItIsAnotherStart) {
  Add(Session("a"), 0);
  disagreement_.Remember(kStart, why_, Worker("a", 1), sessions_);
  EXPECT_EQ(Tell("a", 2, kStart + 59 * kSecond), why_);
  EXPECT_TRUE(Tell("a", 3, kStart + 61 * kSecond).ok());
}

TEST_F(StartupDisagreementTest, AnotherSessionHasNothingToDoWithIt) {
  Add(Session("a"), 0);
  Session("b");
  disagreement_.Remember(kStart, why_, Worker("a", 1), sessions_);
  EXPECT_TRUE(Tell("b", 5).ok());
  // And does not make it forgotten.
  EXPECT_EQ(Tell("a", 2), why_);
}

TEST_F(StartupDisagreementTest, AServerConcernsAllSessions) {
  Add(Session("a"), 0);
  Add(Session("b"), 0);
  disagreement_.Remember(kStart, why_, Server(), sessions_);
  EXPECT_EQ(Tell("a", 1), why_);
  EXPECT_EQ(Tell("b", 1), why_);
}

TEST_F(StartupDisagreementTest, AServerThatAgreesEndsTheDisagreementOfServers) {
  Add(Session("a"), 0);
  disagreement_.Remember(kStart, why_, Server(), sessions_);
  disagreement_.OnServerAdded();
  EXPECT_TRUE(Tell("a", 1).ok());
}

TEST_F(StartupDisagreementTest, AServerThatAgreesDoesNotEndTheDisagreementOfWorkers) {
  Add(Session("a"), 0);
  disagreement_.Remember(kStart, why_, Worker("a", 1), sessions_);
  disagreement_.OnServerAdded();
  EXPECT_EQ(Tell("a", 2), why_);
}

TEST_F(StartupDisagreementTest, AStrangerToASessionThatRunsIsNotRemembered) {
  Add(Session("a", SessionState::kActive), 0);
  disagreement_.Remember(kStart, why_, Worker("a", 1), sessions_);
  EXPECT_TRUE(Tell("a", 2).ok());
}

}  // namespace
}  // namespace byteps
