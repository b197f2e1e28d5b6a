// What happens to the memory of an operation that goes on when the wait for it has ended: with a library of this test's
// own, whose operations end when the test says so.

#include "frameworks/common/gpu_operation.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/library.h"
#include "frameworks/common/operation.h"

namespace byteps::binding {
namespace {

// The one operation, as the library sees it.
struct Operation {
  int32_t state = BPS_REQUEST_ACTIVE;
  int32_t waits_until_its_end = 0;  // so many end before the operation does
  bool cancelled = false;
  std::vector<int64_t> timeouts;              // of the waits
  int32_t state_when_freed = -1;              // -1: not freed
  int32_t on_stream = BPS_DEADLINE_EXCEEDED;  // what waiting on the stream answers
};

Operation operation;

// Statuses are codes; requests and sessions are not looked into.
bps_status* StatusOf(int32_t code) { return reinterpret_cast<bps_status*>(static_cast<intptr_t>(code)); }

template <typename T>
T* Handle() {
  return reinterpret_cast<T*>(&operation);
}

std::shared_ptr<Library> LibraryOfTheTest() {
  auto library = std::make_shared<Library>();
  library->bps_status_code = [](const bps_status* status) noexcept {
    return static_cast<int32_t>(reinterpret_cast<intptr_t>(status));
  };
  library->bps_status_message = [](const bps_status*) noexcept { return "an error of the test"; };
  library->bps_status_free = [](bps_status*) noexcept {};
  library->bps_declare = [](bps_session*, const bps_declare_args*, bps_tensor** tensor) noexcept {
    *tensor = Handle<bps_tensor>();
    return StatusOf(BPS_OK);
  };
  library->bps_push_pull = [](bps_session*, const bps_push_pull_args*, bps_request** request) noexcept {
    *request = Handle<bps_request>();
    return StatusOf(BPS_OK);
  };
  library->bps_wait_on_stream = [](bps_request*, void*, int64_t) noexcept { return StatusOf(operation.on_stream); };
  library->bps_request_state = [](const bps_request*) noexcept { return operation.state; };
  library->bps_cancel = [](bps_request*) noexcept {
    operation.cancelled = true;
    return StatusOf(BPS_OK);
  };
  library->bps_wait = [](bps_request*, int64_t timeout_ms) noexcept {
    operation.timeouts.push_back(timeout_ms);
    if (operation.waits_until_its_end-- > 0) return StatusOf(BPS_DEADLINE_EXCEEDED);
    operation.state = BPS_REQUEST_FAILED;
    return StatusOf(BPS_CANCELLED);
  };
  library->bps_request_free = [](bps_request*) noexcept { operation.state_when_freed = operation.state; };
  return library;
}

class GpuOperationTest : public testing::Test {
 protected:
  void SetUp() override {
    operation = {};
    session_.Attach(LibraryOfTheTest(), Handle<bps_session>());
  }

  Outcome Run() {
    const int64_t shape = 4;
    float memory[4] = {};
    const TensorSpec tensor{"x", BPS_FLOAT32, &shape, 1};
    return PushPullOnGpu(session_, tensor, {0, nullptr}, memory, memory, BPS_SUM, 0);
  }

  AttachedSession session_;
};

TEST_F(GpuOperationTest, MemoryIsKeptUntilTheOperationHasEnded) {
  operation.waits_until_its_end = 3;
  EXPECT_EQ(Run().code, BPS_DEADLINE_EXCEEDED);
  EXPECT_TRUE(operation.cancelled);
  EXPECT_EQ(operation.state_when_freed, BPS_REQUEST_FAILED);
  ASSERT_EQ(operation.timeouts.size(), 4);
  for (const int64_t timeout : operation.timeouts) EXPECT_GT(timeout, 0) << "0 is the deadline that is over";
}

TEST_F(GpuOperationTest, WaitsForCopiesOfTheResult) {
  operation.state = BPS_REQUEST_ENQUEUED;
  operation.waits_until_its_end = 1;
  operation.on_stream = BPS_INTERNAL;
  EXPECT_EQ(Run().code, BPS_INTERNAL);
  EXPECT_EQ(operation.state_when_freed, BPS_REQUEST_FAILED);
}

TEST_F(GpuOperationTest, AnOperationThatHasFailedIsNotWaitedFor) {
  operation.state = BPS_REQUEST_FAILED;
  operation.on_stream = BPS_ABORTED;
  EXPECT_EQ(Run().code, BPS_ABORTED);
  EXPECT_TRUE(operation.timeouts.empty());
}

TEST_F(GpuOperationTest, ASuccessIsNotCancelled) {
  operation.on_stream = BPS_OK;
  EXPECT_TRUE(Run().ok());
  EXPECT_FALSE(operation.cancelled);
  EXPECT_NE(operation.state_when_freed, -1);
}

}  // namespace
}  // namespace byteps::binding
