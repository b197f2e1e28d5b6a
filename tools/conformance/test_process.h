// test_process.h - one test, run by this program in a process of its own.
//
//     TestEnd end = RunInProcess({"/proc/self/exe", "--transport", path, "--run", name}, std::chrono::seconds(180));
//
// A plugin that crashes, hangs or writes where it must not ends its own process and no other.
//
// Threads: one at a time.
#ifndef BYTEPS_TOOLS_CONFORMANCE_TEST_PROCESS_H_
#define BYTEPS_TOOLS_CONFORMANCE_TEST_PROCESS_H_

#include <chrono>
#include <string>
#include <vector>

namespace byteps {

struct TestEnd {
  int status = -1;         // exit status, or minus the signal that ended it
  bool timed_out = false;  // it was killed at its deadline
  double seconds = 0;
  std::string output;  // standard output and error together
};

TestEnd RunInProcess(const std::vector<std::string>& command, std::chrono::seconds deadline);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_CONFORMANCE_TEST_PROCESS_H_
