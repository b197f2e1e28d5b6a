// Whole jobs in which one plugin breaks its contract: every rank is told which one, and what it did, long before an
// operation's time is up. Not over shared memory: it would carry everything, and the fault go unseen.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

using Variables = std::map<std::string, std::string>;

// Many messages and writes for each round.
constexpr char kElements[] = "300000";
constexpr Time kPatience = 90 * kSecond;
// A log that repeats a line as fast as it can has more within a second.
constexpr size_t kMostOutput = 100'000;

std::string PathOf(const char* variable) { return std::filesystem::absolute(std::getenv(variable)).string(); }

Variables Faulty(const std::string& fault) {
  return {{"BYTEPS_SHM", "0"},          {"BYTEPS_TRANSPORT", PathOf("E2E_FAULTY")}, {"FAULTY_OF", PathOf("E2E_TCP")},
          {"FAULTY_FAULT", fault},      {"BYTEPS_PARTITION_BYTES", "65536"},        {"BYTEPS_OP_TIMEOUT", "600"},
          {"BYTEPS_PEER_TIMEOUT", "12"}};
}

// All workers end, not by a signal, and have said `what`.
void ExpectTold(Job* job, int workers, const std::string& what) {
  for (int rank = 0; rank < workers; ++rank) {
    const std::optional<int> status = job->worker(rank).Wait(kPatience);
    ASSERT_TRUE(status.has_value()) << job->Output();
    EXPECT_TRUE(*status == 1 || *status == 3) << *status << job->Output();
    const std::string output = job->worker(rank).Output();
    EXPECT_NE(output.find(what), std::string::npos) << "rank " << rank << ": " << output << "\nall:\n" << job->Output();
    EXPECT_LT(output.size(), kMostOutput);
  }
}

struct Fault {
  const char* name;
  const char* told;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class TransportFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(TransportFaultTest, OfAWorkerIsNamedToAll) {
  Variables variables = Faulty(GetParam().name);
  variables["FAULTY_RANK"] = "1";
  Job job({.workers = 2, .servers = 1, .environment = variables});
  job.StartWorkers("loop", kElements);
  ExpectTold(&job, 2, std::string("transport \"faulty\" ") + GetParam().told);
  EXPECT_LT(job.server(0).Output().size(), kMostOutput);
}

TEST_P(TransportFaultTest, OfAServerIsNamedToAll) {
  Job job({.workers = 2, .servers = 1, .environment = Faulty(GetParam().name)});
  job.StartWorkers("loop", kElements);
  ExpectTold(&job, 2, std::string("transport \"faulty\" ") + GetParam().told);
  EXPECT_LT(job.server(0).Output().size(), kMostOutput);
}

INSTANTIATE_TEST_SUITE_P(
    All, TransportFaultTest,
    testing::Values(Fault{"unknown_event", "reported an event of type 77"}, Fault{"too_many", "returned 1"},
                    Fault{"duplicate", "reported "}, Fault{"wrong_user", "reported "},
                    Fault{"failing_send", "answered RESOURCE_EXHAUSTED: the card has no queue pairs left"},
                    Fault{"few_bits", "has the capability immediate_bits = 8"},
                    Fault{"stuck_poll", "has not returned from poll for "},
                    Fault{"stuck_send", "has not returned from post_send for "}));

// TCP needs no registered memory of a worker; a server registers its landing slots.
TEST(TransportFaultTest, ARegionThatIsNoneDoesNotEndTheServerByASignal) {
  Job job({.workers = 2, .servers = 1, .environment = Faulty("no_region")});
  job.StartWorkers("loop", kElements);
  ExpectTold(&job, 2, "with success and no region");
  EXPECT_EQ(job.server(0).Wait(kPatience), std::optional<int>(1)) << job.Output();
}

class SchedulerFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(SchedulerFaultTest, IsNamedToAll) {
  for (const char* forced : {"0", "1"}) {
    // Within a host this worker has one task at a time: no second one is asked for.
    if (*forced == '0' && std::string(GetParam().name) == "2") continue;
    Job job({.workers = 2,
             .servers = 1,
             .environment = {{"BYTEPS_SHM", *forced == '0' ? "1" : "0"},
                             {"BYTEPS_FORCE_DISTRIBUTED", forced},
                             {"BYTEPS_PARTITION_BYTES", "65536"},
                             {"BYTEPS_OP_TIMEOUT", "600"},
                             {"LIAR_AS", GetParam().name}}});
    job.StartWorker(0, "loop", kElements);
    job.StartWorker(1, "loop", kElements, {{"BYTEPS_SCHEDULER", PathOf("E2E_LIAR")}});
    ExpectTold(&job, 2, GetParam().told);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_NE(job.worker(rank).Output().find("scheduler \"liar\" answered next with "), std::string::npos)
          << job.Output();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SchedulerFaultTest,
                         testing::Values(Fault{"1", "which it was not given or which has ended"},
                                         Fault{"2", "which it has answered before"},
                                         Fault{"5", "answered next with 2, which is neither 0 nor 1"}));

}  // namespace
}  // namespace byteps
