#include "server/process/coordinator_role.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "core/base/auth.h"
#include "core/base/unique_fd.h"
#include "core/control/control_socket.h"
#include "core/control/host_identity.h"
#include "core/plugin/plugin_registry.h"
#include "core/transports/transport_choice.h"
#include "server/membership/key_hash.h"
#include "server/membership/startup_disagreement.h"
#include "server/process/coordinator_shell.h"
#include "server/process/listener.h"

namespace byteps {
namespace {

// 0 in the configuration: not at all.
Time OrNever(Time time) { return time <= 0 ? kNever : time; }

MixedMode ReadMixedMode(const std::string& choice) {
  if (choice == "on") return MixedMode::kOn;
  return choice == "off" ? MixedMode::kOff : MixedMode::kAuto;
}

// Under bpslaunch the job ends with its workers. By hand, a trainer may load its data for minutes before it opens a
// session, and the patience of all begins there: so the default is longer here; but a time that was named is kept.
constexpr Time kPatience = 600 * kSecond;
Time StartTimeout(const Config& config, Time linger) {
  if (config.IsSet("BYTEPS_COORDINATOR_FD") || linger < 0) return kNever;
  return config.IsSet("BYTEPS_START_TIMEOUT") ? config.GetDuration("BYTEPS_START_TIMEOUT").count() : kPatience;
}

// As the members name it: that of the plugin, where it is known here. The coordinator itself carries no tensors.
std::string TransportName(const Config& config, const Logger& log, const std::string& named) {
  if (named.empty()) return "";
  PluginRegistry registry(config, log);
  const auto found = registry.FindTransport(named);
  return found.ok() ? std::string((*found)->info.name) : named;
}

CoordinatorOptions Options(const Config& config, std::string token) {
  CoordinatorOptions options;
  options.job = config.GetString("BYTEPS_JOB_ID");
  options.token = std::move(token);
  options.allow_unauthenticated = config.GetBool("BYTEPS_ALLOW_UNAUTHENTICATED");
  // Only what was set here can differ from what the members say.
  if (config.IsSet("DMLC_NUM_WORKER")) options.num_hosts = static_cast<int32_t>(config.GetInt("DMLC_NUM_WORKER"));
  if (config.IsSet("DMLC_NUM_SERVER")) options.num_servers = static_cast<int32_t>(config.GetInt("DMLC_NUM_SERVER"));
  for (const absl::string_view host : absl::StrSplit(config.GetString("BYTEPS_ORDERED_HOSTS"), ',')) {
    if (!absl::StripAsciiWhitespace(host).empty()) options.ordered_hosts.emplace_back(absl::StripAsciiWhitespace(host));
  }
  options.heartbeat = OrNever(config.GetDuration("BYTEPS_HEARTBEAT_INTERVAL").count());
  options.peer_timeout = OrNever(config.GetDuration("BYTEPS_PEER_TIMEOUT").count());
  // Without signs of life their absence says nothing.
  if (options.heartbeat == kNever) options.peer_timeout = kNever;
  const Time linger = config.GetDuration("BYTEPS_JOB_LINGER").count();
  options.linger = linger < 0 ? kNever : linger;
  options.start_timeout = StartTimeout(config, linger);
  options.mixed_mode = ReadMixedMode(config.GetString("BYTEPS_ENABLE_MIXED_MODE"));
  options.hash = ReadKeyHash(config);
  return options;
}

absl::StatusOr<UniqueFd> OpenListener(const Config& config) {
  if (config.IsSet("BYTEPS_COORDINATOR_FD")) {
    return InheritListener(static_cast<int>(config.GetInt("BYTEPS_COORDINATOR_FD")));
  }
  for (const bool set : {config.IsSet("DMLC_PS_ROOT_URI"), config.IsSet("DMLC_PS_ROOT_PORT")}) {
    if (set) continue;
    return absl::InvalidArgumentError(
        "the coordinator (DMLC_ROLE=scheduler) needs DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT: where to listen");
  }
  return Listen({.host = config.GetString("DMLC_PS_ROOT_URI"),
                 .port = static_cast<int>(config.GetInt("DMLC_PS_ROOT_PORT")),
                 .all_addresses = config.GetBool("DMLC_USE_KUBERNETES")});
}

// That of BYTEPS_LINGER_FD; none if it is not set.
absl::StatusOr<UniqueFd> InheritPipe(const Config& config) {
  if (!config.IsSet("BYTEPS_LINGER_FD")) return UniqueFd();
  const int fd = static_cast<int>(config.GetInt("BYTEPS_LINGER_FD"));
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InvalidArgumentError("BYTEPS_LINGER_FD=" + std::to_string(fd) + ": " + std::strerror(errno) +
                                      "; expected an inherited pipe");
  }
  return UniqueFd(fd);
}

std::string Self(const std::string& address) {
  return "the coordinator (host \"" + HostIdentity().name() + "\", " + address + ", pid " + std::to_string(::getpid()) +
         ")";
}

}  // namespace

absl::Status RunCoordinator(const Config& config, const Logger& log, StopSignal* stop) {
  absl::StatusOr<std::string> token =
      JobToken(config.GetString("BYTEPS_JOB_TOKEN"), config.GetString("BYTEPS_JOB_TOKEN_FILE"));
  if (!token.ok()) return token.status();
  absl::StatusOr<UniqueFd> listener = OpenListener(config);
  if (!listener.ok()) return listener.status();
  absl::StatusOr<UniqueFd> pipe = InheritPipe(config);
  if (!pipe.ok()) return pipe.status();
  const absl::Status allowed =
      CheckUnauthenticated(*token, config.GetBool("BYTEPS_ALLOW_UNAUTHENTICATED"), LocalAddress(listener->get()));
  if (!allowed.ok()) return allowed;
  const absl::StatusOr<std::string> transport = NamedTransport(config);
  if (!transport.ok()) {
    listener->Reset();
    return RefuseToCoordinate(config, transport.status(), log, stop);
  }
  const std::string address = ListenerAddress(listener->get());
  BPS_LOG(log, kInfo) << "listening at " << address;
  CoordinatorOptions options = Options(config, *std::move(token));
  options.transport = TransportName(config, log, *transport);
  options.self = Self(address);
  CoordinatorShell shell(*std::move(listener), std::move(options), &log);
  shell.LingerWhile(*std::move(pipe));
  return shell.Run(stop);
}

absl::Status RefuseToCoordinate(const Config& readable, const absl::Status& why, const Logger& log, StopSignal* stop) {
  if (readable.IsSet("BYTEPS_COORDINATOR_FD") || readable.GetInt("DMLC_PS_ROOT_PORT") == 0) return why;
  absl::StatusOr<std::string> token =
      JobToken(readable.GetString("BYTEPS_JOB_TOKEN"), readable.GetString("BYTEPS_JOB_TOKEN_FILE"));
  if (!token.ok()) return why;
  absl::StatusOr<UniqueFd> listener = OpenListener(readable);
  if (!listener.ok()) return why;
  const std::string address = ListenerAddress(listener->get());
  const std::string reason(why.message().data(), why.message().size());
  CoordinatorOptions options = Options(readable, *std::move(token));
  options.self = Self(address);
  options.unable = reason;
  options.start_timeout = StartupDisagreement::kLateness;  // of no member: the start that failed shall end soon
  BPS_LOG(log, kError) << "cannot take part: " << reason << "; tells members that come to " << address << ", for "
                       << StartupDisagreement::kLateness / kSecond << " s at most";
  CoordinatorShell shell(*std::move(listener), std::move(options), &log);
  const absl::Status told = shell.Run(stop);
  return absl::StrContains(told.message(), reason) ? absl::Status(why.code(), told.message()) : why;
}

}  // namespace byteps
