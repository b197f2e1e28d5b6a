// info_program.h - bps_info as a user runs it.
//
//     const Outcome outcome = RunInfo("--check", {"transport_plugins/shm"}, "BYTEPS_LOG_LEVEL=INFO");
//     EXPECT_EQ(outcome.code, 0) << outcome.output;
//
// It finds the plugins in folders of the tree, and the library and the server that the test was built with.
#ifndef BYTEPS_TESTS_TOOLS_INFO_PROGRAM_H_
#define BYTEPS_TESTS_TOOLS_INFO_PROGRAM_H_

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace byteps {

// The root of the tree, as the test sees it.
inline std::string Root() {
  return std::string(std::getenv("TEST_SRCDIR")) + "/" + std::string(std::getenv("TEST_WORKSPACE"));
}

struct Outcome {
  int code;
  std::string output;  // both streams
};

// The command line. `variables`: assignments before the command.
inline std::string InfoCommand(const std::string& arguments, const std::vector<std::string>& plugin_folders,
                               const std::string& variables = "") {
  std::string path;
  for (const std::string& folder : plugin_folders) path += (path.empty() ? "" : ":") + Root() + "/" + folder;
  return "env BYTEPS_PLUGIN_PATH=" + path + " BYTEPS_LIBRARY=" + Root() +
         "/core/libbyteps.so BYTEPS_SERVER_BINARY=" + Root() + "/server/byteps_server " + variables + " " + Root() +
         "/tools/bps_info " + arguments;
}

inline Outcome RunCommand(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  std::string output;
  char buffer[4096];
  while (const size_t size = std::fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, size);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

inline Outcome RunInfo(const std::string& arguments, const std::vector<std::string>& plugin_folders,
                       const std::string& variables = "") {
  return RunCommand(InfoCommand(arguments, plugin_folders, variables));
}

}  // namespace byteps

#endif  // BYTEPS_TESTS_TOOLS_INFO_PROGRAM_H_
