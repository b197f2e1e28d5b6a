#include "tests/sim/expect_mismatch.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/exchanges.h"

namespace byteps {

using ::testing::HasSubstr;

void ExpectMismatch(const JobOptions& options, const Ask& ask, const std::function<void(Ask*)>& twist,
                    const std::function<Words(uint32_t odd)>& words, const std::vector<size_t>& sizes) {
  SimulatedJob job(options);
  ASSERT_TRUE(job.Start());
  sim::Random& random = job.fabric().random();
  const uint32_t odd = static_cast<uint32_t>(random.Below(job.workers()));
  std::vector<Call*> calls;
  for (uint32_t w = 0; w < job.workers(); ++w) {
    Ask own = ask;
    if (w == odd) twist(&own);
    calls.push_back(job.worker(w).Submit(own));
    ASSERT_NE(calls.back(), nullptr);
    if (random.Chance(0.3)) job.RunFor(random.Between(0, 100) * kMillisecond);
  }
  ASSERT_TRUE(job.RunUntilEnded(calls));
  for (const Call* call : calls) {
    EXPECT_EQ(call->outcome().code(), absl::StatusCode::kFailedPrecondition) << call->outcome();
    const std::string text(call->outcome().message());
    EXPECT_THAT(text, HasSubstr(ask.name));
    for (const std::string& word : words(odd)) EXPECT_THAT(text, HasSubstr(word));
  }
  for (uint32_t w = 0; w < job.workers(); ++w) EXPECT_TRUE(job.worker(w).failure().ok()) << job.worker(w).failure();
  ExpectGoesOn(&job, ask.name, sizes);
  if (!::testing::Test::HasFatalFailure()) job.Finish();
}

}  // namespace byteps
