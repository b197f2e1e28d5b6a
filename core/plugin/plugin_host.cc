#include "core/plugin/plugin_host.h"

#include <string>
#include <utility>

#include "core/base/log.h"
#include "core/base/status.h"

namespace byteps {
namespace {

void Log(void* instance_log, int32_t level, const char* file, int32_t line, const char* message) {
  if (instance_log == nullptr || message == nullptr) return;
  const auto& log = *static_cast<const Logger*>(instance_log);
  const auto severity = static_cast<LogLevel>(level);
  if (log.Enabled(severity)) log.Write(severity, file == nullptr ? "plugin" : file, line, message);
}

// Of the entry function that runs on this thread; nullptr: none does.
thread_local bps_failure* entry_failure = nullptr;

// What a function without a bps_failure has said on this thread, and the code that it goes with.
thread_local bps_failure last_failure;
thread_local int32_t last_code = BPS_OK;

int32_t Fail(bps_failure* failure, int32_t code, const char* reason) {
  if (failure == nullptr) failure = entry_failure;
  if (failure == nullptr) {
    failure = &last_failure;
    last_code = code;
  }
  if (failure != nullptr && reason != nullptr) {
    try {
      failure->reason = reason;
    } catch (...) {  // no memory for the reason: the code must do
    }
  }
  return code;
}

const char* ConfigValue(const void* config, const char* name) {
  if (config == nullptr || name == nullptr) return nullptr;
  return static_cast<const PluginConfig*>(config)->PluginValue(name);
}

}  // namespace

EntryFailure::EntryFailure(bps_failure* failure) { entry_failure = failure; }
EntryFailure::~EntryFailure() { entry_failure = nullptr; }

std::string TakeLastWords(int32_t code) {
  std::string words = std::exchange(last_failure.reason, {});
  return std::exchange(last_code, BPS_OK) == code ? words : "";
}

const bps_plugin_host* PluginHost() {
  static const bps_plugin_host host = {sizeof(bps_plugin_host), Log, Fail, ConfigValue};
  return &host;
}

absl::Status FailureStatus(int32_t code, const bps_failure& failure, std::string_view subject) {
  const std::string_view reason =
      failure.reason.empty() ? std::string_view("the plugin gave no reason") : std::string_view(failure.reason);
  // What stands for several transports (core/transports/transport_set.h) passes on what one of them has failed with,
  // subject included.
  const std::string prefix = subject.empty() ? "" : std::string(subject) + ": ";
  const bool said = reason.substr(0, prefix.size()) == prefix;
  // A code that is no error would make a failure look like success.
  return MakeStatus(code == BPS_OK ? BPS_INTERNAL : code, (said ? "" : prefix) + std::string(reason));
}

}  // namespace byteps
