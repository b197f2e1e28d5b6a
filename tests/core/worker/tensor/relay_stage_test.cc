// A relay stage hands on every call, both ways: a call that it swallowed would be missing in one job of a thousand
// only.
#include "core/worker/tensor/relay_stage.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/worker/tensor/operation.h"

namespace byteps {
namespace {

using Calls = std::vector<std::string>;

class Relay : public RelayStage {
 public:
  const char* name() const override { return "relay"; }
};

// Both ends of a chain: the stage behind the relay, and the sink before it.
class Recorder : public Stage, public StageSink {
 public:
  const char* name() const override { return "recorder"; }
  void Begin(Time, Operation*, const Areas&, PartRange) override { calls.push_back("Begin"); }
  void Push(Time, Operation*, uint32_t part, const Payload&, const Payload&) override {
    calls.push_back("Push " + std::to_string(part));
  }
  uint32_t PartAt(const Operation&, uint32_t turn) const override { return 9 - turn; }
  void Abort(Time, Operation*, const absl::Status& why) override { Add("Abort ", why); }
  void Withdraw(Time, Operation*, const absl::Status& why) override { Add("Withdraw ", why); }
  void Drop(Operation*) override { calls.push_back("Drop"); }
  void Stop() override { calls.push_back("Stop"); }
  bool Run(Time) override { return false; }
  Time NextTimer() const override { return kNever; }
  std::string WhoIsMissing(const Operation&) const override { return "server 3"; }

  void OnPartHome(Operation*, uint32_t part, const Payload&) override {
    calls.push_back("OnPartHome " + std::to_string(part));
  }
  void OnGivingUp(Operation*, const absl::Status& why, bool told) override {
    Add(told ? "OnGivingUp, told, " : "OnGivingUp ", why);
  }
  void OnEnqueued(Operation*) override { calls.push_back("OnEnqueued"); }
  void OnStageDone(Operation*, const absl::Status& outcome) override { Add("OnStageDone ", outcome); }
  void OnStageFatal(const absl::Status& why, uint32_t member) override {
    Add("OnStageFatal " + std::to_string(member) + " ", why);
  }
  // The sink that the relay has given it.
  StageSink* sink() const { return sink_; }

  Calls calls;

 private:
  void Add(const std::string& call, const absl::Status& status) {
    calls.push_back(call + std::string(status.message()));
  }
};

class RelayStageTest : public testing::Test {
 protected:
  RelayStageTest() {
    relay_.UseNext(&next_);
    relay_.UseSink(&before_);
  }
  Recorder next_, before_;
  Relay relay_;
  Operation operation_;
};

TEST_F(RelayStageTest, CallsGoToTheNextStage) {
  relay_.Begin(1, &operation_, {}, {0, 2});
  relay_.Push(2, &operation_, 1, {}, {});
  relay_.Abort(3, &operation_, absl::CancelledError("a"));
  relay_.Withdraw(4, &operation_, absl::CancelledError("b"));
  relay_.Drop(&operation_);
  EXPECT_EQ(next_.calls, (Calls{"Begin", "Push 1", "Abort a", "Withdraw b", "Drop"}));
  EXPECT_EQ(relay_.PartAt(operation_, 2), 7u);
  EXPECT_EQ(relay_.WhoIsMissing(operation_), "server 3");
  // The engine stops and runs every stage by itself.
  relay_.Stop();
  EXPECT_EQ(next_.calls.size(), 5u);
  EXPECT_TRUE(before_.calls.empty());
}

TEST_F(RelayStageTest, EventsGoToTheStageBefore) {
  ASSERT_EQ(next_.sink(), static_cast<StageSink*>(&relay_));
  next_.sink()->OnPartHome(&operation_, 1, {});
  next_.sink()->OnGivingUp(&operation_, absl::AbortedError("a"), true);
  next_.sink()->OnGivingUp(&operation_, absl::AbortedError("b"), false);
  next_.sink()->OnEnqueued(&operation_);
  next_.sink()->OnStageDone(&operation_, absl::AbortedError("c"));
  next_.sink()->OnStageFatal(absl::UnavailableError("d"), 4);
  EXPECT_EQ(before_.calls, (Calls{"OnPartHome 1", "OnGivingUp, told, a", "OnGivingUp b", "OnEnqueued", "OnStageDone c",
                                  "OnStageFatal 4 d"}));
  EXPECT_TRUE(next_.calls.empty());
}

}  // namespace
}  // namespace byteps
