#include "core/worker/session/job_setup.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/auth.h"
#include "core/base/reserved_files.h"
#include "core/base/status.h"
#include "core/control/host_identity.h"
#include "core/control/refusal.h"
#include "core/transports/host_transport.h"
#include "core/transports/transport_choice.h"
#include "core/transports/transport_set.h"

namespace byteps {
namespace {

// How long the coordinator's word on a lost server is waited for.
constexpr Time kFatalGrace = 2 * kSecond;
// How long the servers are waited for after an operation was given up (see ServersStage).
constexpr Time kReleaseGrace = 2 * kSecond;
// What may wait in the outbox for one server lane.
constexpr uint64_t kOutboxBytes = 64 * 1024;
// Memory for results and payloads, where the transport needs it (verbs, EFA).
constexpr uint32_t kWindowSlots = 4;
constexpr uint32_t kBounceBlocks = 16;
constexpr Time kHelloInterval = 20 * kMillisecond;
// Of the reason why a worker cannot reduce with the others of its host.
constexpr size_t kMaxRefusal = 1024;

// For people: which host it is (behind the semicolon) is between the members.
std::string NameOf(const control::Lane& lane) {
  return absl::StrCat(lane.transport(), " (", lane.provider().substr(0, lane.provider().find(';')), ")");
}

}  // namespace

JobSetup::JobSetup(const OpenArguments* given, PluginRegistry* registry, Logger* log)
    : given_(*given),
      registry_(registry),
      log_(log),
      small_bytes_(static_cast<uint64_t>(given_.config.GetInt("BYTEPS_INLINE_BYTES"))) {}

// Plugins that the user names must be there, also where this job has no use for them: a name with a slip in it should
// not wait for the day on which it counts.
absl::Status JobSetup::CheckNamed() {
  absl::StatusOr<std::string> transport = NamedTransport(given_.config);
  if (!transport.ok()) return transport.status();
  named_transport_ = *std::move(transport);
  if (given_.config.IsSet("BYTEPS_TRANSPORT") && !named_transport_.empty()) {
    const auto found = registry_->FindTransport(named_transport_);
    if (!found.ok()) return found.status();
    named_transport_ = (*found)->info.name;
  }
  const std::string& scheduler = given_.config.GetString("BYTEPS_SCHEDULER");
  if (given_.config.IsSet("BYTEPS_SCHEDULER") && !absl::EqualsIgnoreCase(scheduler.c_str(), "auto")) {
    const auto found = registry_->FindScheduler(scheduler);
    if (!found.ok()) return found.status();
  }
  return absl::OkStatus();
}

absl::StatusOr<ControlLinkOptions> JobSetup::Prepare(Time deadline, absl::Status able, Engine* engine) {
  // The transports may take all descriptors there are; the coordinator, and by it the others, shall hear why then.
  ReservedFiles reserved;
  const WorkerPlace& place = given_.place;
  const bool forced = given_.config.GetBool("BYTEPS_FORCE_DISTRIBUTED");
  if (able.ok() && place.num_servers == 0 && (place.num_hosts > 1 || forced)) {
    able = absl::InvalidArgumentError(absl::StrCat(
        "this job has ", place.num_hosts, " worker hosts with ", place.local_size, " workers here",
        forced ? " and BYTEPS_FORCE_DISTRIBUTED=1" : "", ", and no server: set DMLC_NUM_SERVER (bpslaunch --servers)"));
  }
  absl::StatusOr<ControlLinkOptions> link = Greeting();
  // What the user has named comes first.
  if (!link.ok()) return able.ok() ? link.status() : able;
  const absl::Status found = FindAddress(deadline, able.ok(), &*link);
  if (able.ok()) able = found;
  control::Hello& hello = link->client.hello;
  if (able.ok()) able = PrepareStages(deadline, link->client.token, &hello, engine);
  BPS_LOG(*log_, kDebug) << "coordinator at " << link->connection.host << ":" << link->connection.port << ", job \""
                         << hello.job() << "\"; this worker is at " << hello.host().address() << " (host \""
                         << hello.host().name() << "\", pid " << hello.pid() << ")";
  link->client.start_timeout = deadline - Now();
  if (!able.ok()) {
    reserved.Release();
    hello.set_named_transport(named_transport_);
    return TellRefusal(*std::move(link), able, *log_);
  }
  link->client.start_waited = given_.config.GetDuration("BYTEPS_START_TIMEOUT").count() - link->client.start_timeout;
  return link;
}

absl::StatusOr<ControlLinkOptions> JobSetup::Greeting() const {
  const std::string& coordinator = given_.config.GetString("DMLC_PS_ROOT_URI");
  const int port = static_cast<int>(given_.config.GetInt("DMLC_PS_ROOT_PORT"));
  if (coordinator.empty() || port == 0) {
    return absl::InvalidArgumentError(
        "the address of the coordinator is not known: set DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, or start this "
        "program with bpslaunch");
  }
  absl::StatusOr<std::string> token =
      JobToken(given_.config.GetString("BYTEPS_JOB_TOKEN"), given_.config.GetString("BYTEPS_JOB_TOKEN_FILE"));
  if (!token.ok()) return token.status();
  ControlLinkOptions link;
  link.allow_unauthenticated = given_.config.GetBool("BYTEPS_ALLOW_UNAUTHENTICATED");
  link.connection.host = coordinator;
  link.connection.port = port;
  link.client.token = *std::move(token);
  control::Hello& hello = link.client.hello;
  hello.set_role(control::WORKER);
  hello.set_job(given_.config.GetString("BYTEPS_JOB_ID"));
  hello.set_session(given_.name);
  *hello.mutable_host() = HostIdentity(given_.config.GetString("BYTEPS_HOST_ID"));
  hello.set_pid(::getpid());
  hello.set_host_index(given_.place.host_index);
  hello.set_num_hosts(given_.place.num_hosts);
  hello.set_local_rank(given_.place.local_rank);
  hello.set_local_size(given_.place.local_size);
  hello.set_num_servers(given_.place.num_servers);
  hello.set_preferred_rank(
      given_.config.Has("BYTEPS_GLOBAL_RANK") ? static_cast<int32_t>(given_.config.GetInt("BYTEPS_GLOBAL_RANK")) : -1);
  hello.set_partition_bytes(static_cast<uint64_t>(given_.config.GetInt("BYTEPS_PARTITION_BYTES")));
  hello.set_groups(given_.config.GetString("BYTEPS_GROUPS"));
  hello.set_collective_path(given_.config.GetString("BYTEPS_COLLECTIVE_PATH"));
  hello.set_force_servers(given_.config.GetBool("BYTEPS_FORCE_DISTRIBUTED"));
  hello.set_asynchronous(given_.config.GetBool("BYTEPS_ENABLE_ASYNC"));
  if (given_.config.Has("BYTEPS_STALENESS")) {
    hello.set_staleness(1 + static_cast<uint64_t>(given_.config.GetInt("BYTEPS_STALENESS")));
  }
  return link;
}

absl::Status JobSetup::FindAddress(Time deadline, bool wait, ControlLinkOptions* link) const {
  const OwnAddressOptions own{.node_host = given_.config.GetString("DMLC_NODE_HOST"),
                              .interface = given_.config.GetString("DMLC_INTERFACE"),
                              .coordinator = link->connection.host,
                              .port = link->connection.port,
                              .patience = std::clamp(deadline - Now(), kSecond / 2, 5 * kSecond)};
  absl::StatusOr<std::string> address = OwnAddress(own);
  while (!address.ok() && address.status().code() == absl::StatusCode::kUnavailable && Now() < deadline && wait) {
    ::usleep(100'000);
    address = OwnAddress(own);
  }
  if (!address.ok()) return address.status();
  link->client.hello.mutable_host()->set_address(*std::move(address));
  return absl::OkStatus();
}

EngineOptions JobSetup::MakeEngineOptions() const {
  EngineOptions options;
  options.servers = {small_bytes_, kOutboxBytes, kReleaseGrace, given_.config.GetBool("BYTEPS_CHECKSUM"),
                     given_.config.GetBool("BYTEPS_GPU_DIRECT")};
  options.local = {kReleaseGrace};
  options.fatal_grace = kFatalGrace;
  options.stall_warning = given_.config.GetDuration("BYTEPS_STALL_WARNING").count();
  return options;
}

absl::Status JobSetup::PrepareStages(Time deadline, const std::string& token, control::Hello* hello, Engine* engine) {
  const std::string& address = hello->host().address();
  EndpointOptions endpoint;
  endpoint.hello_interval = kHelloInterval;
  endpoint.hello_timeout = std::max<Time>(deadline - Now(), kSecond);
  endpoint.ping_interval = given_.config.GetDuration("BYTEPS_HEARTBEAT_INTERVAL").count();
  endpoint.peer_timeout = given_.config.GetDuration("BYTEPS_PEER_TIMEOUT").count();
  endpoint.token = token;

  if (given_.place.num_servers != 0) {
    if (absl::Status status = PrepareServers(address, endpoint, hello, engine); !status.ok()) return status;
  } else {
    hello->set_named_transport(named_transport_);
    if (given_.config.IsSet("DMLC_ENABLE_RDMA")) {
      BPS_LOG(*log_, kInfo) << "DMLC_ENABLE_RDMA=" << given_.config.GetString("DMLC_ENABLE_RDMA")
                            << " counts for nothing here: a job without servers has no transport between hosts";
    }
  }
  // A wrong BYTEPS_SCHEDULER is the user's mistake, no reason to go without the local stage.
  absl::StatusOr<Scheduler> scheduler =
      registry_->CreateScheduler(given_.config.GetString("BYTEPS_SCHEDULER"), BPS_DIRECTION_LOCAL);
  if (!scheduler.ok()) return scheduler.status();
  scheduler_name_ = scheduler->name();
  if (absl::Status status = PrepareLocal(address, endpoint, *std::move(scheduler), hello, engine); !status.ok()) {
    hello->set_local_refusal(std::string(status.message()).substr(0, kMaxRefusal));
    BPS_VERBOSE(*log_, 1) << "no reduction within this host: " << hello->local_refusal();
  }
  engine->UseCollectives({endpoint, kReleaseGrace}, [this, address] { return OpenPeerTransport(address); });
  return absl::OkStatus();
}

// What leads to the servers.
absl::Status JobSetup::PrepareServers(const std::string& address, const EndpointOptions& endpoint,
                                      control::Hello* hello, Engine* engine) {
  absl::StatusOr<std::string> wanted = ChooseTransport(registry_, given_.config, *log_, address);
  if (!wanted.ok()) return wanted.status();
  absl::StatusOr<Transport> transport = OpenTransports(registry_, given_.config, *wanted, address, *log_);
  if (!transport.ok()) return transport.status();
  absl::StatusOr<Scheduler> scheduler =
      registry_->CreateScheduler(given_.config.GetString("BYTEPS_SCHEDULER"), BPS_DIRECTION_PUSH);
  if (!scheduler.ok()) return scheduler.status();
  scheduler_name_ = scheduler->name();

  control::Lane& lane = *hello->add_lanes();
  lane.set_transport(transport->name());
  lane.set_provider(transport->provider());
  absl::StatusOr<std::string> bytes = transport->Address();
  if (!bytes.ok()) return bytes.status();
  lane.set_address(*bytes);
  transport_name_ = NameOf(lane);
  // Where there is such a member, the processes of one host meet in it.
  if (transport->shares() && lane.transport() != kHostTransport) {
    absl::StrAppend(&transport_name_, " between hosts, ", kHostTransport, " within");
  }
  polled_transport_ = !transport->Has(BPS_TRANSPORT_WAIT_FD);
  shared_buffers_ |= transport->shares();

  CarrierOptions carrier;
  carrier.endpoint = endpoint;
  carrier.window_slots = kWindowSlots;
  carrier.bounce_blocks = kBounceBlocks;
  carrier.in_place = given_.config.GetBool("BYTEPS_SHM_IN_PLACE");
  engine->UseServers(*std::move(scheduler)).AddCarrier(lane.transport(), *std::move(transport), carrier);
  return absl::OkStatus();
}

// What leads to the other workers of this host. Not OK: they are reached through the servers.
absl::Status JobSetup::PrepareLocal(const std::string& address, const EndpointOptions& endpoint, Scheduler scheduler,
                                    control::Hello* hello, Engine* engine) {
  if (!given_.config.GetBool("BYTEPS_LOCAL_REDUCE")) return absl::FailedPreconditionError("BYTEPS_LOCAL_REDUCE=0");
  if (hello->force_servers()) return absl::FailedPreconditionError("BYTEPS_FORCE_DISTRIBUTED=1");
  if (hello->asynchronous()) return absl::FailedPreconditionError("BYTEPS_ENABLE_ASYNC=1");
  if (!given_.config.GetBool("BYTEPS_SHM")) return absl::FailedPreconditionError("BYTEPS_SHM=0");
  if (given_.place.num_hosts > 1 && given_.place.local_size == 1) {
    return absl::FailedPreconditionError("it is the only worker of its host");
  }
  // It was not asked for by name, as the error of opening it would say.
  if (const std::string why = registry_->WhyNotTransport(kHostTransport); !why.empty()) {
    return absl::UnavailableError(absl::StrCat("transport \"", kHostTransport, "\" cannot be used here: ", why));
  }
  absl::StatusOr<Transport> transport = registry_->OpenTransport(kHostTransport, address);
  if (!transport.ok()) return transport.status();
  const bps_transport_caps caps = transport->caps();
  if (absl::Status usable = LocalStage::Usable(caps); !usable.ok()) {
    return Annotate(usable, absl::StrCat("transport \"", transport->name(), "\""));
  }
  absl::StatusOr<std::string> bytes = transport->Address();
  if (!bytes.ok()) return bytes.status();
  control::Lane& lane = *hello->mutable_local();
  lane.set_transport(transport->name());
  lane.set_provider(transport->provider());
  lane.set_address(*bytes);
  hello->set_inline_bytes(std::min(small_bytes_, LocalStage::MaxInline(caps)));
  local_name_ = NameOf(lane);
  polled_transport_ |= !transport->Has(BPS_TRANSPORT_WAIT_FD);
  shared_buffers_ |= transport->shares();
  engine->UseLocal(std::move(scheduler), *std::move(transport), endpoint);
  return absl::OkStatus();
}

void JobSetup::OnEpoch(const control::Epoch& epoch, uint32_t member, bps_info* info) {
  for (const control::Member& worker : epoch.workers()) {
    if (worker.member() != member) continue;
    info->rank = worker.rank();
    info->local_rank = worker.local_rank();
    info->local_size = worker.local_size();
  }
  one_host_ = epoch.local_sizes_size() == 1;
  info->size = epoch.workers_size();
  info->num_servers = one_host_ ? 0 : epoch.servers_size();
  info->epoch = epoch.epoch();
  info->generation = epoch.generation();
  if (one_host_ || (epoch.local_sizes_size() > 1 && info->local_size > 1)) {
    BPS_LOG(*log_, kInfo) << "the workers of this host reduce among themselves, over " << local_name_;
  }
  if (one_host_) {
    transport_name_ = local_name_;
    return;
  }
  const char* credit = given_.config.PluginValue("BYTEPS_SCHEDULING_CREDIT");
  const auto bound = static_cast<uint64_t>(given_.config.GetInt("BYTEPS_PARTITION_BYTES"));
  const bool exact = bound != 0 && bound < epoch.slot_bytes();
  BPS_LOG(*log_, kInfo) << "scheduler " << scheduler_name_
                        << ", BYTEPS_SCHEDULING_CREDIT=" << (credit == nullptr ? "(not set)" : credit)
                        << ", partitions of at most " << (exact ? bound : epoch.slot_bytes()) << " bytes"
                        << (bound == 0 ? ", by size and rate" : "");
}

absl::StatusOr<Transport> JobSetup::OpenPeerTransport(const std::string& address) {
  absl::StatusOr<Transport> transport = absl::UnknownError("");
  if (one_host_) {
    transport = registry_->OpenTransport(kHostTransport, address);
  } else {
    const absl::StatusOr<std::string> wanted = ChooseTransport(registry_, given_.config, *log_, address);
    if (!wanted.ok()) return wanted.status();
    transport = OpenTransports(registry_, given_.config, *wanted, address, *log_);
  }
  if (transport.ok()) polled_transport_ |= !transport->Has(BPS_TRANSPORT_WAIT_FD);
  return transport;
}

}  // namespace byteps
