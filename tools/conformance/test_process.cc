#include "tools/conformance/test_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace byteps {
namespace {

using Clock = std::chrono::steady_clock;

// Everything until the end of the file; false at the deadline.
bool ReadAll(int fd, Clock::time_point deadline, std::string* text) {
  char buffer[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd waiting{fd, POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>(left)) <= 0) continue;
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got == 0) return true;
    if (got > 0) text->append(buffer, static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) return true;
  }
}

}  // namespace

TestEnd RunInProcess(const std::vector<std::string>& command, std::chrono::seconds deadline) {
  TestEnd end;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    end.output = std::string("pipe: ") + std::strerror(errno);
    return end;
  }
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const auto start = Clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    // Where the caller of this one wants its results: those of the child are read from its output.
    for (const char* name : {"XML_OUTPUT_FILE", "GTEST_OUTPUT"}) ::unsetenv(name);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  if (child < 0) {
    end.output = std::string("fork: ") + std::strerror(errno);
  } else {
    end.timed_out = !ReadAll(ends[0], start + deadline, &end.output);
    if (end.timed_out) ::kill(child, SIGKILL);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    end.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  ::close(ends[0]);
  end.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return end;
}

}  // namespace byteps
