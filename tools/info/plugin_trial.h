// plugin_trial.h - loads a plugin in a process of its own first, so that one that crashes is a line of a report.
//
//     registry.UseTrial([&](const std::string& kind, const std::string& path) { return TryPlugin(config, kind, path);
//     });
//
// Threads: to be called while the process has one thread, since it forks.
#ifndef BYTEPS_TOOLS_INFO_PLUGIN_TRIAL_H_
#define BYTEPS_TOOLS_INFO_PLUGIN_TRIAL_H_

#include <string>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/config/config.h"

namespace byteps {

constexpr Time kTrialTime = 20 * kSecond;

// Loads, checks and probes it in a child. Not OK: the child was ended by a signal, or did not end within `limit`; what
// the plugin answers, right or wrong, is left to who loads it then.
absl::Status TryPlugin(const Config& config, const std::string& kind, const std::string& path, Time limit = kTrialTime);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_PLUGIN_TRIAL_H_
