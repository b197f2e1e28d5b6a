// Whole jobs in which the user chooses what goes next: BYTEPS_SCHEDULER, BYTEPS_SCHEDULING_CREDIT and
// BYTEPS_SERVER_ENABLE_SCHEDULE, as they reach workers and servers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

using Variables = std::map<std::string, std::string>;

// Where all the schedulers are that these tests choose from.
std::string Folders() {
  std::string folders;
  for (const char* plugin : {"E2E_TCP", "E2E_SHM", "E2E_CREDIT", "E2E_FIFO", "E2E_PRIORITY", "E2E_DIRECTED"}) {
    const char* path = std::getenv(plugin);
    EXPECT_NE(path, nullptr) << plugin;
    if (path == nullptr) continue;
    folders += (folders.empty() ? "" : ":") + std::filesystem::absolute(path).parent_path().string();
  }
  return folders;
}

struct Choice {
  Variables variables;
  std::string told;  // what a worker says of it
};

void PrintTo(const Choice& choice, std::ostream* out) { *out << choice.told; }

class ChoiceTest : public testing::TestWithParam<Choice> {};

// Every sum is right, whatever goes first, in workers and in servers; and it is what was chosen.
TEST_P(ChoiceTest, SumsAreRight) {
  for (const char* results : {"0", "1"}) {
    Variables variables = GetParam().variables;
    variables.insert({{"BYTEPS_PLUGIN_PATH", Folders()},
                      {"BYTEPS_PARTITION_BYTES", "65536"},
                      {"BYTEPS_SERVER_ENABLE_SCHEDULE", results},
                      {"BYTEPS_LOG_LEVEL", "info"}});
    Job job({.workers = 2, .servers = 2, .environment = variables});
    job.StartWorkers("orders");
    job.ExpectSuccess(120 * kSecond);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_NE(job.worker(rank).Output().find(GetParam().told), std::string::npos) << job.worker(rank).Output();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Choices, ChoiceTest,
                         testing::Values(Choice{{}, "scheduler credit, BYTEPS_SCHEDULING_CREDIT=(not set)"},
                                         Choice{{{"BYTEPS_SCHEDULER", "fifo"}}, "scheduler fifo,"},
                                         Choice{{{"BYTEPS_SCHEDULER", "priority"}}, "scheduler priority,"},
                                         Choice{{{"BYTEPS_SCHEDULER", "credit"}, {"BYTEPS_SCHEDULING_CREDIT", "1"}},
                                                "scheduler credit, BYTEPS_SCHEDULING_CREDIT=1,"},
                                         Choice{{{"BYTEPS_SCHEDULING_CREDIT", "0"}},
                                                "scheduler credit, BYTEPS_SCHEDULING_CREDIT=0,"},
                                         Choice{{{"BYTEPS_SCHEDULING_CREDIT", "100K"}},
                                                "scheduler credit, BYTEPS_SCHEDULING_CREDIT=102400B,"}));

// Each process names the direction for which it asks for a scheduler; a server asks only where the user wants it to.
TEST(SchedulerTest, AServerOrdersItsResultsWhereItIsAskedTo) {
  for (const char* wanted : {"1", "0"}) {
    Job job({.workers = 2,
             .servers = 1,
             .environment = {{"BYTEPS_PLUGIN_PATH", Folders()}},
             .of_servers = {{"BYTEPS_SCHEDULER", "directed"},
                            {"BYTEPS_SERVER_ENABLE_SCHEDULE", wanted},
                            {"BYTEPS_LOG_LEVEL", "info"}}});
    job.StartWorkers("open_fails");
    if (*wanted == '1') {
      EXPECT_TRUE(job.server(0).WaitForOutput("made for results", 60 * kSecond)) << job.Output();
    } else {
      EXPECT_TRUE(job.server(0).WaitForOutput("generation 1", 60 * kSecond)) << job.Output();
    }
    EXPECT_EQ(job.server(0).Output().find("made for results") != std::string::npos, *wanted == '1') << job.Output();
  }
}

TEST(SchedulerTest, TheSchedulerOfAServerKnowsItsPeersAndIsNamedWhereItGivesNothingOut) {
  Job told(
      {.workers = 2,
       .servers = 1,
       .environment = {{"BYTEPS_PLUGIN_PATH", Folders()}, {"BYTEPS_JOB_LINGER", "10"}},
       .of_servers = {
           {"BYTEPS_SCHEDULER", "directed"}, {"BYTEPS_SERVER_ENABLE_SCHEDULE", "1"}, {"BYTEPS_LOG_LEVEL", "info"}}});
  told.StartWorkers("sums");
  EXPECT_TRUE(told.server(0).WaitForOutput("has 2 peers", 60 * kSecond)) << told.Output();
  EXPECT_TRUE(told.server(0).WaitForOutput("has 0 peers", 60 * kSecond)) << told.Output();
  told.ExpectSuccess(60 * kSecond);

  Job kept({.workers = 2,
            .servers = 1,
            .environment = {{"BYTEPS_PLUGIN_PATH", Folders()},
                            {"BYTEPS_FORCE_DISTRIBUTED", "1"},
                            {"BYTEPS_SHM", "0"},
                            {"BYTEPS_OP_TIMEOUT", "2"}},
            .of_servers = {{"BYTEPS_SCHEDULER", "hoards"}, {"BYTEPS_SERVER_ENABLE_SCHEDULE", "1"}}});
  kept.StartWorkers("loop", "300000");
  EXPECT_TRUE(kept.server(0).WaitForOutput("scheduler \"hoards\" has not given", 60 * kSecond)) << kept.Output();
}

// A scheduler is asked for each of the two things that a worker orders: one that paces links must know which is none.
TEST(SchedulerTest, TheSchedulerKnowsThatItsTasksStayWithinTheHost) {
  Job job({.workers = 2,
           .servers = 1,
           .environment = {{"BYTEPS_PLUGIN_PATH", Folders()}},
           .of_workers = {
               {"BYTEPS_SCHEDULER", "directed"}, {"BYTEPS_FORCE_DISTRIBUTED", "0"}, {"BYTEPS_LOG_LEVEL", "info"}}});
  job.StartWorker(0, "open_fails");
  for (const char* told : {"made for pushes", "made for what is done within a host"}) {
    EXPECT_TRUE(job.worker(0).WaitForOutput(told, 60 * kSecond)) << job.Output();
  }
}

// What waits says for whom: a scheduler that keeps everything to itself is named, within a host and before the servers.
TEST(SchedulerTest, ASchedulerThatGivesNothingOutIsNamed) {
  for (const char* forced : {"0", "1"}) {
    Job job({.workers = 2,
             .servers = 1,
             .environment = {{"BYTEPS_PLUGIN_PATH", Folders()}},
             .of_workers = {{"BYTEPS_SCHEDULER", "hoards"}, {"BYTEPS_FORCE_DISTRIBUTED", forced}}});
    job.StartWorkers("hoarded");
    job.ExpectSuccess(120 * kSecond);
  }
}

// A scheduler that does not come back ends the job, by name, within a host and before the servers.
TEST(SchedulerTest, ASchedulerThatDoesNotReturnIsNamedAndEndsTheJob) {
  // What is small a caller would move by itself.
  for (const auto& [forced, elements] : {std::pair("0", "300000"), std::pair("1", "300000"), std::pair("1", "10")}) {
    Job job({.workers = 2,
             .servers = 1,
             .environment = {{"BYTEPS_PLUGIN_PATH", Folders()}, {"BYTEPS_PEER_TIMEOUT", "8"}},
             .of_workers = {{"BYTEPS_SCHEDULER", "stuck"}, {"BYTEPS_FORCE_DISTRIBUTED", forced}}});
    job.StartWorkers("stuck", elements);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(job.worker(rank).WaitForOutput("scheduler \"stuck\" has not returned from next for at least 5 s",
                                                 60 * kSecond))
          << job.Output();
      EXPECT_TRUE(job.worker(rank).WaitForOutput("done", 60 * kSecond)) << job.Output();
    }
  }
}

}  // namespace
}  // namespace byteps
