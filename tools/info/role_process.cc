#include "tools/info/role_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace byteps {

RoleProcess::RoleProcess(std::string name, const std::vector<std::string>& command,
                         const std::map<std::string, std::string>& environment, int inherited)
    : name_(std::move(name)), output_(::memfd_create("bps_info", MFD_CLOEXEC)) {
  // Everything that allocates happens before the fork: other threads may be there (of libfabric).
  std::vector<std::string> variables;
  for (const auto& [variable, value] : environment) variables.push_back(absl::StrCat(variable, "=", value));
  std::vector<char*> argv, envp;
  for (const std::string& each : command) argv.push_back(const_cast<char*>(each.c_str()));
  for (const std::string& each : variables) envp.push_back(const_cast<char*>(each.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(output_.get(), STDOUT_FILENO);
    ::dup2(output_.get(), STDERR_FILENO);
    if (inherited >= 0) ::fcntl(inherited, F_SETFD, 0);
    ::execve(argv[0], argv.data(), envp.data());
    constexpr char kText[] = "cannot be started\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
    ::_exit(127);
  }
  ended_ = pid_ < 0;
}

RoleProcess::~RoleProcess() {
  if (ended_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool RoleProcess::Ended() {
  int status = 0;
  if (ended_ || ::waitpid(pid_, &status, WNOHANG) != pid_) return ended_;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  ended_ = true;
  return true;
}

std::string RoleProcess::Ending() const {
  if (code_ < 0) return absl::StrCat("was killed by signal ", -code_);
  return absl::StrCat("has ended with code ", code_);
}

std::string RoleProcess::Output() const {
  std::string text;
  char bytes[4096];
  while (true) {
    // All share one offset in the file: this does not move it.
    const ssize_t got = ::pread(output_.get(), bytes, sizeof(bytes), static_cast<off_t>(text.size()));
    if (got <= 0) return text;
    text.append(bytes, static_cast<size_t>(got));
  }
}

std::string RoleProcess::LastLine() const {
  std::string text = Output();
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace byteps
