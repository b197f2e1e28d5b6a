#include "core/worker/tensor/request.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "core/base/status.h"

namespace byteps {
namespace {

struct Seen {
  int calls = 0;
  int32_t code = -1;
  RequestState state = RequestState::kDeclaring;
  bool ended = true;
  Request* request = nullptr;
};

void Done(void* user, bps_status* error) {
  Seen* seen = static_cast<Seen*>(user);
  ++seen->calls;
  seen->code = bps_status_code(error);
  seen->state = seen->request->state();
  seen->ended = seen->request->ended();
  bps_status_free(error);
}

TEST(RequestTest, EndsOnceAndTellsOnce) {
  Seen seen;
  Request request(&Done, &seen);
  seen.request = &request;
  EXPECT_FALSE(request.ended());
  request.Complete(absl::AbortedError("first"));
  request.Complete(absl::OkStatus());
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.code, BPS_ABORTED);
  EXPECT_EQ(seen.state, RequestState::kFailed) << "inside the callback the state says how it ended";
  EXPECT_FALSE(seen.ended) << "and those who wait still wait";
  EXPECT_TRUE(request.ended());
  EXPECT_EQ(request.outcome().message(), "first");
}

TEST(RequestTest, StatesOnlyMoveDown) {
  Request request(nullptr, nullptr);
  request.Advance(RequestState::kActive);
  request.Advance(RequestState::kQueued);
  EXPECT_EQ(request.state(), RequestState::kActive);
  request.Advance(RequestState::kDone);
  EXPECT_EQ(request.state(), RequestState::kActive) << "only Complete ends it";
  request.Complete(absl::OkStatus());
  request.Advance(RequestState::kActive);
  EXPECT_EQ(request.state(), RequestState::kDone);
}

TEST(RequestTest, NamesOfStates) {
  EXPECT_STREQ(RequestStateName(BPS_REQUEST_DECLARING), "declaring");
  EXPECT_STREQ(RequestStateName(BPS_REQUEST_QUEUED), "queued");
  EXPECT_STREQ(RequestStateName(BPS_REQUEST_ACTIVE), "active");
  EXPECT_STREQ(RequestStateName(BPS_REQUEST_ENQUEUED), "enqueued");
  EXPECT_STREQ(RequestStateName(BPS_REQUEST_DONE), "done");
  EXPECT_STREQ(RequestStateName(BPS_REQUEST_FAILED), "failed");
  EXPECT_STREQ(RequestStateName(77), "unknown");
}

TEST(RequestTest, EnqueuedIsBetweenActiveAndDone) {
  Request request(nullptr, nullptr);
  EXPECT_FALSE(request.WaitForStream(Now() + 5 * kMillisecond));
  request.Advance(RequestState::kEnqueued);
  EXPECT_EQ(request.state(), RequestState::kEnqueued);
  EXPECT_TRUE(request.WaitForStream(Now()));
  EXPECT_FALSE(request.ended());
  request.Advance(RequestState::kActive);
  EXPECT_EQ(request.state(), RequestState::kEnqueued);
  request.Complete(absl::OkStatus());
  EXPECT_EQ(request.state(), RequestState::kDone);
  request.Advance(RequestState::kEnqueued);
  EXPECT_EQ(request.state(), RequestState::kDone);
}

TEST(RequestTest, AWaitForAStreamIsWoken) {
  for (const bool ends : {false, true}) {
    auto request = std::make_shared<Request>(nullptr, nullptr);
    std::thread waiter([request] { EXPECT_TRUE(request->WaitForStream(Now() + 60 * kSecond)); });
    ends ? request->Complete(absl::CancelledError("")) : request->Advance(RequestState::kEnqueued);
    waiter.join();
  }
}

TEST(RequestTest, WaitsUntilTheEndOrTheDeadline) {
  auto request = std::make_shared<Request>(nullptr, nullptr);
  EXPECT_FALSE(request->WaitUntil(Now() + 5 * kMillisecond));
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([request] {
      EXPECT_TRUE(request->WaitUntil(Now() + 60 * kSecond));
      EXPECT_TRUE(request->outcome().ok());
    });
  }
  request->Complete(absl::OkStatus());
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_TRUE(request->WaitUntil(0));
}

}  // namespace
}  // namespace byteps
