// The way of an operation from a framework's kernel to libbyteps.so and back, with the real library and a job of one.

#include "frameworks/common/operation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/collective.h"
#include "frameworks/common/giving_up.h"
#include "frameworks/common/library.h"
#include "frameworks/common/shim.h"

namespace byteps::binding {
namespace {

constexpr const char* kLibrary = "core/libbyteps.so";
constexpr std::chrono::seconds kDeadline{30};

// A session of one worker alone, opened as the package byteps does it.
class OperationTest : public testing::Test {
 protected:
  void SetUp() override {
    library_ = Library::Load(kLibrary);
    session_ = Open();
  }

  void TearDown() override { Close(session_); }

  bps_session* Open() const {
    bps_open_args args = BPS_OPEN_ARGS_INIT;
    args.has_place = 1;
    args.num_hosts = 1;
    args.local_size = 1;
    bps_session* session = nullptr;
    bps_status* error = library_->bps_open_versioned(BPS_ABI_MAJOR, BPS_ABI_MINOR, &args, &session);
    EXPECT_EQ(error, nullptr) << library_->bps_status_message(error);
    return session;
  }

  void Close(bps_session* session) const {
    bps_shim_detach(session);
    library_->bps_status_free(library_->bps_shutdown(session, 0));
    library_->bps_status_free(library_->bps_close(session));
  }

  void Attach(bps_session* session) const {
    char error[256] = "";
    ASSERT_EQ(bps_shim_attach(kLibrary, session, error, sizeof error), 1) << error;
  }

  std::shared_ptr<const Library> library_;
  bps_session* session_ = nullptr;
};

// The outcome of a push_pull of `values`, in place.
Outcome Reduce(std::vector<float>& values, const char* name, uint32_t dtype = BPS_FLOAT32) {
  const auto size = static_cast<int64_t>(values.size());
  std::promise<Outcome> ended;
  PushPull(TheSession(), {name, dtype, &size, 1}, values.data(), values.data(), BPS_SUM, 0,
           [&](const Outcome& outcome) { ended.set_value(outcome); });
  auto outcome = ended.get_future();
  if (outcome.wait_for(kDeadline) != std::future_status::ready) std::abort();
  return outcome.get();
}

TEST_F(OperationTest, EndsWithTheResult) {
  Attach(session_);
  std::vector<float> values{1, 2, 3};
  const Outcome outcome = Reduce(values, "x");
  EXPECT_TRUE(outcome.ok()) << outcome.message;
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));

  const int64_t size = 3;
  std::vector<float> copy(3);
  std::promise<Outcome> ended;
  Broadcast(TheSession(), {"y", BPS_FLOAT32, &size, 1}, values.data(), copy.data(), 0, 0,
            [&](const Outcome& of) { ended.set_value(of); });
  auto future = ended.get_future();
  if (future.wait_for(kDeadline) != std::future_status::ready) std::abort();
  EXPECT_TRUE(future.get().ok());
  EXPECT_EQ(copy, values);
}

TEST_F(OperationTest, WithoutASessionIsRefusedInTheCall) {
  std::vector<float> values{1};
  const Outcome outcome = Reduce(values, "x");
  EXPECT_EQ(outcome.code, BPS_FAILED_PRECONDITION);
  EXPECT_NE(outcome.message.find("bps.init()"), std::string::npos) << outcome.message;
}

TEST_F(OperationTest, ReportsWhatTheLibraryRefuses) {
  Attach(session_);
  std::vector<float> values{1};
  const Outcome undeclared = Reduce(values, "x", /*dtype=*/7);
  EXPECT_EQ(undeclared.code, BPS_INVALID_ARGUMENT);
  EXPECT_NE(undeclared.message, "");

  const int64_t size = 1;
  int calls = 0;
  Broadcast(TheSession(), {"y", BPS_FLOAT32, &size, 1}, values.data(), values.data(), /*root=*/5, 0,
            [&](const Outcome& outcome) {
              EXPECT_EQ(outcome.code, BPS_INVALID_ARGUMENT) << outcome.message;
              ++calls;
            });
  EXPECT_EQ(calls, 1) << "refused in the call";
}

// How a collective of `values` has ended, and what it has brought.
struct Ended {
  Outcome outcome;
  std::vector<float> values;
  std::vector<int64_t> shape;
  std::vector<int64_t> splits;
};

Ended Collect(int32_t kind, const std::vector<float>& values, std::vector<int32_t> ranks = {},
              std::vector<int64_t> splits = {}) {
  const auto size = static_cast<int64_t>(values.size());
  CollectiveSpec spec{kind, {"c", BPS_FLOAT32, &size, 1}, values.data()};
  spec.ranks = std::move(ranks);
  spec.splits = std::move(splits);
  std::promise<Ended> ended;
  auto future = ended.get_future();
  Collective(TheSession(), spec, [&](const Outcome& outcome, const CollectiveResult& result) {
    Ended end{outcome, {}, {}, {}};
    if (outcome.ok()) {
      const auto* data = static_cast<const float*>(result.data());
      end = {outcome, {data, data + result.bytes() / sizeof(float)}, result.shape(), result.splits()};
    }
    ended.set_value(end);
  });
  if (future.wait_for(kDeadline) != std::future_status::ready) std::abort();
  return future.get();
}

TEST_F(OperationTest, CollectivesBringTheirResult) {
  Attach(session_);
  const std::vector<float> values{1, 2, 3};
  for (const int32_t kind : {BPS_ALL_GATHER, BPS_ALL_TO_ALL, BPS_REDUCE_SCATTER, BPS_ALL_REDUCE}) {
    const Ended ended = Collect(kind, values, /*ranks=*/{0});
    EXPECT_TRUE(ended.outcome.ok()) << kind << ": " << ended.outcome.message;
    EXPECT_EQ(ended.values, values) << kind;
    EXPECT_EQ(ended.shape, std::vector<int64_t>{3}) << kind;
    EXPECT_EQ(ended.splits, kind == BPS_ALL_REDUCE ? std::vector<int64_t>{} : std::vector<int64_t>{3}) << kind;
  }
  EXPECT_EQ(Collect(BPS_ALL_TO_ALL, {}, {}, {0}).shape, std::vector<int64_t>{0});
}

TEST_F(OperationTest, CollectivesReportWhatTheLibraryRefuses) {
  EXPECT_EQ(Collect(BPS_ALL_GATHER, {1}).outcome.code, BPS_FAILED_PRECONDITION) << "no session";
  Attach(session_);
  EXPECT_EQ(Collect(BPS_ALL_GATHER, {1}, /*ranks=*/{7}).outcome.code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Collect(BPS_ALL_TO_ALL, {1}, {}, /*splits=*/{5}).outcome.code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Collect(BPS_ALL_GATHER, {1, 2}).values, (std::vector<float>{1, 2})) << "as before";
}

// The other ranks may have come to it when nothing was in flight: its round is given up.
TEST_F(OperationTest, OneThatIsRefusedForItsNameUsesItsRoundUp) {
  struct Asked {
    std::vector<bool> given_up;
    int32_t freed = 0;
  };
  static Asked asked;
  asked = {};
  auto library = std::make_shared<Library>();
  library->bps_declare = [](bps_session*, const bps_declare_args*, bps_tensor**) noexcept -> bps_status* {
    return nullptr;
  };
  library->bps_push_pull = [](bps_session*, const bps_push_pull_args* args, bps_request**) noexcept {
    const bool given_up = args->ext != nullptr && args->ext->type == BPS_EXT_GIVE_UP;
    EXPECT_EQ(given_up, args->done == nullptr) << "nobody is told of its end";
    asked.given_up.push_back(given_up);
    return reinterpret_cast<bps_status*>(&asked);
  };
  library->bps_status_code = [](const bps_status*) noexcept -> int32_t { return BPS_ALREADY_EXISTS; };
  library->bps_status_message = [](const bps_status*) noexcept { return "in flight"; };
  library->bps_status_free = [](bps_status*) noexcept { ++asked.freed; };
  AttachedSession session;
  session.Attach(library, reinterpret_cast<bps_session*>(&asked));
  const int64_t size = 1;
  float value = 1;
  int32_t code = BPS_OK;
  PushPull(session, {"x", BPS_FLOAT32, &size, 1}, &value, &value, BPS_SUM, 0,
           [&](const Outcome& outcome) { code = outcome.code; });
  EXPECT_EQ(code, BPS_ALREADY_EXISTS);
  EXPECT_EQ(asked.given_up, (std::vector<bool>{false, true}));
  EXPECT_EQ(asked.freed, 2);
}

TEST_F(OperationTest, RoundsThatAreGivenUpAreFollowedByOthers) {
  const int64_t size = 2;
  const TensorSpec tensor{"x", BPS_FLOAT32, &size, 1};
  std::vector<std::future<int32_t>> codes;
  const auto code = [&]() -> Done {
    auto ended = std::make_shared<std::promise<int32_t>>();
    codes.push_back(ended->get_future());
    return [ended](const Outcome& outcome) { ended->set_value(outcome.code); };
  };
  GiveUpPushPull(TheSession(), tensor, BPS_SUM, "no session is attached", code());
  Attach(session_);
  GiveUpPushPull(TheSession(), tensor, BPS_SUM, "its input has failed", code());
  GiveUpBroadcast(TheSession(), tensor, 0, "its input has failed", code());
  GiveUp(TheSession(), {BPS_ALL_GATHER, {"c", BPS_FLOAT32, &size, 1}}, "its input has failed", code());
  GiveUp(TheSession(), {-1, {"c", BPS_FLOAT32, &size, 1}}, "there is no such collective", code());
  std::vector<int32_t> ends;
  for (std::future<int32_t>& each : codes) {
    if (each.wait_for(kDeadline) != std::future_status::ready) std::abort();
    ends.push_back(each.get());
  }
  EXPECT_EQ(ends, (std::vector<int32_t>{BPS_FAILED_PRECONDITION, BPS_CANCELLED, BPS_CANCELLED, BPS_CANCELLED,
                                        BPS_INVALID_ARGUMENT}));
  std::vector<float> values{1, 2};
  EXPECT_TRUE(Reduce(values, "x").ok());
  EXPECT_EQ(Collect(BPS_ALL_GATHER, {1, 2}).values, (std::vector<float>{1, 2}));
}

TEST_F(OperationTest, WhatComesBehindARoundThatIsGivenUpWaits) {
  GivingUp giving_up;
  int started = 0;
  giving_up.Then([&] { ++started; });
  EXPECT_EQ(started, 1);
  const Done first = giving_up.One(), second = giving_up.One();
  giving_up.Then([&] { ++started; });
  giving_up.Then([&] { ++started; });
  first({});
  EXPECT_EQ(started, 1);
  second({});
  EXPECT_EQ(started, 3);
}

TEST_F(OperationTest, ResultsOutliveTheirSession) {
  bps_session* other = Open();
  Attach(other);
  const int64_t size = 2;
  const std::vector<float> values{4, 5};
  std::promise<CollectiveResult> ended;
  auto future = ended.get_future();
  Collective(TheSession(), {BPS_ALL_GATHER, {"c", BPS_FLOAT32, &size, 1}, values.data()},
             [&](const Outcome&, CollectiveResult result) { ended.set_value(std::move(result)); });
  if (future.wait_for(kDeadline) != std::future_status::ready) std::abort();
  const CollectiveResult result = future.get();
  Close(other);
  ASSERT_EQ(result.bytes(), 8u);
  EXPECT_EQ(static_cast<const float*>(result.data())[1], 5);
}

TEST_F(OperationTest, GoesToTheSessionThatIsAttachedLast) {
  Attach(session_);
  bps_session* next = Open();
  Attach(next);
  bps_shim_detach(session_);  // which is not the one attached any more
  std::vector<float> values{1};
  EXPECT_TRUE(Reduce(values, "x").ok());
  Close(next);
  EXPECT_EQ(Reduce(values, "x").code, BPS_FAILED_PRECONDITION);
}

TEST_F(OperationTest, DetachWaitsForCallsInside) {
  Attach(session_);
  std::promise<void> inside;
  std::promise<void> leave;
  std::atomic<bool> left{false};
  std::thread caller([&] {
    TheSession().Use([&](const Library&, bps_session*) -> bps_status* {
      inside.set_value();
      leave.get_future().wait();
      left = true;
      return nullptr;
    });
  });
  ASSERT_EQ(inside.get_future().wait_for(kDeadline), std::future_status::ready);
  auto detached = std::async(std::launch::async, [&] {
    bps_shim_detach(session_);
    return left.load();
  });
  EXPECT_EQ(detached.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  leave.set_value();
  EXPECT_TRUE(detached.get());
  caller.join();
}

TEST_F(OperationTest, AttachSaysWhatIsWrongWithTheLibrary) {
  char error[256] = "";
  EXPECT_EQ(bps_shim_attach("/nowhere/libbyteps.so", session_, error, sizeof error), 0);
  EXPECT_NE(std::string(error).find("/nowhere/libbyteps.so"), std::string::npos) << error;
}

// The end of an operation that a library of the test has taken.
struct Accepted {
  bps_done_fn done = nullptr;
  void* user = nullptr;
};

Accepted accepted;

// A library that takes operations and does nothing with them. Statuses are never errors, handles are not looked into.
std::shared_ptr<Library> IdleLibrary() {
  auto library = std::make_shared<Library>();
  library->bps_declare = [](bps_session*, const bps_declare_args*, bps_tensor** tensor) noexcept -> bps_status* {
    *tensor = reinterpret_cast<bps_tensor*>(&accepted);
    return nullptr;
  };
  library->bps_push_pull = [](bps_session*, const bps_push_pull_args* args, bps_request**) noexcept -> bps_status* {
    accepted = {args->done, args->user};
    return nullptr;
  };
  library->bps_collective = [](bps_session*, const bps_collective_args* args,
                               bps_request** request) noexcept -> bps_status* {
    accepted = {args->done, args->user};
    *request = reinterpret_cast<bps_request*>(&accepted);
    return nullptr;
  };
  library->bps_status_free = [](bps_status*) noexcept {};
  library->bps_request_free = [](bps_request*) noexcept {};
  library->bps_request_result = [](const bps_request*, int32_t, bps_result*) noexcept {
    return static_cast<bps_status*>(nullptr);
  };
  return library;
}

// An operation may end behind shutdown(), when another init() has attached another session already.
template <typename F>
void ExpectLibraryUntilTheEnd(F start) {
  AttachedSession session;
  std::weak_ptr<const Library> first;
  {
    const std::shared_ptr<const Library> library = IdleLibrary();
    first = library;
    session.Attach(library, reinterpret_cast<bps_session*>(&accepted));
  }
  int ends = 0;
  start(session, &ends);
  session.Attach(IdleLibrary(), reinterpret_cast<bps_session*>(&accepted));
  ASSERT_FALSE(first.expired()) << "the end of the operation would look into it";
  EXPECT_EQ(ends, 0);
  accepted.done(accepted.user, nullptr);
  EXPECT_EQ(ends, 1);
  EXPECT_TRUE(first.expired());
}

TEST(PendingOperationTest, HoldsItsLibrary) {
  const int64_t size = 1;
  float value = 1;
  const TensorSpec tensor{"x", BPS_FLOAT32, &size, 1};
  ExpectLibraryUntilTheEnd([&](const AttachedSession& session, int* ends) {
    PushPull(session, tensor, &value, &value, BPS_SUM, 0, [ends](const Outcome&) { ++*ends; });
  });
  ExpectLibraryUntilTheEnd([&](const AttachedSession& session, int* ends) {
    const CollectiveSpec spec{BPS_ALL_GATHER, tensor, &value};
    Collective(session, spec, [ends](const Outcome&, const CollectiveResult&) { ++*ends; });
  });
}

}  // namespace
}  // namespace byteps::binding
