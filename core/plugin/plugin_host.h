// plugin_host.h - the library's side of abi/plugin.h: the host table that plugins are given, and what is behind its
// tokens.
//
//     plugin_fn(PluginHost(), &plugin);
//     args.config = &values;  args.log = &logger;         // a PluginConfig, a Logger
//     bps_failure failure;
//     int32_t code = plugin->open(&args, &transport, &failure);
//     if (code != BPS_OK) return FailureStatus(code, failure, "transport \"tcp\"");
//
// Threads: everything here may be used on any thread.
#ifndef BYTEPS_CORE_PLUGIN_PLUGIN_HOST_H_
#define BYTEPS_CORE_PLUGIN_PLUGIN_HOST_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "abi/plugin.h"
#include "absl/status/status.h"

// Where a plugin writes why something failed.
struct bps_failure {
  std::string reason;
};

namespace byteps {

// What a plugin may ask about the configuration.
class PluginConfig {
 public:
  virtual ~PluginConfig() = default;
  // The value of a variable as text without blanks and units of the user's own (abi/plugin.h, `config`), or nullptr if
  // it is not set and has no default. Valid while this object is.
  virtual const char* PluginValue(std::string_view name) const = 0;
};

// The one host table. The tokens: `config` is a const PluginConfig*, `instance_log` a const Logger*; both may be
// nullptr.
const bps_plugin_host* PluginHost();

// Where fail() without a failure writes while an entry function runs on this thread: entries are given none.
class EntryFailure {
 public:
  explicit EntryFailure(bps_failure* failure);
  ~EntryFailure();
  EntryFailure(const EntryFailure&) = delete;
  EntryFailure& operator=(const EntryFailure&) = delete;
};

// What a function of a plugin that is given no failure has said through fail() on this thread, and forgets it: "" if
// nothing, or if it went with another code.
std::string TakeLastWords(int32_t code);

// "subject: reason" with this code; says so where the plugin gave no reason.
absl::Status FailureStatus(int32_t code, const bps_failure& failure, std::string_view subject);

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_PLUGIN_HOST_H_
