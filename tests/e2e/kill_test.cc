// Any member of a job is killed, at whatever moment of a storm of operations: every other member names the one that it
// misses, and ends.
//
//     bazel test //tests/e2e:kill_test --test_output=all --test_env=E2E_KILL_SEED=17    # who, and about when
//     ... --test_env=E2E_KILL_SEED=1 --test_env=E2E_KILLS=100                           # so many, from there on
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

constexpr uint64_t kKills = 6;
constexpr int kWorkers = 3;
constexpr int kServers = 2;

// Until a test gives up; nothing that works comes near it.
constexpr Time kPatience = 60 * kSecond;
// No member waits for a timeout: that a member was killed is known at once.
constexpr Time kAtOnce = 10 * kSecond;

uint64_t Number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// How the three workers are placed: each pushes for itself, on two hosts, or without servers.
enum class Layout { kApart, kHosts, kLocal };

struct Victim {
  ChildProcess* process;
  std::string name;
  std::regex words;  // what names it
};

Victim Choose(Job* job, int servers, std::mt19937_64* random) {
  int number = static_cast<int>((*random)() % static_cast<uint64_t>(kWorkers + servers + 1));
  if (number < kWorkers) {
    const std::string rank = std::to_string(number);
    return {&job->worker(number), "worker " + rank,
            std::regex("worker rank " + rank + " \\(host |rank " + rank + " \\(worker, host ")};
  }
  number -= kWorkers;
  if (number < servers) {
    const std::string rank = std::to_string(number);
    return {&job->server(number), "server " + rank,
            std::regex("server (rank )?" + rank + " \\(host |rank " + rank + " \\(server, host ")};
  }
  return {&job->coordinator(), "coordinator", std::regex("coordinator 127.0.0.1:" + std::to_string(job->port()))};
}

void Kill(uint64_t seed) {
  std::mt19937_64 random(seed);
  const bool shm = std::string(std::getenv("E2E_BYTEPS_SHM")) == "1";
  const auto layout = shm ? static_cast<Layout>(random() % 3) : Layout::kApart;
  const int servers = layout == Layout::kLocal ? 0 : kServers;
  JobOptions options{.workers = kWorkers, .servers = servers};
  if (layout == Layout::kHosts) options.hosts = {2, 1};
  // Longer than any member waits here: what tells of a death is the death.
  options.environment = {{"BYTEPS_PEER_TIMEOUT", "300"}, {"BYTEPS_OP_TIMEOUT", "300"}};
  Job job(options);
  job.StartWorkers("storm", std::to_string(seed % 1000000));
  for (int rank = 0; rank < kWorkers; ++rank) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("working", kPatience)) << job.Output();
  }
  const Victim victim = Choose(&job, servers, &random);
  const auto delay = static_cast<useconds_t>(random() % 300'000);
  SCOPED_TRACE("E2E_KILL_SEED=" + std::to_string(seed) + ": " + victim.name + " after " + std::to_string(delay) +
               " us, layout " + std::to_string(static_cast<int>(layout)));
  ::usleep(delay);  // the moment of the fault, not a wait for anything
  const Time began = Now();
  victim.process->Signal(SIGKILL);
  for (int rank = 0; rank < kWorkers; ++rank) {
    ChildProcess& worker = job.worker(rank);
    if (&worker == victim.process) continue;
    ASSERT_EQ(worker.Wait(kPatience), std::optional<int>(3)) << "worker " << rank << "\n" << job.Output();
    std::istringstream lines(worker.Output());
    int errors = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("error ", 0) != 0) continue;
      ++errors;
      EXPECT_EQ(line.rfind("error 14: ", 0), 0u) << line;
      EXPECT_TRUE(std::regex_search(line, victim.words)) << line;
    }
    EXPECT_GT(errors, 0);
  }
  const Time told = Now() - began;
  std::vector<ChildProcess*> services = {&job.coordinator()};
  for (int rank = 0; rank < servers; ++rank) services.push_back(&job.server(rank));
  for (ChildProcess* service : services) {
    EXPECT_TRUE(service->Wait(kPatience).has_value()) << "a process stays behind";
  }
  EXPECT_LT(Now() - began, kAtOnce);
  std::cout << "seed " << seed << ": " << victim.name << " killed; the workers had ended after " << told / kMillisecond
            << " ms, everybody after " << (Now() - began) / kMillisecond << " ms" << std::endl;
  if (testing::Test::HasFailure()) std::cout << job.Output() << std::endl;
}

TEST(KillTest, AKilledMemberIsNamedByAllOthers) {
  const bool one = std::getenv("E2E_KILL_SEED") != nullptr;
  const uint64_t first = Number("E2E_KILL_SEED", std::random_device()());
  const uint64_t count = Number("E2E_KILLS", one ? 1 : kKills);
  for (uint64_t seed = first; seed < first + count; ++seed) Kill(seed);
}

// What a transport says of a peer can be told apart from the log alone: no numbers without a meaning there.
TEST(KillTest, ATransportNamesItsPeersAsTheJobDoes) {
  Job job({.workers = 2, .servers = 1, .of_servers = {{"BYTEPS_LOG_LEVEL", "INFO"}}});
  job.StartWorkers("storm", "1");
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("working", kPatience)) << job.Output();
  }
  const std::string pid = std::to_string(job.worker(1).pid());
  // The coordinator, which may know first, is kept from telling.
  job.coordinator().Signal(SIGSTOP);
  job.worker(1).Signal(SIGKILL);
  const std::string lost = "the connection to rank 1 ";
  EXPECT_TRUE(job.server(0).WaitForOutput(lost, kPatience)) << job.Output();
  job.coordinator().Signal(SIGCONT);
  ASSERT_TRUE(job.worker(0).Wait(kPatience).has_value() && job.server(0).Wait(kPatience).has_value()) << job.Output();
  const bool shm = std::string(std::getenv("E2E_BYTEPS_SHM")) == "1";
  const std::regex words("rank 1 \\(.*pid " + pid + "\\) " +
                         (shm ? "(has ended|closed its connection|is lost: its memory cannot be read)"
                              : "at [^ ]+ (closed its connection|broke off)"));
  EXPECT_TRUE(std::regex_search(job.server(0).Output(), words)) << job.server(0).Output();
  // What is flushed from its connection is no cause.
  EXPECT_EQ(job.server(0).Output().find("anceled"), std::string::npos) << job.server(0).Output();
}

}  // namespace
}  // namespace byteps
