// Parts that a stage hands on when their operation is already being given up, or is over: the servers are not told of
// them any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/time.h"
#include "core/worker/tensor/relay_stage.h"
#include "tests/core/worker/engine/engine_job.h"

namespace byteps {
namespace {

// Keeps all parts but the first until it is let go; a codec with a thread of its own would find out as late.
class HoldingStage : public RelayStage {
 public:
  const char* name() const override { return "holding"; }
  void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override {
    if (part == 0) return next()->Push(now, operation, part, source, target);
    kept_.push_back({operation, part, source, target});
  }
  size_t kept() const { return kept_.size(); }
  void LetGo(Time now) {
    for (const Part& part : std::exchange(kept_, {})) {
      next()->Push(now, part.operation, part.part, part.source, part.target);
    }
  }

 private:
  struct Part {
    Operation* operation;
    uint32_t part;
    Payload source, target;
  };
  std::vector<Part> kept_;
};

TEST(LatePartTest, OfAnOperationThatIsBeingGivenUpIsNotSent) {
  EngineJobOptions options;
  options.server.silent = true;
  EngineJob job(options);
  auto stage = std::make_unique<HoldingStage>();
  HoldingStage* const holding = stage.get();
  job.workers[0]->engine->UseStage("", std::move(stage));
  ASSERT_TRUE(job.Connect());
  std::vector<float> input(1000, 1), output(1000);
  const std::shared_ptr<Request> request = job.PushPull(0, "w", input, &output);
  const auto pushes = [&] {
    const auto is_push = [](const auto& record) { return record.first == wire::RecordType::kPush; };
    return std::count_if(job.servers[0]->seen.begin(), job.servers[0]->seen.end(), is_push);
  };
  ASSERT_TRUE(job.RunUntil([&] { return holding->kept() == 3 && pushes() == 1; }));
  job.workers[0]->engine->Cancel(job.fabric.now(), request.get());
  // What the server has of the first part is released when it says so.
  ASSERT_FALSE(request->ended());
  holding->LetGo(job.fabric.now());
  ASSERT_TRUE(job.RunUntil([&] { return request->ended(); }));
  EXPECT_EQ(request->outcome().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(pushes(), 1);
  // The session goes on.
  job.servers[0]->script.silent = false;
  const std::shared_ptr<Request> next = job.PushPull(0, "w", input, &output);
  ASSERT_TRUE(job.RunUntil([&] {
    holding->LetGo(job.fabric.now());
    return next->ended();
  }));
  EXPECT_TRUE(next->outcome().ok()) << next->outcome();
  EXPECT_EQ(output, input);
}

}  // namespace
}  // namespace byteps
