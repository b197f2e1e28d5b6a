#include "tests/server/process/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace byteps {

ChildProcess::ChildProcess(const std::vector<std::string>& command,
                           const std::map<std::string, std::string>& environment, const std::vector<int>& descriptors) {
  // Everything that allocates happens before fork.
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  // What a sanitizer shall do and overlook (tools/sanitizers) is the same for every program that was built with it.
  for (const char* name : {"PATH", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) variables.push_back(std::string(name) + "=" + value);
  }
  std::vector<char*> argv, envp;
  for (const std::string& each : command) argv.push_back(const_cast<char*>(each.c_str()));
  for (const std::string& each : variables) envp.push_back(const_cast<char*>(each.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  output_.Reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(write_end.get(), STDOUT_FILENO);
    ::dup2(write_end.get(), STDERR_FILENO);
    for (const int fd : descriptors) ::fcntl(fd, F_SETFD, 0);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
}

ChildProcess::~ChildProcess() {
  if (status_ || pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void ChildProcess::Signal(int signal) {
  if (!status_) ::kill(pid_, signal);
}

void ChildProcess::Read() {
  char bytes[4096];
  while (true) {
    const ssize_t got = ::read(output_.get(), bytes, sizeof(bytes));
    if (got <= 0) return;
    text_.append(bytes, static_cast<size_t>(got));
  }
}

std::optional<int> ChildProcess::Wait(Time timeout) {
  const Time deadline = After(Now(), timeout);
  while (!status_) {
    int status = 0;
    Read();
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    } else if (Now() >= deadline) {
      return std::nullopt;
    } else {
      struct pollfd wait = {output_.get(), POLLIN, 0};
      ::poll(&wait, 1, 5);
    }
  }
  Read();
  return status_;
}

bool ChildProcess::WaitForOutput(const std::string& text, Time timeout) {
  const Time deadline = After(Now(), timeout);
  while (Output().find(text) == std::string::npos) {
    if (Now() >= deadline || Wait(0)) return Output().find(text) != std::string::npos;
    struct pollfd wait = {output_.get(), POLLIN, 0};
    ::poll(&wait, 1, 50);
  }
  return true;
}

std::string ChildProcess::Output() {
  Read();
  return text_;
}

}  // namespace byteps
