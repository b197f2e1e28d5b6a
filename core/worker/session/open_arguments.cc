#include "core/worker/session/open_arguments.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/log.h"
#include "core/base/utf8.h"
#include "core/base/version.h"

namespace byteps {
namespace {

// An error in an argument names the argument, not the variable of the same meaning.
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

}  // namespace

absl::StatusOr<OpenArguments> OpenArguments::Read(const bps_open_args& args) {
  absl::StatusOr<Environment> given = ArgumentsOf(args);
  if (!given.ok()) return given.status();
  const Environment environment = ReadEnvironment();
  absl::StatusOr<Config> config = Config::Make(environment, *given);
  absl::Status wrong = CheckGivenPlace(args);
  wrong.Update(config.status());
  if (!config.ok()) config = Config::Readable(environment, *given);
  const WorkerPlace place = PlaceOf(*config);
  if (wrong.ok()) wrong = CheckPlace(place);
  if (wrong.ok() && !IsUtf8(config->GetString("BYTEPS_JOB_ID"))) {
    wrong = absl::InvalidArgumentError("BYTEPS_JOB_ID is not UTF-8");
  }
  return OpenArguments{*std::move(config), place, args.name == nullptr ? "" : args.name, wrong};
}

void OpenArguments::Tell(const Logger& log) const {
  if (!log.Enabled(LogLevel::kDebug)) return;
  BPS_LOG(log, kDebug) << "open: BytePS " << kRelease << ", ABI " << BPS_ABI_MAJOR << "." << BPS_ABI_MINOR
                       << ", session \"" << name << "\", worker host " << place.host_index << " of " << place.num_hosts
                       << ", local rank " << place.local_rank << " of " << place.local_size << ", " << place.num_servers
                       << " servers";
  std::string text;
  for (size_t i = 0; i < kKnobCount; ++i) {
    if (config.SourceAt(i) == ConfigSource::kDefault) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", kKnobs[i].name, "=", config.ShownAt(i), " (",
                    ConfigSourceName(config.SourceAt(i)), ")");
  }
  BPS_LOG(log, kDebug) << "configuration: " << (text.empty() ? "all defaults" : text);
}

bool OpenArguments::alone() const {
  return place.num_hosts == 1 && place.local_size == 1 && !config.GetBool("BYTEPS_FORCE_DISTRIBUTED");
}

}  // namespace byteps
