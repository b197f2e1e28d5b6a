#include "core/base/status.h"

#include <cerrno>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "core/worker/api/boundary.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

TEST(StatusTest, OkIsNullBothWays) {
  EXPECT_EQ(StatusToC(absl::OkStatus()), nullptr);
  EXPECT_TRUE(StatusFromC(nullptr).ok());
  EXPECT_EQ(bps_status_code(nullptr), BPS_OK);
  EXPECT_STREQ(bps_status_message(nullptr), "");
  EXPECT_EQ(bps_status_retryable(nullptr), 0);
  bps_status_free(nullptr);
}

TEST(StatusTest, EveryCodeCrossesTheBoundaryAndComesBack) {
  for (int32_t code = BPS_CANCELLED; code <= BPS_UNAUTHENTICATED; ++code) {
    bps_status* c = StatusToC(MakeStatus(code, "why"));
    ASSERT_NE(c, nullptr);
    EXPECT_EQ(bps_status_code(c), code);
    EXPECT_STREQ(bps_status_message(c), "why");
    EXPECT_EQ(bps_status_retryable(c), 0);
    absl::Status back = TakeStatus(c);
    EXPECT_EQ(StatusCode(back), code);
    EXPECT_EQ(back.message(), "why");
    EXPECT_EQ(std::string(StatusCodeName(code)), absl::StatusCodeToString(back.code()));
  }
}

TEST(StatusTest, CodesOutsideTheTableAreUnknownAndNamed) {
  for (int32_t code : {-1, 17, 1000}) {
    absl::Status status = MakeStatus(code, "plugin says");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
    EXPECT_NE(status.message().find(std::to_string(code)), absl::string_view::npos) << status;
    EXPECT_STREQ(StatusCodeName(code), "UNKNOWN");
  }
  EXPECT_TRUE(MakeStatus(BPS_OK, "ignored").ok());
}

TEST(StatusTest, RetryableSurvivesTheBoundaryAndAnnotation) {
  absl::Status mismatch = Retryable(absl::FailedPreconditionError("shapes differ"));
  EXPECT_TRUE(IsRetryable(mismatch));
  absl::Status annotated = Annotate(mismatch, "tensor \"w\"");
  EXPECT_TRUE(IsRetryable(annotated));
  EXPECT_EQ(annotated.message(), "tensor \"w\": shapes differ");
  bps_status* c = StatusToC(annotated);
  EXPECT_EQ(bps_status_retryable(c), 1);
  EXPECT_TRUE(IsRetryable(TakeStatus(c)));

  EXPECT_FALSE(IsRetryable(absl::FailedPreconditionError("no")));
  EXPECT_FALSE(IsRetryable(Annotate(absl::FailedPreconditionError("no"), "at")));
  EXPECT_FALSE(IsRetryable(Retryable(absl::OkStatus())));
  EXPECT_FALSE(IsRetryable(Retryable(absl::UnavailableError("rank 1 is lost"))));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "nothing happened").ok());
}

TEST(StatusTest, EmptyMessage) {
  bps_status* c = StatusToC(absl::CancelledError(""));
  EXPECT_STREQ(bps_status_message(c), "");
  bps_status_free(c);
}

TEST(StatusTest, OutOfMemoryIsImmortal) {
  bps_status* c = OutOfMemoryStatus();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(bps_status_code(c), BPS_RESOURCE_EXHAUSTED);
    EXPECT_STREQ(bps_status_message(c), "out of memory");
    bps_status_free(c);
  }
}

TEST(BoundaryTest, ReturnsTheStatusOfTheBody) {
  EXPECT_EQ(Boundary("f", [] { return absl::OkStatus(); }), nullptr);
  absl::Status status = TakeStatus(Boundary("f", [] { return absl::NotFoundError("x"); }));
  EXPECT_EQ(status, absl::NotFoundError("x"));
}

TEST(BoundaryTest, NoExceptionCrosses) {
  absl::Status status = TakeStatus(Boundary("bps_declare", []() -> absl::Status { throw std::runtime_error("boom"); }));
  EXPECT_EQ(status, absl::InternalError("bps_declare: unexpected exception: boom"));
  status = TakeStatus(Boundary("bps_declare", []() -> absl::Status { throw 7; }));
  EXPECT_EQ(status, absl::InternalError("bps_declare: unexpected exception of an unknown type"));
  EXPECT_EQ(Boundary("bps_declare", []() -> absl::Status { throw std::bad_alloc(); }), OutOfMemoryStatus());
}

TEST(BoundaryTest, TooFewDescriptorsAreNoDefectOfTheLibrary) {
  const auto thrown = [](int error) {
    return TakeStatus(Boundary(
        "bps_open", [error]() -> absl::Status { throw std::system_error(error, std::generic_category(), "eventfd"); }));
  };
  EXPECT_EQ(thrown(EMFILE).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(thrown(EMFILE).message().find("ulimit -n"), absl::string_view::npos) << thrown(EMFILE);
  EXPECT_EQ(thrown(EPERM).code(), absl::StatusCode::kInternal);
}

TEST(BoundaryTest, OtherResultsHaveAFallback) {
  EXPECT_EQ(BoundaryOr(-1, [] { return 5; }), 5);
  EXPECT_EQ(BoundaryOr(-1, []() -> int { throw 7; }), -1);
}

}  // namespace
}  // namespace byteps
