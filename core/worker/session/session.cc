#include "core/worker/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/auth.h"
#include "core/base/group_ranges.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/base/version.h"
#include "core/control/host_identity.h"
#include "core/control/refusal.h"
#include "core/transports/transport_choice.h"
#include "core/transports/transport_set.h"

namespace byteps {
namespace {

// Between two looks at the control connection while the I/O thread is not asleep: it is not in a hurry.
constexpr Time kControlInterval = kMillisecond / 2;
// Between two looks at a transport without a descriptor, with and without operations in flight.
constexpr Time kBusyPoll = 50'000;
constexpr Time kIdlePoll = 5 * kMillisecond;
// How long the coordinator's word on a lost server is waited for.
constexpr Time kFatalGrace = 2 * kSecond;
// How long the servers are waited for after an operation was given up (see ServersStage).
constexpr Time kReleaseGrace = 2 * kSecond;
// What may wait in the outbox for one server lane.
constexpr uint64_t kOutboxBytes = 64 * 1024;
// Memory for results and payloads, where the transport needs it (verbs, EFA).
constexpr uint32_t kWindowSlots = 4;
constexpr uint32_t kBounceBlocks = 16;
// How much later than its deadline Shutdown ends at the latest: beyond ControlClientOptions.grace.
constexpr Time kLeaveGrace = 4 * kSecond;
// How long Close waits for the last words to the coordinator to leave.
constexpr Time kDrainTime = kSecond / 2;
constexpr Time kHelloInterval = 20 * kMillisecond;
// Between the workers of one host.
constexpr char kLocalTransport[] = "shm";
// Of the reason why a worker cannot reduce with the others of its host.
constexpr size_t kMaxRefusal = 1024;

// What is said by arguments is blamed on arguments, not on the variables that say the same.
absl::Status CheckGivenPlace(const bps_open_args& args) {
  const auto wrong = [](auto... what) { return absl::InvalidArgumentError(absl::StrCat("bps_open_args.", what...)); };
  if (args.has_place == 0) return absl::OkStatus();
  if (args.has_place != 1) return wrong("has_place is ", args.has_place, ", not 0 or 1");
  if (args.num_hosts < 1) return wrong("num_hosts is ", args.num_hosts, ", less than 1 (with has_place = 1)");
  if (args.local_size < 1) return wrong("local_size is ", args.local_size, ", less than 1 (with has_place = 1)");
  if (args.num_servers < 0) return wrong("num_servers is ", args.num_servers, ": negative");
  if (args.host_index < 0 || args.host_index >= args.num_hosts) {
    return wrong("host_index is ", args.host_index, ", but num_hosts is ", args.num_hosts, " (hosts count from 0)");
  }
  if (args.local_rank < 0 || args.local_rank >= args.local_size) {
    return wrong("local_rank is ", args.local_rank, ", but local_size is ", args.local_size,
                 " (local ranks count from 0)");
  }
  return absl::OkStatus();
}

// Text that goes into control messages, which hold nothing else.
absl::Status CheckUtf8(const bps_open_args& args) {
  const std::pair<const char*, const char*> texts[] = {{"coordinator", args.coordinator},
                                                       {"job", args.job},
                                                       {"name", args.name},
                                                       {"token", args.token},
                                                       {"host", args.host},
                                                       {"transport", args.transport},
                                                       {"scheduler", args.scheduler}};
  for (const auto& [field, value] : texts) {
    if (value == nullptr || IsUtf8(value)) continue;
    return absl::InvalidArgumentError(absl::StrCat("bps_open_args.", field, " is not UTF-8"));
  }
  return absl::OkStatus();
}

// The explicit arguments of bps_open, as values of knobs.
absl::StatusOr<Environment> ArgumentsOf(const bps_open_args& args) {
  if (absl::Status text = CheckUtf8(args); !text.ok()) return text;
  Environment values;
  const auto text = [&](const char* knob, const char* value) {
    if (value != nullptr) values[knob] = value;
  };
  const auto number = [&](const char* knob, int64_t value) { values[knob] = absl::StrCat(value); };
  if (args.coordinator != nullptr) {
    const std::string where = args.coordinator;
    const size_t colon = where.rfind(':');
    int port = 0;
    if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(where.substr(colon + 1), &port) || port < 1 ||
        port > 65535) {
      return absl::InvalidArgumentError(absl::StrCat("bps_open_args.coordinator is \"", where, "\", not host:port"));
    }
    std::string host = where.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    values["DMLC_PS_ROOT_URI"] = host;
    number("DMLC_PS_ROOT_PORT", port);
  }
  text("BYTEPS_JOB_ID", args.job);
  text("BYTEPS_JOB_TOKEN", args.token);
  text("DMLC_NODE_HOST", args.host);
  text("BYTEPS_TRANSPORT", args.transport);
  text("BYTEPS_SCHEDULER", args.scheduler);
  if (args.has_place == 1) {
    number("DMLC_WORKER_ID", args.host_index);
    number("DMLC_NUM_WORKER", args.num_hosts);
    number("BYTEPS_LOCAL_RANK", args.local_rank);
    number("BYTEPS_LOCAL_SIZE", args.local_size);
    number("DMLC_NUM_SERVER", args.num_servers);
  }
  if (args.log_level < 0 || args.log_level > BPS_LOG_ERROR + 2) {
    return absl::InvalidArgumentError(absl::StrCat("bps_open_args.log_level is ", args.log_level));
  }
  if (args.log_level > 0) values["BYTEPS_LOG_LEVEL"] = LogLevelName(static_cast<LogLevel>(args.log_level - 1));
  if (args.timeout_ms < 0) return absl::InvalidArgumentError("bps_open_args.timeout_ms is negative");
  if (args.timeout_ms > 0) values["BYTEPS_START_TIMEOUT"] = absl::StrCat(args.timeout_ms, "ms");
  return values;
}

// For people: which host it is (behind the semicolon) is between the members.
std::string NameOf(const control::Lane& lane) {
  return absl::StrCat(lane.transport(), " (", lane.provider().substr(0, lane.provider().find(';')), ")");
}

WorkerPlace PlaceOf(const Config& config) {
  WorkerPlace place;
  place.host_index = static_cast<int32_t>(config.GetInt("DMLC_WORKER_ID"));
  place.num_hosts = static_cast<int32_t>(config.GetInt("DMLC_NUM_WORKER"));
  place.local_rank = static_cast<int32_t>(config.GetInt("BYTEPS_LOCAL_RANK"));
  place.local_size = static_cast<int32_t>(config.GetInt("BYTEPS_LOCAL_SIZE"));
  place.num_servers = static_cast<int32_t>(config.GetInt("DMLC_NUM_SERVER"));
  return place;
}

absl::Status CheckPlace(const WorkerPlace& place) {
  if (place.local_rank >= place.local_size) {
    return absl::InvalidArgumentError(absl::StrCat("BYTEPS_LOCAL_RANK is ", place.local_rank,
                                                   ", but BYTEPS_LOCAL_SIZE says that this host has ", place.local_size,
                                                   " workers (local ranks from 0)"));
  }
  if (place.host_index >= place.num_hosts) {
    return absl::InvalidArgumentError(absl::StrCat("DMLC_WORKER_ID is ", place.host_index,
                                                   ", but DMLC_NUM_WORKER says that there are ", place.num_hosts,
                                                   " worker hosts (numbered from 0)"));
  }
  return absl::OkStatus();
}

// How soon callers hear that a plugin does not come back, and for how long one who describes a wait waits itself.
constexpr Time kStuckLook = 500 * kMillisecond;
constexpr Time kDescribeTime = 200 * kMillisecond;
// Twice as long may a plugin be in one call when the session is closed.
constexpr Time kStopTime = 2 * kSecond;

}  // namespace

// ---- Opening ----

Session::Session(Config config, Logger log, WorkerPlace place, std::string name)
    : config_(std::move(config)),
      log_(std::move(log)),
      place_(place),
      name_(std::move(name)),
      operation_timeout_(config_.GetDuration("BYTEPS_OP_TIMEOUT").count()),
      shutdown_timeout_(config_.GetDuration("BYTEPS_SHUTDOWN_TIMEOUT").count()),
      small_bytes_(static_cast<uint64_t>(config_.GetInt("BYTEPS_INLINE_BYTES"))),
      huge_pages_(config_.GetBool("BYTEPS_SHM") && config_.GetBool("BYTEPS_HUGE_PAGES")),
      registry_(config_, log_),
      driver_(this, config_.GetDuration("BYTEPS_SPIN_US").count()) {}

absl::StatusOr<std::shared_ptr<Session>> Session::Open(const bps_open_args& args) {
  absl::StatusOr<Environment> arguments = ArgumentsOf(args);
  if (!arguments.ok()) return arguments.status();
  const Environment environment = ReadEnvironment();
  absl::StatusOr<Config> config = Config::Make(environment, *arguments);
  absl::Status wrong = CheckGivenPlace(args);
  wrong.Update(config.status());
  // Enough may be readable for the others to be told.
  if (!config.ok()) config = Config::Readable(environment, *arguments);
  LogOptions log_options = config->GetLogOptions();
  log_options.sink = args.log;
  log_options.user = args.log_user;
  Logger log(log_options);
  config->LogWarnings(log);
  const WorkerPlace place = PlaceOf(*config);
  if (wrong.ok()) wrong = CheckPlace(place);
  if (wrong.ok() && !IsUtf8(config->GetString("BYTEPS_JOB_ID"))) {
    wrong = absl::InvalidArgumentError("BYTEPS_JOB_ID is not UTF-8");
  }

  const Time deadline = After(Now(), config->GetDuration("BYTEPS_START_TIMEOUT").count());
  std::shared_ptr<Session> session(
      new Session(*std::move(config), std::move(log), place, args.name == nullptr ? "" : args.name));
  const bool alone =
      place.num_hosts == 1 && place.local_size == 1 && !session->config_.GetBool("BYTEPS_FORCE_DISTRIBUTED");
  absl::Status status = wrong.ok() ? session->CheckNamed() : wrong;
  if (!alone) {
    status = session->PrepareJob(deadline, status);
  } else if (status.ok()) {
    status = session->PrepareAlone();
  }
  if (status.ok()) {
    // From Start on, opening_ belongs to whoever drives.
    const std::shared_ptr<Request> opening = session->opening_;
    session->driver_.Start("byteps-io");
    if (session->watchdog_ != nullptr) session->watchdog_->Start();
    if (opening != nullptr) status = session->Join(*opening, deadline);
  }
  if (status.ok() && session->shared_buffers_) {
    session->buffers_->Share([owner = session.get()] {
      owner->queue_.Push({});
      owner->driver_.Wake();
    });
  }
  if (status.ok()) return session;
  session->Close();
  return status;
}

// Plugins that the user names must be there, also where this job has no use for them: a name with a slip in it should not
// wait for the day on which it counts.
absl::Status Session::CheckNamed() {
  absl::StatusOr<std::string> transport = NamedTransport(config_);
  if (!transport.ok()) return transport.status();
  named_transport_ = *std::move(transport);
  if (config_.IsSet("BYTEPS_TRANSPORT") && !named_transport_.empty()) {
    const auto found = registry_.FindTransport(named_transport_);
    if (!found.ok()) return found.status();
    named_transport_ = (*found)->info.name;
  }
  const std::string& scheduler = config_.GetString("BYTEPS_SCHEDULER");
  if (config_.IsSet("BYTEPS_SCHEDULER") && !absl::EqualsIgnoreCase(scheduler.c_str(), "auto")) {
    const auto found = registry_.FindScheduler(scheduler);
    if (!found.ok()) return found.status();
  }
  return absl::OkStatus();
}

// A worker alone.
absl::Status Session::PrepareAlone() {
  engine_ = std::make_unique<Engine>(EngineOptions{}, static_cast<EngineHandler*>(this), &log_);
  engine_->UseAlone();
  engine_->UseCollectives({}, nullptr);
  transport_name_ = "local (a worker alone)";
  scheduler_name_ = "none (a worker alone)";
  info_.size = info_.local_size = 1;
  info_.epoch = info_.generation = 1;
  all_ranks_ = ProcessSet::All(1);
  return absl::OkStatus();
}

absl::Status Session::PrepareJob(Time deadline, absl::Status able) {
  const bool forced = config_.GetBool("BYTEPS_FORCE_DISTRIBUTED");
  if (able.ok() && place_.num_servers == 0 && (place_.num_hosts > 1 || forced)) {
    able = absl::InvalidArgumentError(absl::StrCat(
        "this job has ", place_.num_hosts, " worker hosts with ", place_.local_size, " workers here",
        forced ? " and BYTEPS_FORCE_DISTRIBUTED=1" : "", ", and no server: set DMLC_NUM_SERVER (bpslaunch --servers)"));
  }
  absl::StatusOr<ControlLinkOptions> link = Greeting();
  // What the user has named comes first.
  if (!link.ok()) return able.ok() ? link.status() : able;
  const absl::Status found = FindAddress(deadline, able.ok(), &*link);
  if (able.ok()) able = found;
  control::Hello& hello = link->client.hello;
  if (able.ok()) able = PrepareStages(deadline, link->client.token, &hello);
  link->client.start_timeout = deadline - Now();
  if (!able.ok()) {
    hello.set_named_transport(named_transport_);
    return TellRefusal(*std::move(link), able, log_);
  }
  link->client.start_waited = config_.GetDuration("BYTEPS_START_TIMEOUT").count() - link->client.start_timeout;
  control_ = std::make_unique<ControlLink>(*std::move(link), static_cast<ControlHandler*>(this), Now());
  opening_ = std::make_shared<Request>(nullptr, nullptr);
  open_deadline_ = deadline;
  return absl::OkStatus();
}

// Where the coordinator is, and who we are, but for our address. An error: nobody can be told of anything.
absl::StatusOr<ControlLinkOptions> Session::Greeting() const {
  const std::string& coordinator = config_.GetString("DMLC_PS_ROOT_URI");
  const int port = static_cast<int>(config_.GetInt("DMLC_PS_ROOT_PORT"));
  if (coordinator.empty() || port == 0) {
    return absl::InvalidArgumentError(
        "the address of the coordinator is not known: set DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, or start this "
        "program with bpslaunch");
  }
  absl::StatusOr<std::string> token =
      JobToken(config_.GetString("BYTEPS_JOB_TOKEN"), config_.GetString("BYTEPS_JOB_TOKEN_FILE"));
  if (!token.ok()) return token.status();
  ControlLinkOptions link;
  link.allow_unauthenticated = config_.GetBool("BYTEPS_ALLOW_UNAUTHENTICATED");
  link.connection.host = coordinator;
  link.connection.port = port;
  link.client.token = *std::move(token);
  control::Hello& hello = link.client.hello;
  hello.set_role(control::WORKER);
  hello.set_job(config_.GetString("BYTEPS_JOB_ID"));
  hello.set_session(name_);
  *hello.mutable_host() = HostIdentity(config_.GetString("BYTEPS_HOST_ID"));
  hello.set_pid(::getpid());
  hello.set_host_index(place_.host_index);
  hello.set_num_hosts(place_.num_hosts);
  hello.set_local_rank(place_.local_rank);
  hello.set_local_size(place_.local_size);
  hello.set_num_servers(place_.num_servers);
  hello.set_preferred_rank(
      config_.Has("BYTEPS_GLOBAL_RANK") ? static_cast<int32_t>(config_.GetInt("BYTEPS_GLOBAL_RANK")) : -1);
  hello.set_partition_bytes(static_cast<uint64_t>(config_.GetInt("BYTEPS_PARTITION_BYTES")));
  hello.set_groups(config_.GetString("BYTEPS_GROUPS"));
  hello.set_force_servers(config_.GetBool("BYTEPS_FORCE_DISTRIBUTED"));
  return link;
}

// `wait`: a name or a route may still come up.
absl::Status Session::FindAddress(Time deadline, bool wait, ControlLinkOptions* link) const {
  const OwnAddressOptions own{.node_host = config_.GetString("DMLC_NODE_HOST"),
                              .interface = config_.GetString("DMLC_INTERFACE"),
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

// What leads to the others. Not OK: they need not wait for us.
absl::Status Session::PrepareStages(Time deadline, const std::string& token, control::Hello* hello) {
  const std::string& address = hello->host().address();
  EngineOptions options;
  options.servers = {small_bytes_, kOutboxBytes, kReleaseGrace, config_.GetBool("BYTEPS_CHECKSUM")};
  options.local = {kReleaseGrace};
  options.fatal_grace = kFatalGrace;
  options.stall_warning = config_.GetDuration("BYTEPS_STALL_WARNING").count();
  engine_ = std::make_unique<Engine>(options, static_cast<EngineHandler*>(this), &log_);
  EndpointOptions endpoint;
  endpoint.hello_interval = kHelloInterval;
  endpoint.hello_timeout = std::max<Time>(deadline - Now(), kSecond);
  endpoint.ping_interval = config_.GetDuration("BYTEPS_HEARTBEAT_INTERVAL").count();
  endpoint.peer_timeout = config_.GetDuration("BYTEPS_PEER_TIMEOUT").count();
  // The others take a worker that is silent for longer for dead.
  const Time patience = endpoint.peer_timeout > 0 ? endpoint.peer_timeout : operation_timeout_;
  watchdog_ =
      std::make_unique<Watchdog>(&plugin_calls_, patience, &log_, [this](const absl::Status& why) { OnStuck(why); });
  endpoint.token = token;

  if (place_.num_servers != 0) {
    if (absl::Status status = PrepareServers(address, endpoint, hello); !status.ok()) return status;
  } else {
    hello->set_named_transport(named_transport_);
    if (config_.IsSet("DMLC_ENABLE_RDMA")) {
      BPS_LOG(log_, kInfo) << "DMLC_ENABLE_RDMA=" << config_.GetString("DMLC_ENABLE_RDMA")
                           << " counts for nothing here: a job without servers has no transport between hosts";
    }
  }
  // A wrong BYTEPS_SCHEDULER is the user's mistake, no reason to go without the local stage.
  absl::StatusOr<Scheduler> scheduler =
      registry_.CreateScheduler(config_.GetString("BYTEPS_SCHEDULER"), BPS_DIRECTION_LOCAL);
  if (!scheduler.ok()) return scheduler.status();
  scheduler_name_ = scheduler->name();
  scheduler->Watch(&plugin_calls_);
  if (absl::Status status = PrepareLocal(address, endpoint, *std::move(scheduler), hello); !status.ok()) {
    hello->set_local_refusal(std::string(status.message()).substr(0, kMaxRefusal));
    BPS_VERBOSE(log_, 1) << "no reduction within this host: " << hello->local_refusal();
  }
  PrepareCollectives(address, endpoint);
  return absl::OkStatus();
}

// What leads to the servers.
absl::Status Session::PrepareServers(const std::string& address, const EndpointOptions& endpoint,
                                     control::Hello* hello) {
  absl::StatusOr<std::string> wanted = ChooseTransport(&registry_, config_, log_, address);
  if (!wanted.ok()) return wanted.status();
  absl::StatusOr<Transport> transport = OpenTransports(&registry_, config_, *wanted, address, log_);
  if (!transport.ok()) return transport.status();
  absl::StatusOr<Scheduler> scheduler =
      registry_.CreateScheduler(config_.GetString("BYTEPS_SCHEDULER"), BPS_DIRECTION_PUSH);
  if (!scheduler.ok()) return scheduler.status();
  scheduler->Watch(&plugin_calls_);
  scheduler_name_ = scheduler->name();

  control::Lane& lane = *hello->add_lanes();
  lane.set_transport(transport->name());
  lane.set_provider(transport->provider());
  absl::StatusOr<std::string> bytes = transport->Address();
  if (!bytes.ok()) return bytes.status();
  lane.set_address(*bytes);
  transport_name_ = NameOf(lane);
  // Where there is such a member, the processes of one host meet in it.
  if (transport->shares() && lane.transport() != kLocalTransport) {
    absl::StrAppend(&transport_name_, " between hosts, ", kLocalTransport, " within");
  }
  polled_transport_ = !transport->Has(BPS_TRANSPORT_WAIT_FD);
  shared_buffers_ |= transport->shares();

  CarrierOptions carrier;
  carrier.endpoint = endpoint;
  carrier.window_slots = kWindowSlots;
  carrier.bounce_blocks = kBounceBlocks;
  carrier.in_place = config_.GetBool("BYTEPS_SHM_IN_PLACE");
  engine_->UseServers(*std::move(scheduler)).AddCarrier(lane.transport(), *std::move(transport), carrier);
  return absl::OkStatus();
}

// What leads to the other workers of this host. Not OK: they are reached through the servers.
absl::Status Session::PrepareLocal(const std::string& address, const EndpointOptions& endpoint, Scheduler scheduler,
                                   control::Hello* hello) {
  if (!config_.GetBool("BYTEPS_LOCAL_REDUCE")) return absl::FailedPreconditionError("BYTEPS_LOCAL_REDUCE=0");
  if (hello->force_servers()) return absl::FailedPreconditionError("BYTEPS_FORCE_DISTRIBUTED=1");
  if (!config_.GetBool("BYTEPS_SHM")) return absl::FailedPreconditionError("BYTEPS_SHM=0");
  if (place_.num_hosts > 1 && place_.local_size == 1) {
    return absl::FailedPreconditionError("it is the only worker of its host");
  }
  // Nobody has asked for it by name, as the error of opening it would say.
  if (const std::string why = registry_.WhyNotTransport(kLocalTransport); !why.empty()) {
    return absl::UnavailableError(absl::StrCat("transport \"", kLocalTransport, "\" cannot be used here: ", why));
  }
  absl::StatusOr<Transport> transport = registry_.OpenTransport(kLocalTransport, address);
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
  engine_->UseLocal(std::move(scheduler), *std::move(transport), endpoint);
  return absl::OkStatus();
}

// What leads to other workers; opened with the first operation that needs it.
void Session::PrepareCollectives(const std::string& address, const EndpointOptions& endpoint) {
  CollectivesOptions options{endpoint, kReleaseGrace};
  engine_->UseCollectives(std::move(options), [this, address] { return OpenPeerTransport(address); });
}

absl::StatusOr<Transport> Session::OpenPeerTransport(const std::string& address) {
  absl::StatusOr<Transport> transport = absl::UnknownError("");
  if (one_set_) {
    transport = registry_.OpenTransport(kLocalTransport, address);
  } else {
    const absl::StatusOr<std::string> wanted = ChooseTransport(&registry_, config_, log_, address);
    if (!wanted.ok()) return wanted.status();
    transport = OpenTransports(&registry_, config_, *wanted, address, log_);
  }
  if (transport.ok()) polled_transport_ |= !transport->Has(BPS_TRANSPORT_WAIT_FD);
  return transport;
}

absl::Status Session::Join(const Request& opening, Time deadline) const {
  // The client watches the deadline and knows who is missing; ours is for the case that nothing runs at all.
  if (!WaitUntil(opening, After(deadline, 10 * kSecond))) {
    return stuck() ? failure() : absl::InternalError("the session's thread does not answer");
  }
  return opening.outcome();
}

void Session::CheckOpening(Time now) {
  if (opening_ == nullptr) return;
  if (info_.epoch != 0 && engine_->ready()) {
    completions_.push_back({std::exchange(opening_, nullptr), absl::OkStatus()});
  } else if (now >= open_deadline_ && info_.epoch != 0) {
    OnFailed(absl::DeadlineExceededError(
        absl::StrCat("registered with the coordinator, but not connected to ", engine_->missing())));
  }
}

// ---- Calls of user threads ----

absl::Status Session::CheckProcess() const {
  if (!fork_guard_.in_child()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this session belongs to the parent process: a forked child cannot use it; open a session of its own, or start "
      "the "
      "child by spawn");
}

absl::Status Session::CheckOpen() const {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  if (leaving_now_.load()) return absl::FailedPreconditionError("the session was shut down");
  if (failed_.load(std::memory_order_acquire)) return failure();
  return absl::OkStatus();
}

absl::StatusOr<Tensor*> Session::Declare(std::string_view name, uint32_t dtype, std::span<const int64_t> shape) {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  absl::StatusOr<Tensor*> tensor = engine_->tensors().Declare(name, dtype, shape);
  // The declaration travels while the caller goes on.
  if (tensor.ok() && engine_->tensors().HasUndeclared()) driver_.Wake();
  return tensor;
}

absl::Status Session::Submit(Submission asked) {
  if (asked.timeout == 0) asked.timeout = operation_timeout_;
  // Counted first, so that Shutdown either sees it or is seen.
  const bool only_one = in_flight_.fetch_add(1) == 0;
  absl::Status status = CheckOpen();
  if (status.ok()) status = engine_->Admit(asked);
  if (!status.ok()) {
    in_flight_.fetch_sub(1);
    return status;
  }
  const bool callback = asked.request->has_callback();
  if (only_one && asked.tensor->bytes() <= small_bytes_) {
    Ended ended;
    bool taken = false;
    const auto submit = [&] {
      const Time now = Now();
      RunCommands(now);  // those before us
      taken = true;      // its request ends, whatever happens
      engine_->Submit(now, asked);
      engine_->Poll(now);
      CollectEnded();
      TakeQuiet(&ended);
    };
    if (driver_.TryRun(submit, callback) && taken) {
      driver_.Deliver({ended.data(), ended.size()});
      return absl::OkStatus();
    }
  }
  queue_.Push({std::move(asked), nullptr});
  driver_.Wake();
  return absl::OkStatus();
}

absl::Status Session::Submit(Collective asked) {
  if (asked.timeout == 0) asked.timeout = operation_timeout_;
  const bool only_one = in_flight_.fetch_add(1) == 0;
  absl::Status status = CheckOpen();
  if (status.ok()) status = engine_->collectives()->Admit(asked);
  if (!status.ok()) {
    in_flight_.fetch_sub(1);
    return status;
  }
  const bool callback = asked.request->has_callback();
  if (only_one && asked.bytes() <= small_bytes_) {
    Ended ended;
    const auto submit = [&] {
      const Time now = Now();
      RunCommands(now);  // those before us
      engine_->collectives()->Submit(now, asked);
      engine_->Poll(now);
      CollectEnded();
      TakeQuiet(&ended);
    };
    if (driver_.TryRun(submit, callback)) {
      driver_.Deliver({ended.data(), ended.size()});
      return absl::OkStatus();
    }
  }
  queue_.Push({{}, nullptr, std::make_unique<Collective>(std::move(asked))});
  driver_.Wake();
  return absl::OkStatus();
}

absl::Status Session::Submit(JoinAsked asked) {
  if (asked.timeout == 0) asked.timeout = operation_timeout_;
  in_flight_.fetch_add(1);
  absl::Status status = CheckOpen();
  if (status.ok()) status = engine_->collectives()->joins().Admit();
  if (!status.ok()) {
    in_flight_.fetch_sub(1);
    return status;
  }
  queue_.Push({{}, nullptr, nullptr, std::make_unique<JoinAsked>(std::move(asked))});
  driver_.Wake();
  return absl::OkStatus();
}

absl::Status Session::SubmitAll(std::vector<Asked> all) {
  in_flight_.fetch_add(static_cast<int64_t>(all.size()));
  absl::Status status = CheckOpen();
  size_t admitted = 0;
  for (; status.ok() && admitted < all.size(); ++admitted) {
    if (auto* submission = std::get_if<Submission>(&all[admitted])) {
      if (submission->timeout == 0) submission->timeout = operation_timeout_;
      status = engine_->Admit(*submission);
    } else {
      Collective& asked = std::get<Collective>(all[admitted]);
      if (asked.timeout == 0) asked.timeout = operation_timeout_;
      status = engine_->collectives()->Admit(asked);
    }
    if (!status.ok()) break;
  }
  if (!status.ok()) {
    for (size_t i = 0; i < admitted; ++i) {
      if (const auto* submission = std::get_if<Submission>(&all[i])) {
        submission->tensor->name().Leave();
      } else {
        engine_->collectives()->Withdraw(std::get<Collective>(all[i]));
      }
    }
    in_flight_.fetch_sub(static_cast<int64_t>(all.size()));
    return status;
  }
  for (Asked& asked : all) {
    if (auto* submission = std::get_if<Submission>(&asked)) {
      queue_.Push({std::move(*submission), nullptr});
    } else {
      queue_.Push({{}, nullptr, std::make_unique<Collective>(std::move(std::get<Collective>(asked)))});
    }
  }
  driver_.Wake();
  return absl::OkStatus();
}

absl::Status Session::Cancel(std::shared_ptr<Request> request) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  queue_.Push({{}, std::move(request)});
  driver_.Wake();
  return absl::OkStatus();
}

bool Session::Wait(const Request& request, Time deadline, bool small) {
  if (request.ended()) return true;
  if (small && in_flight_.load() == 1 && !closed_.load()) {
    // Another caller may drive: then this waits for what that one brings.
    return driver_.DriveUntil(request, deadline) || WaitUntil(request, deadline);
  }
  return WaitUntil(request, deadline);
}

bool Session::WaitUntil(const Request& request, Time deadline) const {
  while (!stuck()) {
    const Time slice = After(Now(), kStuckLook);
    if (request.WaitUntil(std::min(slice, deadline))) return true;
    if (slice >= deadline) return false;
  }
  return request.ended();
}

std::string Session::DescribeWait(const Request& request) {
  std::string text;
  if (closed_.load()) return text;
  const auto describe = [&] {
    RunCommands(Now());  // it may be on its way to the engine
    text = engine_->DescribeWait(Now(), &request);
  };
  if (driver_.Run(describe, After(Now(), kDescribeTime))) return text;
  const PluginCalls::Now call = plugin_calls_.Look();
  if (call.number == 0) return "the session's thread is busy";
  return absl::StrCat(call.plugin, " has not returned from ", call.verb);
}

void Session::Look(const Request& request) {
  // A caller who asks again and again instead of waiting moves things himself.
  if (request.ended() || request.has_callback() || closed_.load() || in_flight_.load() != 1) return;
  Ended ended;
  driver_.TryRun(
      [&] {
        Step(Now());
        TakeQuiet(&ended);
      },
      false);
  driver_.Deliver({ended.data(), ended.size()});
}

void Session::TakeQuiet(Ended* ended) {
  // Callbacks need a thread of the library.
  size_t kept = 0;
  for (size_t i = 0; i < completions_.size(); ++i) {
    if (!completions_[i].request->has_callback()) {
      ended->push_back(std::move(completions_[i]));
    } else if (kept++ != i) {
      completions_[kept - 1] = std::move(completions_[i]);
    }
  }
  completions_.resize(kept);
}

absl::Status Session::Barrier(const std::string& name, Time timeout) {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (absl::Status status = engine_->collectives()->joins().CheckMaySubmit(); !status.ok()) {
    return Annotate(status, absl::StrCat("barrier \"", name, "\""));
  }
  if (control_ == nullptr) return absl::OkStatus();
  if (timeout == 0) timeout = operation_timeout_;
  auto request = std::make_shared<Request>(nullptr, nullptr);
  driver_.Run([&] {
    // Asked again inside the machine: Shutdown and failures happen there.
    if (absl::Status status = CheckOpen(); !status.ok()) {
      completions_.push_back({request, status});
      return;
    }
    if (absl::Status status = engine_->collectives()->joins().CheckAllPresent(); !status.ok()) {
      completions_.push_back({request, Annotate(status, absl::StrCat("barrier \"", name, "\""))});
      return;
    }
    const uint64_t sequence = control_->client().Barrier(Now(), name, timeout);
    barriers_[{name, sequence}] = request;
  });
  // The client's own fallback comes first.
  if (!WaitUntil(*request, After(Now(), After(timeout, 10 * kSecond)))) {
    if (stuck()) return failure();
    return absl::DeadlineExceededError(absl::StrCat("barrier \"", name, "\": no answer from the coordinator"));
  }
  return request->outcome();
}

absl::Status Session::Shutdown(Time timeout) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  std::lock_guard<std::mutex> one(shutdown_mutex_);
  if (std::exchange(shut_down_, true)) return absl::OkStatus();
  if (timeout == 0) timeout = shutdown_timeout_;
  const Time deadline = After(Now(), timeout);
  auto request = std::make_shared<Request>(nullptr, nullptr);
  driver_.Run([&] {
    leaving_now_.store(true);
    leaving_ = request;
    leave_deadline_ = deadline;
  });
  // The coordinator answers at the deadline at the latest; that it does not, the client says, a little later.
  if (!WaitUntil(*request, After(deadline, kLeaveGrace))) {
    if (stuck()) return failure();
    driver_.Run([&] {
      leaving_.reset();
      EndWaits(absl::CancelledError("the session was shut down"));
    });
    return absl::DeadlineExceededError("the session could not be left in time");
  }
  return request->outcome();
}

void Session::Close() {
  if (fork_guard_.in_child() || closed_.exchange(true)) return;
  leaving_now_.store(true);
  buffers_->Unshare();
  for (uint64_t call = 0; !driver_.Stop(After(Now(), kStopTime));) {
    // Whoever closes does not wait for as long as the watchdog does.
    const PluginCalls::Now now = plugin_calls_.Look();
    if (now.number != 0 && now.number == std::exchange(call, now.number)) {
      OnStuck(absl::InternalError(absl::StrCat(now.plugin, " has not returned from ", now.verb,
                                               ": the session is closed without it. It is a defect of the plugin")));
    }
  }
  collapser_.Stop();
  if (watchdog_ != nullptr) watchdog_->Stop();
  if (stuck()) return;  // what is left belongs to the thread that does not come back
  std::vector<Completion> completions;
  driver_.Run([&] {
    if (engine_ == nullptr) return;
    const absl::Status why = absl::CancelledError("the session was closed");
    const Time now = Now();
    RunCommands(now);
    engine_->Fail(now, why);
    EndWaits(why);
    CollectEnded();
    completions = std::exchange(completions_, {});
    // Last words leave, then the others see this member gone.
    if (control_ != nullptr) control_->Drain(After(now, kDrainTime));
    control_.reset();
  });
  driver_.Deliver(completions);
}

Session::~Session() { Close(); }

bps_info Session::Info() const {
  bps_info info = info_;
  info.failed = failed_.load(std::memory_order_acquire) ? 1 : 0;
  info.shared_buffers = shared_buffers_ ? 1 : 0;
  return info;
}

// ---- The machine ----

// The session ends, the host's process does not.
void Session::OnException(const char* what) noexcept {
  try {
    OnFailed(absl::InternalError(absl::StrCat("unexpected exception in the session: ", what)));
    CollectEnded();
  } catch (...) {
    // There is no memory left even for that. Later calls fail at once all the same.
    failed_.store(true, std::memory_order_release);
  }
}

bool Session::Step(Time now) {
  now_ = now;
  bool worked = RunCommands(now);
  if (control_ != nullptr) worked |= DriveControl(now);
  worked |= engine_->Poll(now);
  CheckOpening(now);
  if (leaving_ != nullptr) CheckLeaving(now);
  CollectEnded();
  return worked;
}

bool Session::RunCommands(Time now) {
  now_ = now;
  // Those that an exception has left behind come first.
  if (commands_.empty()) queue_.TakeAll(&commands_);
  if (commands_.empty()) return false;
  while (next_command_ < commands_.size()) {
    Command& command = commands_[next_command_++];
    if (command.collective != nullptr) {
      engine_->collectives()->Submit(now, *std::move(command.collective));
    } else if (command.join != nullptr) {
      engine_->collectives()->joins().Submit(now, *std::move(command.join));
    } else if (command.cancel != nullptr) {
      engine_->Cancel(now, command.cancel.get());
    } else if (command.submission.tensor == nullptr) {
      engine_->DropFreedBuffers();
    } else {
      if (huge_pages_) {
        const Submission& asked = command.submission;
        // What others map they need not pin: it is as fast on small pages, and the move onto huge ones takes a second.
        const auto mapped = [](const std::shared_ptr<Buffer>& buffer) {
          return buffer != nullptr && buffer->fd() >= 0;
        };
        if (asked.input != nullptr && !mapped(asked.request->input_buffer())) {
          asked.tensor->input_pages.Use(asked.input, asked.tensor->bytes(), &collapser_);
        }
        if (asked.output != asked.input && !mapped(asked.request->output_buffer())) {
          asked.tensor->output_pages.Use(asked.output, asked.tensor->bytes(), &collapser_);
        }
      }
      engine_->Submit(now, std::move(command.submission));
    }
  }
  commands_.clear();
  next_command_ = 0;
  return true;
}

bool Session::DriveControl(Time now) {
  const Time timer = control_->NextTimer();
  if (now < timer && now - control_at_ < kControlInterval) return false;
  control_at_ = now;
  control_->Drive(now);
  return false;
}

void Session::TakeCompletions(std::vector<Completion>* completions) {
  std::move(completions_.begin(), completions_.end(), std::back_inserter(*completions));
  completions_.clear();
}

Time Session::NextTimer() const {
  Time next = engine_->NextTimer();
  if (control_ != nullptr) next = std::min(next, control_->NextTimer());
  if (opening_ != nullptr) next = std::min(next, open_deadline_);
  if (leaving_ != nullptr && !goodbye_said_) next = std::min(next, leave_deadline_);
  if (polled_transport_ && engine_->failure().ok()) {
    next = std::min(next, now_ + (engine_->in_flight() != 0 ? kBusyPoll : kIdlePoll));
  }
  return next;
}

bool Session::Arm() {
  if (!engine_->failure().ok()) return true;
  for (Endpoint* endpoint : engine_->endpoints()) {
    if (!endpoint->Arm()) return false;
  }
  return true;
}

void Session::Descriptors(std::vector<pollfd>* descriptors) {
  if (control_ != nullptr && control_->fd() >= 0) {
    descriptors->push_back({control_->fd(), control_->events(), 0});
    control_at_ = 0;  // whatever wakes us, look there first
  }
  if (!engine_->failure().ok()) return;
  for (Endpoint* endpoint : engine_->endpoints()) {
    const int fd = endpoint->WaitFd();
    if (fd >= 0) descriptors->push_back({fd, POLLIN, 0});
  }
}

// ---- Leaving ----

// First the operations end, and what the others need of us for theirs is with the transport; then Goodbye is said, and
// the coordinator answers when everybody has said it. At the deadline we leave alone: whoever works on is not our error.
void Session::CheckLeaving(Time now) {
  if (failed_.load()) {
    completions_.push_back({std::exchange(leaving_, nullptr), failure()});
    return;
  }
  if (goodbye_said_) return;
  if (in_flight_.load() == 0 && queue_.empty() && (engine_->Sent() || now >= leave_deadline_)) {
    if (control_ == nullptr) {
      completions_.push_back({std::exchange(leaving_, nullptr), absl::OkStatus()});
      return;
    }
    goodbye_said_ = true;
    control_->client().Goodbye(now, std::max<Time>(leave_deadline_ - now, kMillisecond));
    return;
  }
  if (now < leave_deadline_) return;
  const absl::Status why = absl::DeadlineExceededError(
      absl::StrCat(in_flight_.load(), " operations had not ended when the time to leave was up"));
  const absl::Status given_up = absl::CancelledError("the session was shut down");
  engine_->CancelAll(now, given_up);
  completions_.push_back({std::exchange(leaving_, nullptr), why});
  EndWaits(given_up);
}

void Session::OnGoodbye(const absl::Status& status) {
  // Servers may go now: that is no failure any more.
  engine_->Fail(now_, absl::FailedPreconditionError("the session was shut down"));
  if (const std::string& staying = control_->client().staying(); !staying.empty()) {
    BPS_VERBOSE(log_, 1) << "has left the session; still there: " << staying;
  }
  if (leaving_ != nullptr) completions_.push_back({std::exchange(leaving_, nullptr), status});
}

// ---- The engine's wishes ----

void Session::OnDeclare(const std::vector<control::TensorSpec>& tensors) { control_->client().Declare(now_, tensors); }

void Session::OnTellPeers(const std::vector<uint32_t>& members, const control::Lane& lane) {
  if (control_ != nullptr) control_->client().TellAddress(now_, members, lane);
}

void Session::OnLost(uint32_t member, const absl::Status& why) {
  if (control_ != nullptr) control_->client().BreakSession(now_, control_->client().session_id(), member, why);
}

void Session::OnFailed(const absl::Status& why) {
  if (control_ != nullptr) control_->client().Fail(now_, why);
  SetFailure(why);
}

// ---- The control plane's news ----

void Session::Send(const control::Envelope& envelope) { control_->Send(envelope); }

void Session::OnWelcome(const control::Welcome& welcome) {
  BPS_VERBOSE(log_, 1) << "registered as member " << welcome.member() << " of session " << welcome.session_id();
}

void Session::OnOtherRefused(const std::string& why) {
  BPS_LOG(log_, kWarning) << "the coordinator has refused another member: " << why;
}

void Session::OnWaiting(const std::vector<std::string>& missing) {
  BPS_VERBOSE(log_, 1) << "waiting for " << absl::StrJoin(missing, ", ");
}

void Session::OnEpoch(const control::Epoch& epoch) {
  if (info_.epoch != 0) return;
  if (absl::Status status = engine_->Join(now_, epoch, control_->client().member()); !status.ok()) {
    OnFailed(status);
    return;
  }
  for (const control::Member& worker : epoch.workers()) {
    if (worker.member() == control_->client().member()) {
      info_.rank = worker.rank();
      info_.local_rank = worker.local_rank();
      info_.local_size = worker.local_size();
    }
  }
  one_set_ = epoch.local_sizes_size() == 1;
  if (one_set_) transport_name_ = local_name_;
  if (epoch.local_sizes_size() == 1 || (epoch.local_sizes_size() > 1 && info_.local_size > 1)) {
    BPS_LOG(log_, kInfo) << "the workers of this host reduce among themselves, over " << local_name_;
  }
  if (epoch.local_sizes_size() != 1) {
    const char* credit = config_.PluginValue("BYTEPS_SCHEDULING_CREDIT");
    const auto bound = static_cast<uint64_t>(config_.GetInt("BYTEPS_PARTITION_BYTES"));
    const bool exact = bound != 0 && bound < epoch.slot_bytes();
    BPS_LOG(log_, kInfo) << "scheduler " << scheduler_name_
                         << ", BYTEPS_SCHEDULING_CREDIT=" << (credit == nullptr ? "(not set)" : credit)
                         << ", partitions of at most " << (exact ? bound : epoch.slot_bytes()) << " bytes"
                         << (bound == 0 ? ", by size and rate" : "");
  }
  info_.size = epoch.workers_size();
  all_ranks_ = ProcessSet::All(static_cast<uint32_t>(info_.size));
  info_.num_servers = epoch.local_sizes_size() == 1 ? 0 : epoch.servers_size();
  info_.epoch = epoch.epoch();
  info_.generation = epoch.generation();
  const std::vector<uint32_t> groups(epoch.group_sizes().begin(), epoch.group_sizes().end());
  BPS_VERBOSE(log_, 1) << "rank " << info_.rank << " of " << info_.size << "; stages: " << engine_->DescribeStages()
                       << "; groups of the reduction: " << GroupRanges(groups);
}

void Session::OnAssignment(const control::Assignment& assignment) { engine_->OnAssignment(now_, assignment); }

void Session::OnPeerAddress(uint32_t member, const control::Lane& lane) {
  engine_->collectives()->OnAddress(now_, member, lane);
}

void Session::OnBarrier(const std::string& name, uint64_t sequence, const absl::Status& status) {
  auto it = barriers_.find({name, sequence});
  if (it == barriers_.end()) return;
  completions_.push_back({std::move(it->second), status});
  barriers_.erase(it);
}

void Session::OnFailure(const absl::Status& fatal) { SetFailure(fatal); }

// ---- Failure ----

void Session::SetFailure(const absl::Status& why) {
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
  }
  failed_.store(true, std::memory_order_release);
  engine_->Fail(now_, why);
  EndWaits(why);
}

void Session::OnStuck(const absl::Status& why) {
  BPS_LOG(log_, kError) << why.message();
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    if (failure_.ok()) failure_ = why;
  }
  failed_.store(true, std::memory_order_release);
  driver_.Abandon();
}

absl::Status Session::failure() const {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

void Session::EndWaits(const absl::Status& why) {
  if (opening_ != nullptr) completions_.push_back({std::exchange(opening_, nullptr), why});
  if (leaving_ != nullptr) completions_.push_back({std::exchange(leaving_, nullptr), why});
  for (auto& [key, request] : std::exchange(barriers_, {})) completions_.push_back({request, why});
}

}  // namespace byteps
