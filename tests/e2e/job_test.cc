// Whole jobs: real processes over TCP, in fair weather.
#include "tests/e2e/job.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace byteps {
namespace {

TEST(JobTest, EveryTypeOperationAndSizeBitForBit) {
  for (int servers : {1, 3}) {
    Job job({.workers = 2, .servers = servers});
    job.StartWorkers("sums");
    job.ExpectSuccess(120 * kSecond);
  }
}

TEST(JobTest, ThreeWorkersSmallPartitions) {
  Job job({.workers = 3, .servers = 2, .of_workers = {{"BYTEPS_PARTITION_BYTES", "65536"}}});
  job.StartWorkers("orders");
  job.ExpectSuccess(120 * kSecond);
}

TEST(JobTest, OppositeOrdersWithHardlyAnyMemory) {
  Job job({.workers = 2,
           .servers = 1,
           .of_servers = {{"BYTEPS_SLOTS_PER_PEER", "1"},
                          {"BYTEPS_SLOT_BYTES", "64K"},
                          {"BYTEPS_SERVER_ENGINE_THREAD", "1"},
                          {"BYTEPS_SERVER_MEMORY", "1M"}}});
  job.StartWorkers("orders");
  job.ExpectSuccess(120 * kSecond);
}

TEST(JobTest, TensorsInBuffers) {
  Job job({.workers = 2, .servers = 1});
  job.StartWorkers("buffers", "4");
  job.ExpectSuccess(120 * kSecond);
}

TEST(JobTest, AgainAndAgainCostsNoPages) {
  Job job({.workers = 2, .servers = 1});
  job.StartWorkers("steady", "100");
  job.ExpectSuccess(120 * kSecond);
}

int MessagesToServers(const std::string& output) {
  const size_t begin = output.find("many begin"), end = output.find("many end");
  if (begin == std::string::npos || end == std::string::npos) return -1;
  int messages = 0;
  for (size_t at = begin; (at = output.find("message to server", at)) < end; ++at) ++messages;
  return messages;
}

// Five hundred tensors of 1 KiB, submitted one by one, are a few dozen messages to each server.
TEST(JobTest, SmallTensorsShareMessages) {
  for (const int servers : {1, 2}) {
    Job job({.workers = 2, .servers = servers, .of_workers = {{"PS_VERBOSE", "2"}}});
    job.StartWorkers("many", "500");
    job.ExpectSuccess(120 * kSecond);
    for (int rank = 0; rank < 2; ++rank) {
      const int messages = MessagesToServers(job.worker(rank).Output());
      RecordProperty("messages_to_" + std::to_string(servers) + "_servers", messages);
      EXPECT_GT(messages, 500 / 32) << "none was seen";
      EXPECT_LT(messages, 500 / 4);
      std::printf("%d servers: %d messages of rank %d\n", servers, messages, rank);
    }
  }
}

TEST(JobTest, BroadcastAndBarrier) {
  Job job({.workers = 3, .servers = 2});
  job.StartWorkers("broadcasts");
  job.ExpectSuccess();
}

TEST(JobTest, OneWorkerThroughServers) {
  Job job({.workers = 1, .servers = 1});
  job.StartWorkers("sums");
  job.ExpectSuccess(120 * kSecond);
}

TEST(JobTest, ManyLivesInOneProcess) {
  Job job({.workers = 2, .servers = 1, .environment = {{"BYTEPS_JOB_LINGER", "10"}}});
  job.StartWorkers("lives", "100");
  job.ExpectSuccess(120 * kSecond);
}

TEST(JobTest, AnotherListOfServersWhenOpenedAgain) {
  Job one({.workers = 2, .servers = 1});
  Job three({.workers = 2, .servers = 3});
  one.StartWorkers("other_servers", std::to_string(three.port()));
  one.ExpectSuccess(120 * kSecond);
  three.ExpectSuccess();  // what its workers leave behind: servers and coordinator that end in order
}

TEST(JobTest, TwoSessionsSideBySide) {
  Job job({.workers = 2, .servers = 2});
  job.StartWorkers("sessions");
  job.ExpectSuccess();
}

TEST(JobTest, MismatchesAreErrorsOnEveryRankAndTheSessionGoesOn) {
  Job job({.workers = 2, .servers = 2});
  job.StartWorkers("mismatches");
  job.ExpectSuccess();
}

TEST(JobTest, DeadlinesCancelsDuplicates) {
  Job job({.workers = 2, .servers = 2});
  job.StartWorkers("patience");
  job.ExpectSuccess();
}

TEST(JobTest, ForkedChildren) {
  Job job({.workers = 2, .servers = 1});
  job.StartWorkers("fork");
  job.ExpectSuccess();
}

TEST(JobTest, IdleUsesNoProcessor) {
  Job job({.workers = 2, .servers = 1});
  job.StartWorkers("idle");
  job.ExpectIdle();
  job.ExpectSuccess();
}

TEST(JobTest, SmallRoundsAreQuick) {
  Job job({.workers = 2, .servers = 1});
  job.StartWorkers("latency", "2000");
  job.ExpectSuccess();
  std::printf("%s", job.worker(0).Output().c_str());
}

TEST(JobTest, LargeTensorsMove) {
  Job job({.workers = 2, .servers = 1});
  job.StartWorkers("bandwidth");
  job.ExpectSuccess(120 * kSecond);
  std::printf("%s", job.worker(0).Output().c_str());
}

TEST(JobTest, WithAToken) {
  Job job({.workers = 2, .servers = 1, .environment = {{"BYTEPS_JOB_TOKEN", "a secret"}}});
  job.StartWorkers("broadcasts");
  job.ExpectSuccess();
}

}  // namespace
}  // namespace byteps
