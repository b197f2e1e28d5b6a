#include "tests/e2e/job.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "server/process/listener.h"
#include "tests/server/process/idleness.h"
#include "tests/server/process/real_job.h"

namespace byteps {
namespace {

// The path of something that the test was given (see BUILD).
std::string Given(const char* variable) {
  const char* path = std::getenv(variable);
  EXPECT_NE(path, nullptr) << variable;
  return path == nullptr ? "" : std::filesystem::absolute(path).string();
}

std::string FolderOf(const std::string& path) { return std::filesystem::path(path).parent_path().string(); }

}  // namespace

Job::Job(JobOptions options) : options_(std::move(options)) {
  workers_.resize(static_cast<size_t>(options_.workers));
  servers_.resize(static_cast<size_t>(options_.servers));
  if (options_.by_hand) {
    port_ = FreePort();
    return;
  }
  // The coordinator inherits a socket that listens already, so no other process can take the port.
  listener_ = Listen({.host = "127.0.0.1", .port = 0}).value();
  const std::string address = ListenerAddress(listener_.get());
  port_ = std::stoi(address.substr(address.rfind(':') + 1));
  StartCoordinator();
  if (options_.start_servers) StartServers();
}

std::map<std::string, std::string> Job::Environment(const std::string& role) const {
  std::map<std::string, std::string> environment = {
      {"DMLC_ROLE", role},
      {"DMLC_PS_ROOT_URI", "127.0.0.1"},
      {"DMLC_PS_ROOT_PORT", std::to_string(port_)},
      {"DMLC_NUM_WORKER", std::to_string(std::max<size_t>(options_.hosts.size(), 1))},
      {"DMLC_NUM_SERVER", std::to_string(options_.servers)},
      {"DMLC_WORKER_ID", "0"},
      {"BYTEPS_LOCAL_SIZE", std::to_string(options_.workers)},
      {"BYTEPS_FORCE_DISTRIBUTED", options_.servers == 0 ? "0" : "1"},
      {"BYTEPS_JOB_LINGER", "1"},
      {"BYTEPS_PLUGIN_PATH",
       FolderOf(Given("E2E_TCP")) + ":" + FolderOf(Given("E2E_SHM")) + ":" + FolderOf(Given("E2E_CREDIT"))},
      {"BYTEPS_SERVER_ENGINE_THREAD", "2"},
      {"BYTEPS_SERVER_MEMORY", "64M"},
      {"BYTEPS_SHM", std::getenv("E2E_BYTEPS_SHM")},
  };
  if (const char* in_place = std::getenv("E2E_BYTEPS_SHM_IN_PLACE")) environment["BYTEPS_SHM_IN_PLACE"] = in_place;
  for (const auto& [name, value] : options_.environment) environment[name] = value;
  return environment;
}

bool CanRunHindered(const std::string& how) {
  return ChildProcess({Given("E2E_HINDERED"), how, "/bin/true"}, {}).Wait(60 * kSecond) == std::optional<int>(0);
}

std::vector<std::string> Job::Command(const char* program, const std::string& hindered) {
  if (hindered.empty()) return {Given(program)};
  return {Given("E2E_HINDERED"), hindered, Given(program)};
}

void Job::StartCoordinator(const std::map<std::string, std::string>& more) {
  if (options_.by_hand) {
    auto environment = Environment("scheduler");
    for (const auto& [name, value] : more) environment[name] = value;
    coordinator_ = std::make_unique<ChildProcess>(std::vector<std::string>{Given("E2E_SERVER")}, environment);
    return;
  }
  ::fcntl(listener_.get(), F_SETFD, 0);
  auto environment = Environment("scheduler");
  environment["BYTEPS_COORDINATOR_FD"] = std::to_string(listener_.get());
  coordinator_ = std::make_unique<ChildProcess>(std::vector<std::string>{Given("E2E_SERVER")}, environment,
                                                std::vector<int>{listener_.get()});
  listener_ = UniqueFd();
}

void Job::StartServers() {
  for (int rank = 0; rank < options_.servers; ++rank) StartServer(rank);
}

void Job::StartServer(int rank, const std::map<std::string, std::string>& more) {
  auto environment = Environment("server");
  environment["DMLC_RANK"] = std::to_string(rank);
  if (!options_.hosts.empty()) environment["BYTEPS_HOST_ID"] = "servers";
  for (const auto& [name, value] : options_.of_servers) environment[name] = value;
  for (const auto& [name, value] : more) environment[name] = value;
  servers_[static_cast<size_t>(rank)] =
      std::make_unique<ChildProcess>(Command("E2E_SERVER", options_.hindered_servers), environment);
}

void Job::StartWorkers(const std::string& scenario, const std::string& argument) {
  for (int rank = 0; rank < options_.workers; ++rank) StartWorker(rank, scenario, argument);
}

void Job::StartWorker(int rank, const std::string& scenario, const std::string& argument,
                      const std::map<std::string, std::string>& more) {
  auto environment = Environment("worker");
  int host = 0, local = rank;
  if (!options_.hosts.empty()) {
    while (local >= options_.hosts[static_cast<size_t>(host)]) local -= options_.hosts[static_cast<size_t>(host++)];
    std::string sizes;
    for (const int size : options_.hosts) sizes += std::to_string(size) + " ";
    environment["E2E_HOSTS"] = sizes;
    environment["DMLC_WORKER_ID"] = std::to_string(host);
    environment["BYTEPS_HOST_ID"] = "host" + std::to_string(host);
    environment["BYTEPS_LOCAL_SIZE"] = std::to_string(options_.hosts[static_cast<size_t>(host)]);
    environment["BYTEPS_FORCE_DISTRIBUTED"] = "0";
  }
  environment["BYTEPS_LOCAL_RANK"] = std::to_string(local);
  for (const auto& [name, value] : options_.of_workers) environment[name] = value;
  for (const auto& [name, value] : more) environment[name] = value;
  std::vector<std::string> command = Command("E2E_WORKER", options_.hindered_workers);
  command.insert(command.end(), {scenario, argument});
  workers_[static_cast<size_t>(rank)] = std::make_unique<ChildProcess>(command, environment);
}

void Job::ExpectSuccess(Time timeout) {
  const Time deadline = After(Now(), timeout);
  for (const auto& worker : workers_) {
    if (worker == nullptr) continue;  // never started
    ASSERT_EQ(worker->Wait(deadline - Now()), std::optional<int>(0)) << Output();
  }
  for (const auto& server : servers_) {
    if (server == nullptr) continue;
    ASSERT_EQ(server->Wait(60 * kSecond), std::optional<int>(0)) << Output();
  }
  ASSERT_EQ(coordinator_->Wait(60 * kSecond), std::optional<int>(0)) << Output();
}

void Job::ExpectIdle() {
  std::vector<pid_t> processes = {coordinator_->pid()};
  for (const auto& server : servers_) processes.push_back(server->pid());
  for (const auto& worker : workers_) {
    ASSERT_TRUE(worker->WaitForOutput("idle", 60 * kSecond)) << Output();
    processes.push_back(worker->pid());
  }
  EXPECT_TRUE(AreIdle(processes)) << Output();
  for (const auto& worker : workers_) worker->Signal(SIGUSR1);
}

std::string Job::Output() {
  std::string text;
  if (coordinator_ != nullptr) text += "\n---- coordinator\n" + coordinator_->Output();
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (servers_[i] != nullptr) text += "\n---- server " + std::to_string(i) + "\n" + servers_[i]->Output();
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i] != nullptr) text += "\n---- worker " + std::to_string(i) + "\n" + workers_[i]->Output();
  }
  return text;
}

}  // namespace byteps
