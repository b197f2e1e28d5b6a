#include "tools/info/plugin_trial.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/log.h"
#include "core/plugin/plugin_registry.h"

namespace byteps {

absl::Status TryPlugin(const Config& config, const std::string& kind, const std::string& path, Time limit) {
  const pid_t child = ::fork();
  if (child < 0) return absl::OkStatus();  // then it is loaded without a trial
  if (child == 0) {
    // No core file, no handler, and no word: what it has to say it says again.
    for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE}) ::signal(number, SIG_DFL);
    ::alarm(static_cast<unsigned>(limit / kSecond) + 1);
    LogOptions quiet;
    quiet.level = LogLevel::kFatal;
    const Logger log(quiet);
    PluginRegistry registry(config, log);
    if (kind == "transport") {
      registry.FindTransport(path).status().IgnoreError();
    } else if (kind == "device") {
      registry.FindDevice(path).status().IgnoreError();
    } else {
      registry.FindScheduler(path).status().IgnoreError();
    }
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFSIGNALED(status)) return absl::OkStatus();
  const int number = WTERMSIG(status);
  if (number == SIGALRM) {
    return absl::FailedPreconditionError(
        absl::StrCat("it does not return within ", limit / kSecond, " s when it is loaded and probed"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("it crashes when it is loaded or probed: signal ", number, " (", ::strsignal(number), ")"));
}

}  // namespace byteps
