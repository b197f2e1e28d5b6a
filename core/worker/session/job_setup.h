// job_setup.h - what a worker prepares to join a job: who it is, and what leads to the others.
//
//     JobSetup setup(&arguments, &registry, &log);
//     absl::Status named = setup.CheckNamed();
//     absl::StatusOr<ControlLinkOptions> link = setup.Prepare(deadline, named, &engine);
//
// Opens transports and schedulers by their plugins, hands them to the engine, and says in the Hello what there is, so
// that the coordinator can decide which way operations go.
//
// Threads: none; afterwards, OpenPeerTransport on the engine's.
// Ownership: everything outlives it; it outlives the engine.
#ifndef BYTEPS_CORE_WORKER_SESSION_JOB_SETUP_H_
#define BYTEPS_CORE_WORKER_SESSION_JOB_SETUP_H_

#include <cstdint>
#include <string>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "core/control/control_link.h"
#include "core/link/endpoint.h"
#include "core/plugin/plugin_registry.h"
#include "core/plugin/scheduler.h"
#include "core/plugin/transport.h"
#include "core/worker/engine/engine.h"
#include "core/worker/session/open_arguments.h"

namespace byteps {

class JobSetup {
 public:
  JobSetup(const OpenArguments* given, PluginRegistry* registry, Logger* log);

  // Plugins that the user names must be there.
  absl::Status CheckNamed();
  EngineOptions MakeEngineOptions() const;
  // Opens what leads to the others, and hands it to the engine; the answer is what the control plane needs. `able`:
  // what is wrong with what the user has named or set. An error, that one or another, has been told to the coordinator,
  // if it can be reached: the others need not wait for us.
  absl::StatusOr<ControlLinkOptions> Prepare(Time deadline, absl::Status able, Engine* engine);

  // There are no others.
  void UseAlone() {
    transport_name_ = "local (a worker alone)";
    scheduler_name_ = "none (a worker alone)";
  }
  // The coordinator has decided: who this member is, and which way operations go; both into `info`, the latter into the
  // log, too.
  void OnEpoch(const control::Epoch& epoch, uint32_t member, bps_info* info);

  // What the user asks for; empty: nothing.
  const std::string& named_transport() const { return named_transport_; }
  // For people.
  const std::string& transport_name() const { return transport_name_; }
  const std::string& local_name() const { return local_name_; }
  const std::string& scheduler_name() const { return scheduler_name_; }
  // A transport has no descriptor: look at it at intervals.
  bool polled_transport() const { return polled_transport_; }
  // A transport can show the library's buffers to other processes.
  bool shared_buffers() const { return shared_buffers_; }

 private:
  // Where the coordinator is, and what this process is, but for its address. An error: it cannot be reported to others.
  absl::StatusOr<ControlLinkOptions> Greeting() const;
  // Our address, into the Hello. `wait`: a name or a route may still come up.
  absl::Status FindAddress(Time deadline, bool wait, ControlLinkOptions* link) const;
  // What leads to the others. An error: they need not wait for us.
  absl::Status PrepareStages(Time deadline, const std::string& token, control::Hello* hello, Engine* engine);
  absl::Status PrepareServers(const std::string& address, const EndpointOptions& endpoint, control::Hello* hello,
                              Engine* engine);
  absl::Status PrepareLocal(const std::string& address, const EndpointOptions& endpoint, Scheduler scheduler,
                            control::Hello* hello, Engine* engine);
  // To other workers; with the first operation that needs it.
  absl::StatusOr<Transport> OpenPeerTransport(const std::string& address);

  const OpenArguments& given_;
  PluginRegistry* const registry_;
  Logger* const log_;
  const uint64_t small_bytes_;
  std::string named_transport_;
  std::string transport_name_;
  std::string local_name_;
  std::string scheduler_name_;
  bool one_host_ = false;
  bool polled_transport_ = false;
  bool shared_buffers_ = false;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SESSION_JOB_SETUP_H_
