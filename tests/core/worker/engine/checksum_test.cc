// BYTEPS_CHECKSUM on the worker's side: what leaves has a checksum, and a result that came altered is an error.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/worker/engine/engine_job.h"

namespace byteps {
namespace {

constexpr uint32_t kDirect = BPS_TRANSPORT_LOCAL_ANY | BPS_TRANSPORT_CHEAP_REG, kSlots = BPS_TRANSPORT_LOCAL_ANY;

struct Way {
  const char* name;
  uint32_t flags;
  size_t elements;
};

class ChecksumTest : public testing::TestWithParam<Way> {
 protected:
  static EngineJobOptions Options(bool checksum, uint32_t altered) {
    EngineJobOptions options;
    options.workers = 2;
    options.worker_flags = GetParam().flags;
    options.checksum = checksum;
    options.server.altered = altered;
    return options;
  }
  // The statuses of both workers' requests.
  static std::vector<std::shared_ptr<Request>> Sum(EngineJob* job, std::vector<std::vector<float>>* output) {
    const std::vector<float> input(GetParam().elements, 3);
    output->assign(2, std::vector<float>(input.size()));
    std::vector<std::shared_ptr<Request>> requests;
    for (uint32_t worker = 0; worker < 2; ++worker) {
      requests.push_back(job->PushPull(worker, "w", input, &(*output)[worker]));
    }
    EXPECT_TRUE(job->RunUntil([&] { return requests[0]->ended() && requests[1]->ended(); }));
    return requests;
  }
};

TEST_P(ChecksumTest, WhatLeavesHasOneAndWhatComesIsChecked) {
  EngineJob job(Options(true, 0));
  ASSERT_TRUE(job.Connect());
  std::vector<std::vector<float>> output;
  for (const auto& request : Sum(&job, &output)) EXPECT_TRUE(request->outcome().ok()) << request->outcome();
  EXPECT_EQ(output[0], std::vector<float>(GetParam().elements, 6));
  EXPECT_GT(job.servers[0]->script.checked, 1);
}

TEST_P(ChecksumTest, AnAlteredResultIsAnErrorThatNamesThePartAndTheServer) {
  EngineJob job(Options(true, 1));
  ASSERT_TRUE(job.Connect());
  std::vector<std::vector<float>> output;
  for (const auto& request : Sum(&job, &output)) {
    EXPECT_EQ(request->outcome().code(), absl::StatusCode::kDataLoss) << request->outcome();
    const std::string text(request->outcome().message().data(), request->outcome().message().size());
    for (const char* word : {"part 0", "altered", "host-of-server-0", "BYTEPS_CHECKSUM", "\"w\""}) {
      EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
    }
  }
  // The session goes on.
  for (const auto& server : job.servers) server->script.altered = 0;
  for (const auto& request : Sum(&job, &output)) EXPECT_TRUE(request->outcome().ok()) << request->outcome();
}

TEST_P(ChecksumTest, WithoutItNothingIsAdded) {
  EngineJob job(Options(false, 1));
  ASSERT_TRUE(job.Connect());
  std::vector<std::vector<float>> output;
  for (const auto& request : Sum(&job, &output)) EXPECT_TRUE(request->outcome().ok()) << request->outcome();
  EXPECT_EQ(job.servers[0]->script.checked, 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, ChecksumTest,
                         testing::Values(Way{"Inline", kDirect, 10}, Way{"IntoTheOutput", kDirect, 1000},
                                         Way{"IntoSlots", kSlots, 1000}),
                         [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace byteps
