#include "tools/info/loopback_check.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/auth.h"
#include "core/base/unique_fd.h"
#include "server/process/listener.h"
#include "tools/info/loopback_worker.h"
#include "tools/info/role_process.h"

namespace byteps {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr int kWorkers = 2;
constexpr Time kLook = 2 * kMillisecond;  // between two looks at the processes
constexpr Time kMargin = 10 * kSecond;    // for the processes to start and to say what went wrong

// What says which job a process belongs to, and its place there, is ours.
bool SaysWhichJob(const std::string& name) {
  for (const char* prefix : {"DMLC_", "BYTEPS_JOB_", "BYTEPS_LOCAL_", "BYTEPS_COORDINATOR_"}) {
    if (name.rfind(prefix, 0) == 0 && name != "DMLC_ENABLE_RDMA") return true;
  }
  return name == "BYTEPS_GLOBAL_RANK" || name == "BYTEPS_GROUPS" || name == "BYTEPS_ORDERED_HOSTS" ||
         name == "BYTEPS_HOST_ID";
}

Variables Common(const LoopbackOptions& options, const LoopbackRoute& route, const std::string& port) {
  Variables variables;
  for (const auto& [name, value] : options.environment) {
    if (!SaysWhichJob(name)) variables[name] = value;
  }
  const bool alone = route.transport.empty();
  const std::string timeout = absl::StrCat(options.timeout / kMillisecond, "ms");
  const std::string random = RandomBytes(16);
  const Variables ours = {
      {"DMLC_PS_ROOT_URI", route.address},
      {"DMLC_PS_ROOT_PORT", port},
      {"DMLC_NODE_HOST", route.address},
      {"DMLC_NUM_WORKER", "1"},
      {"DMLC_NUM_SERVER", alone ? "0" : "1"},
      {"DMLC_WORKER_ID", "0"},
      {"BYTEPS_LOCAL_SIZE", absl::StrCat(kWorkers)},
      {"BYTEPS_FORCE_DISTRIBUTED", alone ? "0" : "1"},
      {"BYTEPS_LOCAL_REDUCE", "1"},
      // One transport at a time: otherwise shared memory would do what the network is to do.
      {"BYTEPS_SHM", alone ? "1" : "0"},
      {"BYTEPS_TRANSPORT", alone ? "auto" : route.transport},
      {"BYTEPS_JOB_ID", "bps_info"},
      {"BYTEPS_JOB_TOKEN", std::string(absl::BytesToHexString(absl::string_view(random.data(), random.size())))},
      {"BYTEPS_JOB_LINGER", "1"},
      {"BYTEPS_START_TIMEOUT", timeout},
      {"BYTEPS_OP_TIMEOUT", timeout},
  };
  for (const auto& [name, value] : ours) variables[name] = value;
  return variables;
}

class Job {
 public:
  Job(const LoopbackOptions& options, const LoopbackRoute& route, UniqueFd listener, const std::string& port) {
    const Variables common = Common(options, route, port);
    Variables variables = common;
    variables["DMLC_ROLE"] = "scheduler";
    variables["BYTEPS_COORDINATOR_FD"] = absl::StrCat(listener.get());
    Start("the coordinator", {options.server}, variables, listener.get());
    if (!route.transport.empty()) {
      variables = common;
      variables["DMLC_ROLE"] = "server";
      Start("the server", {options.server}, variables);
    }
    services_ = processes_.size();
    for (int rank = 0; rank < kWorkers; ++rank) {
      variables = common;
      variables["DMLC_ROLE"] = "worker";
      variables["BYTEPS_LOCAL_RANK"] = absl::StrCat(rank);
      Start(absl::StrCat("worker ", rank), {options.program, kLoopbackWorkerOption, options.library}, variables);
    }
  }

  // Until the workers have ended, or one process has failed.
  absl::Status Wait(Time deadline) {
    while (true) {
      size_t workers_left = 0;
      for (size_t i = processes_.size(); i-- > 0;) {  // workers first: they say best what is wrong
        RoleProcess& process = *processes_[i];
        if (!process.Ended()) {
          workers_left += i >= services_;
        } else if (!process.Succeeded()) {
          return absl::UnavailableError(absl::StrCat(process.name(), " ", process.Ending(), ": ", process.LastLine()));
        }
      }
      if (workers_left == 0) return absl::OkStatus();
      if (Now() >= deadline) return absl::DeadlineExceededError(absl::StrCat("nothing has ended in time", LastWords()));
      ::usleep(kLook / 1000);
    }
  }

  std::string OutputOfRankZero() const { return processes_[services_]->LastLine(); }

 private:
  void Start(std::string name, const std::vector<std::string>& command, const Variables& variables, int fd = -1) {
    processes_.push_back(std::make_unique<RoleProcess>(std::move(name), command, variables, fd));
  }

  std::string LastWords() const {
    std::string text;
    for (const auto& process : processes_) {
      const std::string line = process->LastLine();
      if (!line.empty()) absl::StrAppend(&text, "; ", process->name(), " said: ", line);
    }
    return text;
  }

  std::vector<std::unique_ptr<RoleProcess>> processes_;  // services, then workers in the order of their ranks
  size_t services_ = 0;
};

}  // namespace

absl::StatusOr<LoopbackTimes> LoopbackCheck::Run(const LoopbackRoute& route) const {
  absl::StatusOr<UniqueFd> listener = Listen({.host = route.address, .port = 0});
  if (!listener.ok()) return listener.status();
  const std::string where = ListenerAddress(listener->get());
  Job job(options_, route, *std::move(listener), where.substr(where.rfind(':') + 1));
  if (absl::Status status = job.Wait(After(Now(), 2 * options_.timeout + kMargin)); !status.ok()) return status;
  LoopbackTimes times;
  const std::string line = job.OutputOfRankZero();
  if (std::sscanf(line.c_str(), kLoopbackResultFormat, &times.small_us, &times.large_us) != 2) {
    return absl::InternalError(absl::StrCat("worker 0 said no times: ", line));
  }
  return times;
}

}  // namespace byteps
