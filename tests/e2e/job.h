// job.h - a whole job of real processes on this host: a coordinator, servers, workers, over TCP on loopback.
//
//     Job job({.workers = 2, .servers = 3});
//     job.StartWorkers("sums");
//     job.ExpectSuccess();                       // all workers, then servers and coordinator, end with 0
//
// What is still running when the object goes is killed.
#ifndef BYTEPS_TESTS_E2E_JOB_H_
#define BYTEPS_TESTS_E2E_JOB_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "core/base/unique_fd.h"
#include "tests/server/process/child_process.h"

namespace byteps {

struct JobOptions {
  int workers = 2;
  // Workers of each, if there are several in name, each with a network link of its own, as the servers together have;
  // else empty.
  std::vector<int> hosts;
  int servers = 1;                                 // 0: the workers reduce among themselves
  std::map<std::string, std::string> environment;  // of every process, on top of what the job needs
  std::map<std::string, std::string> of_servers;
  std::map<std::string, std::string> of_workers;
  // How hindered.cc runs them; empty: not at all.
  std::string hindered_servers;
  std::string hindered_workers;
  bool start_servers = true;  // false: by StartServers, later
  bool by_hand = false;       // nothing is started: the coordinator by StartCoordinator, where the variables say
};

// False: the system does not let this user hinder processes in this way.
bool CanRunHindered(const std::string& how);

class Job {
 public:
  explicit Job(JobOptions options);

  void StartCoordinator(const std::map<std::string, std::string>& environment = {});
  void StartServers();
  void StartServer(int rank, const std::map<std::string, std::string>& environment = {});
  // One per rank, all in this scenario of tests/e2e/worker.cc.
  void StartWorkers(const std::string& scenario, const std::string& argument = "");
  void StartWorker(int rank, const std::string& scenario, const std::string& argument = "",
                   const std::map<std::string, std::string>& environment = {});

  // Workers, if any were started, end with 0, and then the others, which the job's end reaches.
  void ExpectSuccess(Time timeout = 60 * kSecond);
  // Workers in the scenario "idle", their servers and the coordinator use no processor. Then the workers go on.
  void ExpectIdle();
  // Everything that was written, for messages.
  std::string Output();

  ChildProcess& worker(int rank) { return *workers_[static_cast<size_t>(rank)]; }
  ChildProcess& server(int rank) { return *servers_[static_cast<size_t>(rank)]; }
  ChildProcess& coordinator() { return *coordinator_; }
  int port() const { return port_; }

 private:
  static std::vector<std::string> Command(const char* program, const std::string& hindered);
  std::map<std::string, std::string> Environment(const std::string& role) const;

  const JobOptions options_;
  UniqueFd listener_;
  int port_ = 0;
  std::unique_ptr<ChildProcess> coordinator_;
  std::vector<std::unique_ptr<ChildProcess>> servers_;
  std::vector<std::unique_ptr<ChildProcess>> workers_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_E2E_JOB_H_
