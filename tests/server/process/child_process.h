// child_process.h - a program started by a test: its environment, its output, its end.
//
//     ChildProcess child({runfile}, {{"DMLC_ROLE", "scheduler"}}, {listener.get()});
//     EXPECT_TRUE(child.WaitForOutput("listening", 10 * kSecond));
//     child.Signal(SIGTERM);
//     EXPECT_EQ(child.Wait(10 * kSecond), 0);
//
// It gets the given variables alone (and PATH, and the options of sanitizers). Standard output and error go to one
// place. A child that is still there when the object goes is killed.
#ifndef BYTEPS_TESTS_SERVER_PROCESS_CHILD_PROCESS_H_
#define BYTEPS_TESTS_SERVER_PROCESS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "core/base/unique_fd.h"

namespace byteps {

class ChildProcess {
 public:
  // `descriptors` stay open in the child under their numbers.
  ChildProcess(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment,
               const std::vector<int>& descriptors = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // Its exit status, or minus the signal that ended it; nothing at the deadline.
  std::optional<int> Wait(Time timeout);
  bool WaitForOutput(const std::string& text, Time timeout);
  // What it has written so far.
  std::string Output();

 private:
  void Read();

  pid_t pid_ = -1;
  UniqueFd output_;
  std::string text_;
  std::optional<int> status_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SERVER_PROCESS_CHILD_PROCESS_H_
