// An engine of one worker: nothing to reduce with.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "core/base/log.h"
#include "core/worker/engine/engine.h"

namespace byteps {
namespace {

class AloneStageTest : public testing::Test, public EngineHandler {
 protected:
  AloneStageTest() { engine_.UseAlone(); }
  void OnDeclare(const std::vector<control::TensorSpec>&) override { FAIL() << "nobody to tell"; }
  void OnFailed(const absl::Status& why) override { FAIL() << why; }

  std::shared_ptr<Request> Run(Submission asked) {
    auto request = std::make_shared<Request>(nullptr, nullptr);
    asked.request = request;
    asked.timeout = kSecond;
    EXPECT_TRUE(engine_.Admit(asked).ok());
    engine_.Submit(0, asked);
    while (engine_.Poll(0)) {
    }
    for (Completion& completion : engine_.TakeCompletions()) completion.Run();
    return request;
  }

  Logger log_{LogOptions{}};
  Engine engine_{EngineOptions{}, this, &log_};
};

TEST_F(AloneStageTest, TheReductionOverOneWorkerIsItsInput) {
  for (size_t count : {size_t{1}, size_t{1000}, size_t{1000000}}) {
    std::vector<float> input(count);
    std::iota(input.begin(), input.end(), 3.0f);
    std::vector<float> output(count);
    const int64_t shape[] = {static_cast<int64_t>(count)};
    Submission asked;
    asked.tensor = *engine_.tensors().Declare("w", BPS_FLOAT32, shape);
    asked.input = reinterpret_cast<const std::byte*>(input.data());
    asked.output = reinterpret_cast<std::byte*>(output.data());
    asked.reduction = BPS_AVERAGE;
    auto request = Run(asked);
    ASSERT_TRUE(request->ended());
    EXPECT_TRUE(request->outcome().ok()) << request->outcome();
    EXPECT_EQ(output, input);
  }
  EXPECT_EQ(engine_.DescribeStages(), "alone");
}

TEST_F(AloneStageTest, RefusesWhatMakesNoSense) {
  const int64_t shape[] = {4};
  std::vector<float> values(8);
  Submission asked;
  EXPECT_EQ(engine_.Admit(asked).code(), absl::StatusCode::kInvalidArgument);
  asked.tensor = *engine_.tensors().Declare("w", BPS_FLOAT32, shape);
  EXPECT_EQ(engine_.Admit(asked).code(), absl::StatusCode::kInvalidArgument) << "NULL";
  asked.input = reinterpret_cast<const std::byte*>(values.data());
  asked.output = reinterpret_cast<std::byte*>(values.data() + 1);
  EXPECT_EQ(engine_.Admit(asked).code(), absl::StatusCode::kInvalidArgument) << "overlap";
  asked.output = reinterpret_cast<std::byte*>(values.data()) + 1;
  EXPECT_EQ(engine_.Admit(asked).code(), absl::StatusCode::kInvalidArgument) << "alignment";
  asked.output = reinterpret_cast<std::byte*>(values.data() + 4);
  asked.reduction = 77;
  EXPECT_EQ(engine_.Admit(asked).code(), absl::StatusCode::kInvalidArgument) << "operation";
  asked.reduction = BPS_SUM;
  asked.kind = wire::Operation::kBroadcast;
  asked.root = 1;
  EXPECT_EQ(engine_.Admit(asked).code(), absl::StatusCode::kInvalidArgument) << "root";
  asked.root = 0;
  EXPECT_TRUE(engine_.Admit(asked).ok());
  EXPECT_EQ(engine_.Admit(asked).code(), absl::StatusCode::kAlreadyExists) << "in flight";
  TensorTable other;
  asked.tensor = *other.Declare("w", BPS_FLOAT32, shape);
  EXPECT_EQ(engine_.Admit(asked).code(), absl::StatusCode::kInvalidArgument) << "of another session";
}

}  // namespace
}  // namespace byteps
