// byteps_server - the coordinator (DMLC_ROLE=scheduler) or a reduction server (DMLC_ROLE=server) of a job.
//
// Everything is configured by the environment; bpslaunch sets it. Exits with 0 when the job is over or after SIGTERM or
// SIGINT, with 2 when the configuration is wrong, with 1 after any other error; the last line on stderr says why.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/base/version.h"
#include "core/config/config.h"
#include "server/process/coordinator_role.h"
#include "server/process/glog_sink.h"
#include "server/process/server_role.h"
#include "server/process/stop_signal.h"

namespace byteps {
namespace {

constexpr int kExitError = 1;
constexpr int kExitUsage = 2;

constexpr char kHelp[] =
    "byteps_server: the coordinator or a server of a BytePS job. It takes no arguments; bpslaunch starts it.\n"
    "  DMLC_ROLE=scheduler   the coordinator; listens at DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT\n"
    "  DMLC_ROLE=server      a reduction server; registers with the coordinator there\n"
    "All variables are in docs/configuration.md.\n";

int ExitCode(const absl::Status& status) {
  if (status.ok()) return 0;
  return status.code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitError;
}

int Fail(const std::string& who, const absl::Status& status) {
  const std::string text(status.message().data(), status.message().size());
  std::fprintf(stderr, "byteps_server (%s): %s\n", who.c_str(), text.c_str());
  return ExitCode(status);
}

// Where a standard stream is closed, what is opened next would take its place, and a connection get the lines of the
// log.
void HoldStandardStreams() {
  int fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::dup(fd);
  if (fd >= 0) ::close(fd);
}

int Main(int argc, char** argv) {
  HoldStandardStreams();
  if (argc > 1) {
    const std::string argument = argv[1];
    if (argument == "--help" || argument == "-h") return std::fputs(kHelp, stdout) < 0 ? kExitError : 0;
    if (argument == "--version") return std::printf("byteps_server %s\n", kRelease) < 0 ? kExitError : 0;
    std::fprintf(stderr, "byteps_server: unknown argument %s\n%s", argv[1], kHelp);
    return kExitUsage;
  }
  // A reader of our output that has gone must not end us.
  std::signal(SIGPIPE, SIG_IGN);
  // A batch system warns all processes by them: they are for the workers.
  for (const int warning : {SIGUSR1, SIGUSR2}) std::signal(warning, SIG_IGN);
  StopSignal stop;
  const absl::StatusOr<Config> config = Config::Make(ReadEnvironment());
  if (!config.ok()) {
    const Config readable = Config::Readable(ReadEnvironment());
    const Logger log = Logger(readable.GetLogOptions()).WithPrefix("configuration: ");
    const std::string& role = readable.GetString("DMLC_ROLE");
    const absl::Status& why = config.status();
    return Fail("configuration", role == "server"      ? RefuseServer(readable, why, log, &stop)
                                 : role == "scheduler" ? RefuseToCoordinate(readable, why, log, &stop)
                                                       : why);
  }

  LogOptions log_options = config->GetLogOptions();
  UseGlog(argv[0], &log_options);
  const std::string& role = config->GetString("DMLC_ROLE");
  const std::string who = role == "scheduler" ? "coordinator" : role;
  const Logger log = Logger(log_options).WithPrefix(who + ": ");
  config->LogWarnings(log);
  if (role == "scheduler" || role == "server") {
    const absl::Status status =
        role == "scheduler" ? RunCoordinator(*config, log, &stop) : RunServer(*config, log, &stop);
    return status.ok() ? 0 : Fail(who, status);
  }
  std::fprintf(stderr, "byteps_server: DMLC_ROLE=%s is no role of this program: scheduler or server is expected\n",
               role.c_str());
  return kExitUsage;
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) { return byteps::Main(argc, argv); }
