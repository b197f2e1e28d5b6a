// The member's half of the control plane, spoken to by a coordinator made of sentences: no sockets, time by hand.
#include "core/control/control_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "core/base/auth.h"
#include "core/control/control_codec.h"
#include "core/wire/wire.h"

namespace byteps {
namespace {

using control::Envelope;

std::string Text(const absl::Status& status) { return std::string(status.message().data(), status.message().size()); }

// Writes down what the client says and asks for, one short line each.
class Recorder : public ControlHandler {
 public:
  void Send(const Envelope& envelope) override {
    events.push_back(std::string("send ") + EnvelopeName(envelope));
    sent.push_back(envelope);
  }
  void OnWelcome(const control::Welcome& welcome) override {
    events.push_back("welcome " + std::to_string(welcome.member()));
  }
  void OnWaiting(const std::vector<std::string>& missing) override {
    events.push_back("waiting " + std::to_string(missing.size()));
  }
  void OnEpoch(const control::Epoch& epoch) override {
    events.push_back("epoch " + std::to_string(epoch.session_id()));
  }
  void OnAssignment(const control::Assignment& assignment) override {
    events.push_back("assignment " + assignment.tensor().name());
  }
  void OnBarrier(const std::string& name, uint64_t sequence, const absl::Status& status) override {
    events.push_back("barrier " + name + " " + std::to_string(sequence) + (status.ok() ? " ok" : " failed"));
    last = status;
  }
  void OnGoodbye(const absl::Status& status) override {
    events.push_back(status.ok() ? "goodbye ok" : "goodbye failed");
    last = status;
  }
  void OnFailure(const absl::Status& fatal) override {
    events.push_back("failure");
    last = fatal;
  }
  void OnSessionEnded(uint64_t session, const absl::Status& why) override {
    events.push_back("ended " + std::to_string(session) + (why.ok() ? " ok" : " failed"));
    last = why;
  }
  void OnJobEnded(const std::string& reason) override { events.push_back("job ended: " + reason); }

  std::vector<std::string> Take() { return std::exchange(events, {}); }

  std::vector<std::string> events;
  std::deque<Envelope> sent;
  absl::Status last;
};

using Events = std::vector<std::string>;

class ControlClientTest : public testing::Test {
 protected:
  ControlClientTest() { options_.hello.set_role(control::WORKER); }

  void Make() {
    options_.hello.set_job("job");
    options_.coordinator = "10.0.0.1:9000";
    client_.emplace(options_, &recorder_, now_);
  }

  Envelope Challenge() {
    Envelope envelope;
    envelope.mutable_challenge()->set_nonce(std::string(16, 'c'));
    envelope.mutable_challenge()->set_control_version(kControlVersion);
    envelope.mutable_challenge()->set_wire_version(wire::kVersion);
    envelope.mutable_challenge()->set_release("0.0.1");
    envelope.mutable_challenge()->set_token_required(!options_.token.empty());
    return envelope;
  }
  Envelope Welcome(const std::string& token) {
    Envelope envelope;
    envelope.mutable_welcome()->set_proof(
        CoordinatorProof(token, std::string(16, 'c'), recorder_.sent.back().hello().nonce()));
    envelope.mutable_welcome()->set_member(3);
    envelope.mutable_welcome()->set_session_id(17);
    envelope.mutable_welcome()->set_heartbeat_ms(1000);
    envelope.mutable_welcome()->set_peer_timeout_ms(10000);
    return envelope;
  }
  Envelope Epoch(uint64_t session = 17) {
    Envelope envelope;
    envelope.mutable_epoch()->set_session_id(session);
    return envelope;
  }
  void Frame(const Envelope& envelope) { client_->OnFrame(now_, envelope); }

  void Register() {
    Make();
    client_->OnConnected(now_);
    Frame(Challenge());
    Frame(Welcome(options_.token));
  }
  void Activate() {
    Register();
    Frame(Epoch());
    recorder_.Take();
    recorder_.sent.clear();
    ASSERT_EQ(client_->state(), ControlState::kActive);
  }
  // Advances the time, ticking whenever the client asks to.
  void Advance(Time by) {
    const Time end = now_ + by;
    while (client_->NextTimer() <= end) {
      now_ = std::max(now_, client_->NextTimer());
      const Time before = client_->NextTimer();
      client_->Tick(now_);
      ASSERT_GT(client_->NextTimer(), before) << "the timer does not move: " << client_->Describe();
    }
    now_ = end;
  }
  Events WithoutHeartbeats() {
    Events events = recorder_.Take();
    events.erase(std::remove(events.begin(), events.end(), "send heartbeat"), events.end());
    return events;
  }

  Time now_ = 1000 * kSecond;
  ControlClientOptions options_;
  Recorder recorder_;
  std::optional<ControlClient> client_;
};

TEST_F(ControlClientTest, RegistersAndStarts) {
  options_.token = "secret";
  Make();
  EXPECT_TRUE(client_->WantsConnection());
  client_->OnConnected(now_);
  EXPECT_FALSE(client_->WantsConnection());
  Frame(Challenge());
  ASSERT_EQ(recorder_.Take(), (Events{"send hello"}));
  const control::Hello& hello = recorder_.sent.back().hello();
  EXPECT_EQ(hello.control_version(), kControlVersion);
  EXPECT_EQ(hello.wire_version(), wire::kVersion);
  EXPECT_EQ(hello.nonce().size(), kNonceBytes);
  EXPECT_EQ(hello.proof(), MemberProof("secret", std::string(16, 'c'), hello.nonce(), control::WORKER, "job", ""));
  Frame(Welcome("secret"));
  EXPECT_EQ(client_->state(), ControlState::kGathering);
  Envelope waiting;
  waiting.mutable_waiting()->add_missing("server 1 of 1");
  Frame(waiting);
  EXPECT_EQ(client_->missing(), (Events{"server 1 of 1"}));
  Frame(Epoch());
  EXPECT_EQ(recorder_.Take(), (Events{"welcome 3", "waiting 1", "epoch 17"}));
  EXPECT_EQ(client_->Describe(), "active (member 3, session 17)");
}

TEST_F(ControlClientTest, EveryStageOfTheStartHasADeadlineThatNamesTheCoordinator) {
  struct Case {
    ControlState state;
    const char* words;
  };
  for (const Case& each :
       {Case{ControlState::kConnecting, "Connection refused"}, Case{ControlState::kGreeting, "does not answer"},
        Case{ControlState::kProving, "does not answer"},
        Case{ControlState::kGathering, "worker host 1 local rank 0, server 1 of 2"}}) {
    options_.start_timeout = 12500 * kMillisecond;
    options_.start_waited = 2500 * kMillisecond;
    Make();
    client_->OnClosed(now_, absl::UnavailableError("10.0.0.1:9000: Connection refused"));
    if (each.state > ControlState::kConnecting) client_->OnConnected(now_);
    if (each.state > ControlState::kGreeting) Frame(Challenge());
    if (each.state > ControlState::kProving) {
      Envelope welcome = Welcome("");
      welcome.mutable_welcome()->set_peer_timeout_ms(0);
      Frame(welcome);
      Envelope waiting;
      waiting.mutable_waiting()->add_missing("worker host 1 local rank 0");
      waiting.mutable_waiting()->add_missing("server 1 of 2");
      Frame(waiting);
    }
    ASSERT_EQ(client_->state(), each.state);
    Advance(12499 * kMillisecond);
    EXPECT_NE(client_->state(), ControlState::kFailed);
    Advance(kMillisecond);
    EXPECT_EQ(client_->state(), ControlState::kFailed);
    EXPECT_EQ(recorder_.last.code(), absl::StatusCode::kDeadlineExceeded);
    for (const char* words : {"within 15 s", "10.0.0.1:9000", each.words}) {
      EXPECT_NE(Text(recorder_.last).find(words), std::string::npos) << words << " in " << recorder_.last;
    }
    EXPECT_EQ(client_->NextTimer(), kNever);
  }
}

TEST_F(ControlClientTest, TriesAgainUntilTheCoordinatorIsThere) {
  Make();
  client_->OnClosed(now_, absl::UnavailableError("refused"));
  EXPECT_TRUE(client_->WantsConnection());
  client_->OnConnected(now_);
  client_->OnClosed(now_, absl::UnavailableError("reset"));  // accepted by a listener that ended
  EXPECT_TRUE(client_->WantsConnection());
  client_->OnConnected(now_);
  Frame(Challenge());
  client_->OnClosed(now_, absl::UnavailableError("reset"));
  EXPECT_TRUE(client_->WantsConnection());
  client_->OnConnected(now_);
  Frame(Challenge());
  Frame(Welcome(""));
  EXPECT_EQ(client_->state(), ControlState::kGathering);
  EXPECT_EQ(WithoutHeartbeats(), (Events{"send hello", "send hello", "welcome 3"}));
}

TEST_F(ControlClientTest, WhatIsNoCoordinatorIsNotTriedAgain) {
  Make();
  client_->OnConnected(now_);
  client_->OnClosed(now_, absl::FailedPreconditionError("a role of another version: it speaks 7"));
  EXPECT_EQ(recorder_.Take(), (Events{"failure"}));
  EXPECT_EQ(recorder_.last.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(client_->WantsConnection());
}

TEST_F(ControlClientTest, RefusesAnotherVersionNamingBoth) {
  Make();
  client_->OnConnected(now_);
  Envelope challenge = Challenge();
  challenge.mutable_challenge()->set_wire_version(99);
  Frame(challenge);
  // It says who it is: so those that wait for it hear of it.
  EXPECT_EQ(client_->state(), ControlState::kProving);
  ASSERT_EQ(recorder_.sent.size(), 1u);
  EXPECT_EQ(recorder_.sent.front().hello().wire_version(), wire::kVersion);
  client_->OnClosed(now_, absl::UnavailableError("closed"));
  EXPECT_EQ(recorder_.last.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Text(recorder_.last).find("BytePS 0.0.1"), std::string::npos) << recorder_.last;
  EXPECT_NE(Text(recorder_.last).find("99"), std::string::npos) << recorder_.last;
}

TEST_F(ControlClientTest, ACoordinatorOfAnotherVersionHasTheLastWord) {
  Envelope challenge = Challenge(), failure;
  challenge.mutable_challenge()->set_control_version(99);
  for (const bool understood : {true, false}) {
    Make();
    client_->OnConnected(now_);
    Frame(challenge);
    failure.mutable_failure()->set_code(understood ? BPS_FAILED_PRECONDITION : BPS_UNAUTHENTICATED);
    failure.mutable_failure()->set_error("what everybody hears");
    Frame(failure);
    EXPECT_EQ(client_->state(), ControlState::kFailed);
    EXPECT_EQ(Text(recorder_.last) == "what everybody hears", understood) << recorder_.last;
  }
}

TEST_F(ControlClientTest, ACoordinatorOfAnotherVersionThatSaysNothingIsNotWaitedFor) {
  Make();
  client_->OnConnected(now_);
  Envelope challenge = Challenge();
  challenge.mutable_challenge()->set_control_version(99);
  Frame(challenge);
  EXPECT_EQ(client_->NextTimer(), now_ + 10 * kSecond);
  now_ += 10 * kSecond;
  client_->Tick(now_);
  EXPECT_NE(Text(recorder_.last).find("99"), std::string::npos) << recorder_.last;
}

TEST_F(ControlClientTest, TokensMustBeOnBothSides) {
  Make();
  client_->OnConnected(now_);
  Envelope challenge = Challenge();
  challenge.mutable_challenge()->set_token_required(true);
  Frame(challenge);
  EXPECT_EQ(recorder_.last.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_NE(Text(recorder_.last).find("BYTEPS_JOB_TOKEN"), std::string::npos);

  options_.token = "secret";
  Make();
  client_->OnConnected(now_);
  challenge.mutable_challenge()->set_token_required(false);
  Frame(challenge);
  EXPECT_EQ(client_->state(), ControlState::kFailed);
  EXPECT_EQ(recorder_.last.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(recorder_.sent.empty()) << "a proof was given to a coordinator that cannot check it";

  Make();
  client_->OnConnected(now_);
  Frame(Challenge());
  Frame(Welcome("another"));
  EXPECT_EQ(client_->state(), ControlState::kFailed);
  EXPECT_EQ(recorder_.last.code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(ControlClientTest, ARefusalIsTheReason) {
  Make();
  client_->OnConnected(now_);
  Frame(Challenge());
  Envelope failure;
  failure.mutable_failure()->set_code(BPS_ALREADY_EXISTS);
  failure.mutable_failure()->set_error("this place is taken");
  Frame(failure);
  EXPECT_EQ(recorder_.last, absl::AlreadyExistsError("this place is taken"));
  recorder_.Take();
  client_->OnClosed(now_, absl::UnavailableError("closed"));
  client_->Fail(now_, absl::CancelledError("me too"));
  Frame(failure);
  Advance(100 * kSecond);
  EXPECT_EQ(recorder_.Take(), Events{}) << "something was said after the first failure";
}

TEST_F(ControlClientTest, WhereTheTokenIsAnotherIsTold) {
  Make();
  client_->OnConnected(now_);
  Frame(Challenge());
  Envelope failure;
  failure.mutable_failure()->set_code(BPS_UNAUTHENTICATED);
  failure.mutable_failure()->set_error("another token");
  Frame(failure);
  EXPECT_EQ(recorder_.last, absl::UnauthenticatedError("coordinator 10.0.0.1:9000: another token"));
}

TEST_F(ControlClientTest, LosingTheCoordinatorIsFatalOnceRegistered) {
  for (const bool active : {false, true}) {
    Register();
    if (active) Frame(Epoch());
    client_->OnClosed(now_, absl::UnavailableError("the other side has closed the connection"));
    EXPECT_EQ(client_->state(), ControlState::kFailed);
    EXPECT_EQ(recorder_.last.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(Text(recorder_.last).find("10.0.0.1:9000"), std::string::npos);
  }
}

TEST_F(ControlClientTest, HeartbeatsAreSentAndSilenceIsFatal) {
  Activate();
  Advance(9 * kSecond);
  EXPECT_EQ(recorder_.Take().size(), 9u);
  Envelope heartbeat;
  heartbeat.mutable_heartbeat()->set_reply(true);
  Frame(heartbeat);
  Advance(9999 * kMillisecond);
  EXPECT_EQ(client_->state(), ControlState::kActive);
  Advance(kMillisecond);
  EXPECT_EQ(client_->state(), ControlState::kFailed);
  EXPECT_NE(Text(recorder_.last).find("silent for 10 s"), std::string::npos) << recorder_.last;
  EXPECT_NE(Text(recorder_.last).find("10.0.0.1:9000"), std::string::npos) << recorder_.last;
  // It may hear all the same, and tells the others.
  ASSERT_EQ(recorder_.sent.back().message_case(), Envelope::kFailure);
  EXPECT_NE(recorder_.sent.back().failure().error().find("silent for 10 s"), std::string::npos);
}

TEST_F(ControlClientTest, WhatIsWrongOnThisSideIsSaidOfACoordinatorThatIsGone) {
  std::string trouble;
  options_.own_trouble = [&] { return trouble; };
  for (const bool closed : {false, true}) {
    for (const char* wrong : {"", "this host has lost its own address"}) {
      trouble = wrong;
      Activate();
      if (closed) {
        client_->OnClosed(now_, absl::UnavailableError("no route"));
      } else {
        Advance(10 * kSecond);
      }
      ASSERT_EQ(client_->state(), ControlState::kFailed);
      EXPECT_EQ(Text(recorder_.last).find("lost its own address") != std::string::npos, !trouble.empty())
          << recorder_.last;
      EXPECT_EQ(Text(recorder_.last).find("its host") != std::string::npos, trouble.empty()) << recorder_.last;
    }
  }
}

TEST_F(ControlClientTest, DeclaresAreBatched) {
  Register();
  recorder_.Take();
  recorder_.sent.clear();
  std::vector<control::TensorSpec> specs(3);
  client_->Declare(now_, specs);  // before the start: kept
  client_->Tick(now_);
  EXPECT_EQ(recorder_.Take(), Events{});
  Frame(Epoch());
  client_->Declare(now_, specs);
  EXPECT_LE(client_->NextTimer(), now_);
  client_->Tick(now_);
  EXPECT_EQ(recorder_.Take(), (Events{"epoch 17", "send declare request"}));
  EXPECT_EQ(recorder_.sent.back().declare_request().tensors_size(), 6);
  EXPECT_GT(client_->NextTimer(), now_);

  client_->Declare(now_, std::vector<control::TensorSpec>(2500));
  client_->Tick(now_);
  EXPECT_EQ(recorder_.Take(), (Events{"send declare request", "send declare request", "send declare request"}));

  Envelope reply;
  reply.mutable_declare_reply()->add_assignments()->mutable_tensor()->set_name("a");
  reply.mutable_declare_reply()->add_assignments()->mutable_tensor()->set_name("b");
  Frame(reply);
  EXPECT_EQ(recorder_.Take(), (Events{"assignment a", "assignment b"}));
}

TEST_F(ControlClientTest, BarriersAreCountedByNameAndEndByThemselvesAtLast) {
  Activate();
  EXPECT_EQ(client_->Barrier(now_, "x", 3 * kSecond), 1u);
  EXPECT_EQ(client_->Barrier(now_, "y", 100 * kSecond), 1u);
  EXPECT_EQ(client_->Barrier(now_, "x", 100 * kSecond), 2u);
  EXPECT_EQ(recorder_.sent.back().barrier_request().sequence(), 2u);
  EXPECT_EQ(recorder_.sent.back().barrier_request().timeout_ms(), 100000);
  Envelope reply;
  reply.mutable_barrier_reply()->set_name("x");
  reply.mutable_barrier_reply()->set_sequence(2);
  Frame(reply);
  reply.mutable_barrier_reply()->set_name("y");
  reply.mutable_barrier_reply()->set_sequence(1);
  reply.mutable_barrier_reply()->set_code(BPS_DEADLINE_EXCEEDED);
  reply.mutable_barrier_reply()->set_error("rank 1 did not come");
  Frame(reply);
  EXPECT_EQ(recorder_.last, absl::DeadlineExceededError("rank 1 did not come"));
  Advance(6 * kSecond);
  EXPECT_EQ(WithoutHeartbeats(), (Events{"send barrier request", "send barrier request", "send barrier request",
                                         "barrier x 2 ok", "barrier y 1 failed", "barrier x 1 failed"}));
  EXPECT_EQ(recorder_.last.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(client_->state(), ControlState::kActive);
}

// The coordinator answers no barrier of one that has left, so a member that still waits in one is told by the client.
TEST_F(ControlClientTest, ABarrierThatNoneReachedEndsWithTheGoodbye) {
  Activate();
  client_->Barrier(now_, "never", kNever);
  client_->Goodbye(now_, 2 * kSecond);
  recorder_.Take();
  Envelope reply;
  reply.mutable_goodbye_reply()->set_code(BPS_DEADLINE_EXCEEDED);
  Frame(reply);
  EXPECT_EQ(recorder_.Take(), (Events{"barrier never 1 failed", "goodbye failed"}));
  // Nothing is left that would have to be looked at again and again.
  EXPECT_GT(client_->NextTimer(), now_);
}

TEST_F(ControlClientTest, GoodbyeEndsInOrderOrAtItsDeadline) {
  Activate();
  client_->Declare(now_, std::vector<control::TensorSpec>(1));
  client_->Goodbye(now_, 2 * kSecond);
  EXPECT_EQ(recorder_.sent.back().goodbye().timeout_ms(), 2000);
  Envelope reply;
  reply.mutable_goodbye_reply();
  Frame(reply);
  EXPECT_EQ(recorder_.Take(), (Events{"send declare request", "send goodbye", "goodbye ok"}));
  EXPECT_EQ(client_->state(), ControlState::kLeft);
  client_->OnClosed(now_, absl::UnavailableError("closed"));
  EXPECT_EQ(recorder_.Take(), Events{});

  Activate();
  client_->Goodbye(now_, 2 * kSecond);
  Advance(5 * kSecond);
  EXPECT_EQ(WithoutHeartbeats(), (Events{"send goodbye", "goodbye failed"}));
  EXPECT_EQ(recorder_.last.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ControlClientTest, GivingUpTellsTheCoordinatorOnce) {
  Activate();
  client_->Fail(now_, absl::DataLossError("disk"));
  client_->Fail(now_, absl::DataLossError("again"));
  EXPECT_EQ(recorder_.Take(), (Events{"send failure"}));
  EXPECT_EQ(recorder_.sent.back().failure().code(), BPS_DATA_LOSS);
  EXPECT_EQ(recorder_.sent.back().failure().error(), "disk");
}

TEST_F(ControlClientTest, AServerServesManySessions) {
  options_.hello.set_role(control::SERVER);
  Register();
  EXPECT_EQ(client_->state(), ControlState::kActive);
  Frame(Epoch(5));
  Frame(Epoch(6));
  Envelope failure;
  failure.mutable_failure()->set_code(BPS_UNAVAILABLE);
  failure.mutable_failure()->set_error("worker 1 died");
  failure.mutable_failure()->set_session_id(5);
  Frame(failure);
  Envelope ended;
  ended.mutable_session_ended()->set_session_id(6);
  Frame(ended);
  Envelope over;
  over.mutable_job_ended()->set_reason("done");
  Frame(over);
  EXPECT_EQ(recorder_.Take(), (Events{"send hello", "welcome 3", "epoch 5", "epoch 6", "ended 5 failed", "ended 6 ok",
                                      "job ended: done"}));
  EXPECT_EQ(client_->state(), ControlState::kOver);
  client_->OnClosed(now_, absl::UnavailableError("closed"));
  EXPECT_EQ(recorder_.Take(), Events{});
}

TEST_F(ControlClientTest, WhatComesOutOfTurnIsFatal) {
  const auto message = [](auto fill) {
    Envelope envelope;
    fill(envelope);
    return envelope;
  };
  const std::vector<Envelope> wrong = {
      message([](Envelope& e) { e.mutable_hello(); }),
      message([](Envelope& e) { e.mutable_challenge(); }),
      message([](Envelope& e) { e.mutable_welcome(); }),
      message([](Envelope& e) { e.mutable_epoch(); }),
      message([](Envelope& e) { e.mutable_declare_request(); }),
      message([](Envelope& e) { e.mutable_goodbye_reply(); }),
      message([](Envelope& e) { e.mutable_session_ended(); }),
      message([](Envelope&) {}),
  };
  for (const Envelope& envelope : wrong) {
    Activate();
    Frame(envelope);
    EXPECT_EQ(recorder_.Take(), (Events{"failure"})) << EnvelopeName(envelope);
    EXPECT_EQ(recorder_.last.code(), absl::StatusCode::kInternal);
  }
  // Another session's membership is not ours.
  Register();
  Frame(Epoch(18));
  EXPECT_EQ(client_->state(), ControlState::kFailed);
}

TEST_F(ControlClientTest, StatesHaveNames) {
  for (int state = 0; state <= static_cast<int>(ControlState::kFailed); ++state) {
    EXPECT_STRNE(ControlStateName(static_cast<ControlState>(state)), "unknown");
  }
}

}  // namespace
}  // namespace byteps
