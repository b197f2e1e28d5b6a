#include "server/process/server_role.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/auth.h"
#include "core/base/time.h"
#include "core/control/control_link.h"
#include "core/control/host_identity.h"
#include "core/control/refusal.h"
#include "core/plugin/plugin_registry.h"
#include "core/transports/transport_choice.h"
#include "core/transports/transport_set.h"
#include "server/process/server.h"

namespace byteps {
namespace {

// For the coordinator's answer to a goodbye, and for queued messages to leave.
constexpr Time kGoodbyeTimeout = kSecond;
constexpr Time kNamePause = 200 * kMillisecond;

bool Stopped(StopSignal* stop, Time timeout) {
  struct pollfd poll_fd = {stop->fd(), POLLIN, 0};
  ::poll(&poll_fd, 1, PollTimeout(0, timeout));
  return stop->Take() != nullptr;
}

// The members and the coordinator may come up in any order: its name may not be known yet.
absl::StatusOr<std::string> WaitForOwnAddress(OwnAddressOptions options, Time deadline, StopSignal* stop) {
  while (true) {
    options.patience = std::clamp(deadline - Now(), kSecond / 2, 5 * kSecond);
    absl::StatusOr<std::string> address = OwnAddress(options);
    if (address.ok() || address.status().code() != absl::StatusCode::kUnavailable || Now() >= deadline) return address;
    if (Stopped(stop, kNamePause)) return absl::CancelledError("ended by a signal");
  }
}

// Control client and lanes, joined.
class ServerRole final : private ControlHandler {
 public:
  ServerRole(std::unique_ptr<Server> server, ControlLinkOptions options, const Logger& log, Time now)
      : log_(log), server_(std::move(server)), link_(std::move(options), this, now) {}

  // Did the coordinator ever know it?
  bool registered() const { return link_.client().member() != 0; }

  absl::Status Run(StopSignal* stop) {
    while (!done_) {
      const Time now = Now();
      struct pollfd polled[] = {
          {stop->fd(), POLLIN, 0}, {server_->wake_fd(), POLLIN, 0}, {link_.fd(), link_.events(), 0}};
      ::poll(polled, 3, PollTimeout(now, link_.NextTimer()));
      link_.Drive(Now());
      if (polled[1].revents != 0) TellBroken();
      if (const char* signal = stop->Take()) Leave(signal);
    }
    link_.Drain(After(Now(), kGoodbyeTimeout));
    server_->Stop();
    // The lanes that were left behind use it.
    if (!server_->stuck().ok()) [[maybe_unused]]
      const Server* left = server_.release();
    return failure_;
  }

 private:
  void Send(const control::Envelope& envelope) override { link_.Send(envelope); }

  void OnWelcome(const control::Welcome& welcome) override {
    BPS_LOG(log_, kInfo) << "registered as member " << welcome.member();
  }
  void OnWaiting(const std::vector<std::string>& missing) override {
    for (const std::string& each : missing) BPS_VERBOSE(log_, 1) << "the job waits for " << each;
  }
  void OnOtherRefused(const std::string& why) override {
    BPS_LOG(log_, kWarning) << "the coordinator has refused another member: " << why;
  }
  void OnEpoch(const control::Epoch& epoch) override {
    BPS_LOG(log_, kInfo) << "session \"" << epoch.session() << "\" generation " << epoch.generation() << ": "
                         << epoch.workers_size() << " workers";
    server_->OnEpoch(epoch, link_.client().member());
  }
  void OnSessionEnded(uint64_t session_id, const absl::Status& why) override {
    if (!why.ok()) {
      BPS_LOG(log_, kWarning) << "a session failed: " << std::string(why.message().data(), why.message().size());
    }
    server_->OnSessionEnded(session_id);
  }
  void OnJobEnded(const std::string& reason) override {
    BPS_LOG(log_, kInfo) << "the job is over: " << reason;
    done_ = true;
  }
  void OnGoodbye(const absl::Status&) override { done_ = true; }
  void OnFailure(const absl::Status& fatal) override {
    failure_ = fatal;
    done_ = true;
  }

  void TellBroken() {
    for (const BrokenSession& broken : server_->TakeBroken()) {
      link_.client().BreakSession(Now(), broken.session, broken.member, broken.why);
    }
    if (const absl::Status stuck = server_->stuck(); !stuck.ok() && !done_) {
      link_.client().Fail(Now(), stuck);
      failure_ = stuck;
      done_ = true;
    }
  }

  void Leave(const char* signal) {
    BPS_LOG(log_, kInfo) << "ended by " << signal;
    link_.client().Goodbye(Now(), kGoodbyeTimeout);
  }

  const Logger& log_;
  bool done_ = false;
  absl::Status failure_;
  std::unique_ptr<Server> server_;
  ControlLink link_;
};

// Where the coordinator is, and what this server is, but for its address. An error: it cannot be reported to any
// coordinator.
absl::StatusOr<ControlLinkOptions> Greeting(const Config& config) {
  const std::string& coordinator = config.GetString("DMLC_PS_ROOT_URI");
  const int port = static_cast<int>(config.GetInt("DMLC_PS_ROOT_PORT"));
  if (coordinator.empty() || port == 0) {
    return absl::InvalidArgumentError(
        "a server (DMLC_ROLE=server) needs DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT: where the coordinator is");
  }
  absl::StatusOr<std::string> token =
      JobToken(config.GetString("BYTEPS_JOB_TOKEN"), config.GetString("BYTEPS_JOB_TOKEN_FILE"));
  if (!token.ok()) return token.status();
  ControlLinkOptions options;
  options.allow_unauthenticated = config.GetBool("BYTEPS_ALLOW_UNAUTHENTICATED");
  options.connection.host = coordinator;
  options.connection.port = port;
  options.client.token = *std::move(token);
  control::Hello& hello = options.client.hello;
  hello.set_role(control::SERVER);
  hello.set_job(config.GetString("BYTEPS_JOB_ID"));
  *hello.mutable_host() = HostIdentity(config.GetString("BYTEPS_HOST_ID"));
  hello.set_pid(::getpid());
  hello.set_num_servers(static_cast<int32_t>(config.GetInt("DMLC_NUM_SERVER")));
  hello.set_asynchronous(config.GetBool("BYTEPS_ENABLE_ASYNC"));
  if (config.Has("BYTEPS_STALENESS")) {
    hello.set_staleness(1 + static_cast<uint64_t>(config.GetInt("BYTEPS_STALENESS")));
  }
  // It needs no number of workers; one that was set is compared with that of the others.
  if (config.IsSet("DMLC_NUM_WORKER")) hello.set_num_hosts(static_cast<int32_t>(config.GetInt("DMLC_NUM_WORKER")));
  hello.set_preferred_rank(static_cast<int32_t>(config.GetInt("DMLC_RANK")));
  return options;
}

// No member shall wait for a server that cannot serve.
absl::Status Refuse(ControlLinkOptions options, const Config& config, const absl::Status& why, const Logger& log,
                    StopSignal* stop) {
  const absl::StatusOr<std::string> named = NamedTransport(config);
  if (named.ok()) options.client.hello.set_named_transport(*named);
  return TellRefusal(std::move(options), why, log, stop->fd());
}

}  // namespace

absl::Status RefuseServer(const Config& readable, const absl::Status& why, const Logger& log, StopSignal* stop) {
  absl::StatusOr<ControlLinkOptions> options = Greeting(readable);
  if (!options.ok()) return why;
  options->client.start_timeout = readable.GetDuration("BYTEPS_START_TIMEOUT").count();
  return Refuse(*std::move(options), readable, why, log, stop);
}

absl::Status RunServer(const Config& config, const Logger& log, StopSignal* stop) {
  const Time deadline = After(Now(), config.GetDuration("BYTEPS_START_TIMEOUT").count());
  absl::StatusOr<ControlLinkOptions> greeting = Greeting(config);
  if (!greeting.ok()) return greeting.status();
  ControlLinkOptions& options = *greeting;
  const auto refuse = [&](const absl::Status& why) {
    options.client.start_timeout = std::max<Time>(deadline - Now(), 0);
    return Refuse(std::move(options), config, why, log, stop);
  };
  if (config.GetInt("DMLC_NUM_SERVER") < 1) {
    return refuse(
        absl::InvalidArgumentError("a server (DMLC_ROLE=server) needs DMLC_NUM_SERVER: how many servers there are"));
  }
  absl::StatusOr<std::string> address = WaitForOwnAddress({.node_host = config.GetString("DMLC_NODE_HOST"),
                                                           .interface = config.GetString("DMLC_INTERFACE"),
                                                           .coordinator = options.connection.host,
                                                           .port = options.connection.port},
                                                          deadline, stop);
  if (address.status().code() == absl::StatusCode::kCancelled) return absl::OkStatus();
  if (!address.ok()) return refuse(address.status());
  control::Hello& hello = options.client.hello;
  hello.mutable_host()->set_address(*address);

  PluginRegistry registry(config, log);
  absl::StatusOr<std::string> wanted = ChooseTransport(&registry, config, log, *address);
  if (!wanted.ok()) return refuse(wanted.status());
  ServerOptions server_options = ServerOptionsFrom(config, options.client.token);
  if (config.GetBool("BYTEPS_SERVER_ENABLE_SCHEDULE")) {
    server_options.lane.reducer.make_scheduler = [&] {
      return registry.CreateScheduler(config.GetString("BYTEPS_SCHEDULER"), BPS_DIRECTION_RESULT);
    };
  }
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
      server_options,
      [&](uint32_t, PluginCalls* calls) {
        registry.Watch(calls);
        return OpenTransports(&registry, config, *wanted, *address, log);
      },
      log);
  if (!server.ok()) return refuse(server.status());

  const Time now = Now();
  options.client.start_timeout = std::max<Time>(deadline - now, 0);
  options.client.start_waited = config.GetDuration("BYTEPS_START_TIMEOUT").count() - options.client.start_timeout;
  (*server)->FillHello(&hello);
  ControlLinkOptions refusal = options;
  absl::Status why;
  {
    ServerRole role(*std::move(server), std::move(options), log, now);
    const absl::Status ended = role.Run(stop);
    if (role.registered() || !absl::IsResourceExhausted(ended)) return ended;
    refusal.client.start_timeout = std::max<Time>(deadline - Now(), 0);
    why = ended;
  }
  // The lanes have taken all descriptors. Without them there is one to say so.
  return Refuse(std::move(refusal), config, why, log, stop);
}

}  // namespace byteps
