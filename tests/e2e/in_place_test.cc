// Servers that read the tensors of workers of their host where they are, and what happens where they may not: the same
// bits. (Deaths, deadlines and cancels with tensors in place: fault_shm_test, job_shm_test, brief_shm_test.)
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <regex>
#include <string>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

constexpr Time kPatience = 180 * kSecond;

struct Ways {
  int64_t in_place = 0;
  int64_t mapped = 0;  // of these
  int64_t slots = 0;
  int64_t asked_again = 0;
};

// What the servers say at their end.
Ways WaysOf(Job* job, int servers) {
  static const std::regex line(R"(contributions: ([0-9]+) read in place \(([0-9]+) of them mapped\), )"
                               R"(([0-9]+) through slots, [0-9]+ parked, ([0-9]+) dropped)");
  Ways ways;
  for (int rank = 0; rank < servers; ++rank) {
    const std::string output = job->server(rank).Output();
    std::smatch found;
    EXPECT_TRUE(std::regex_search(output, found, line)) << output;
    if (found.empty()) continue;
    ways.in_place += std::stoll(found[1]);
    ways.mapped += std::stoll(found[2]);
    ways.slots += std::stoll(found[3]);
    ways.asked_again += std::stoll(found[4]);
  }
  return ways;
}

Ways RunJob(JobOptions options, const std::string& scenario, const std::string& argument = "",
            const std::map<int, std::map<std::string, std::string>>& of_ranks = {}) {
  options.of_servers["BYTEPS_LOG_LEVEL"] = "INFO";
  Job job(options);
  for (int rank = 0; rank < options.workers; ++rank) {
    const auto own = of_ranks.find(rank);
    job.StartWorker(rank, scenario, argument,
                    own == of_ranks.end() ? std::map<std::string, std::string>() : own->second);
  }
  job.ExpectSuccess(kPatience);
  return WaysOf(&job, options.servers);
}

// (Until a server has tried whether it reaches a worker's memory, payloads come through slots.)
TEST(InPlaceTest, LargeTensorsStayWhereTheyAre) {
  const Ways ways = RunJob({.workers = 2, .servers = 2}, "steady", "100");
  EXPECT_GT(ways.in_place, ways.slots);
}

// Tensors in the library's own buffers are folded where they are, without a copy: the whole contribution, or that of
// the ranks that have it there.
TEST(InPlaceTest, TensorsInBuffersAreMapped) {
  for (const char* kind : {"0", "1", "2", "3"}) {
    SCOPED_TRACE(kind);
    const Ways ways = RunJob({.workers = 2, .servers = 1}, "buffers", kind);
    EXPECT_GT(ways.in_place, 0);
    EXPECT_EQ(ways.mapped, ways.in_place);
  }
}

TEST(InPlaceTest, TensorsInBuffersBesideOthers) {
  const Ways ways = RunJob({.workers = 3, .servers = 2}, "buffers", "4");
  EXPECT_GT(ways.mapped, 0);
  EXPECT_GT(ways.in_place, ways.mapped);
}

// One maps, one is copied, one comes through slots, one over the network.
TEST(InPlaceTest, TensorsInBuffersOnAMixtureOfWays) {
  const Ways ways = RunJob({.workers = 3, .servers = 2}, "buffers", "4",
                           {{1, {{"BYTEPS_SHM_IN_PLACE", "0"}}}, {2, {{"BYTEPS_SHM", "0"}}}});
  EXPECT_GT(ways.mapped, 0);
  EXPECT_GT(ways.slots, 0);
}

TEST(InPlaceTest, EveryTypeOperationAndSizeBitForBit) {
  const Ways ways = RunJob({.workers = 3, .servers = 2}, "sums");
  EXPECT_GT(ways.in_place, 0);
}

TEST(InPlaceTest, TurnedOffTheBitsAreTheSame) {
  const Ways ways = RunJob({.workers = 3, .servers = 2, .of_workers = {{"BYTEPS_SHM_IN_PLACE", "0"}}}, "sums");
  EXPECT_EQ(ways.in_place, 0);
  EXPECT_GT(ways.slots, 0);
}

// Where the system lets a server look into no worker, what lies in the library's own buffers is folded where it is all
// the same, from the first round on, and nothing but that: what lies elsewhere, input or output, comes through slots.
class RefusedServersTest : public testing::TestWithParam<const char*> {};

TEST_P(RefusedServersTest, BuffersBesideOtherMemory) {
  const std::string how = GetParam();
  if (how == "powerless" && ::geteuid() != 0) GTEST_SKIP() << "only root has capabilities to lose";
  if (how == "apart" && !CanRunHindered(how)) GTEST_SKIP() << "this user may not make a PID namespace (CAP_SYS_ADMIN)";
  JobOptions options{.workers = 3, .servers = 2};
  if (how == "knob") {
    options.of_servers = {{"BYTEPS_SHM_PROCESS_VM", "0"}};
  } else {
    options.hindered_servers = how;
  }
  const Ways ways = RunJob(options, "buffers", "4");
  EXPECT_GT(ways.mapped, 0);
  EXPECT_EQ(ways.in_place, ways.mapped);
  EXPECT_GT(ways.slots, 0);
  EXPECT_EQ(ways.asked_again, 0);
}

INSTANTIATE_TEST_SUITE_P(Hindered, RefusedServersTest, testing::Values("knob", "filtered", "powerless", "apart"),
                         [](const auto& each) { return std::string(each.param); });

TEST(RefusedServerTest, BuffersAreMapped) {
  for (const char* kind : {"0", "1", "2"}) {
    SCOPED_TRACE(kind);
    const Ways ways = RunJob({.workers = 2, .servers = 1, .hindered_servers = "filtered"}, "buffers", kind);
    EXPECT_GT(ways.mapped, 0);
    EXPECT_EQ(ways.in_place, ways.mapped);
    EXPECT_EQ(ways.slots, 0);
    EXPECT_EQ(ways.asked_again, 0);
  }
}

TEST(RefusedServerTest, AnInputInABufferBesideAnotherOutputComesThroughSlots) {
  const Ways ways = RunJob({.workers = 2, .servers = 2, .hindered_servers = "filtered"}, "buffers", "3");
  EXPECT_EQ(ways.in_place, 0);
  EXPECT_GT(ways.slots, 0);
  EXPECT_EQ(ways.asked_again, 0);
}

TEST(RefusedServerTest, OtherMemoryComesThroughSlots) {
  const Ways ways = RunJob({.workers = 2, .servers = 2, .hindered_servers = "filtered"}, "sums");
  EXPECT_EQ(ways.in_place, 0);
  EXPECT_GT(ways.slots, 0);
}

// One in place, one through slots, one over the network, all in the same rounds.
TEST(InPlaceTest, AMixtureOfWays) {
  const Ways ways = RunJob({.workers = 3, .servers = 2}, "sums", "",
                           {{1, {{"BYTEPS_SHM_IN_PLACE", "0"}}}, {2, {{"BYTEPS_SHM", "0"}}}});
  EXPECT_GT(ways.in_place, 0);
  EXPECT_GT(ways.slots, ways.in_place);
}

TEST(InPlaceTest, AMixtureWithHardlyAnyMemoryInOppositeOrders) {
  RunJob({.workers = 2,
          .servers = 1,
          .of_servers = {{"BYTEPS_SLOTS_PER_PEER", "1"},
                         {"BYTEPS_SLOT_BYTES", "64K"},
                         {"BYTEPS_SERVER_ENGINE_THREAD", "1"},
                         {"BYTEPS_SERVER_MEMORY", "1M"}}},
         "orders", "", {{1, {{"BYTEPS_SHM_IN_PLACE", "0"}}}});
}

// A worker's memory can no longer be read, in the middle of the job: no operation fails, and the rest comes through
// slots.
TEST(InPlaceTest, WhenAServerMayNotReadAnyMoreTheyComeThroughSlots) {
  for (const char* rank : {"0", "1"}) {
    const Ways ways =
        RunJob({.workers = 2, .servers = 2, .hindered_servers = "unprivileged", .hindered_workers = "unprivileged"},
               "guarded", rank);
    EXPECT_GT(ways.asked_again, 0);
    EXPECT_GT(ways.slots, ways.asked_again);
    EXPECT_GT(ways.in_place, ways.slots);
    EXPECT_EQ(ways.mapped, 0);
  }
}

// What a host has reduced within itself is read from the memory of the part's owner.
TEST(InPlaceTest, BehindALocalStage) {
  const Ways ways = RunJob({.workers = 4, .hosts = {2, 2}, .servers = 2}, "sums");
  EXPECT_GT(ways.in_place, 0);
}

}  // namespace
}  // namespace byteps
