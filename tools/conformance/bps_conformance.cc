// bps_conformance - does a plugin keep its contract? The conformance suites, for plugins of others: see --help.

#include <fnmatch.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "gtest/gtest.h"
#include "tools/conformance/plugin_under_test.h"
#include "tools/conformance/test_process.h"

namespace byteps {
namespace {

constexpr char kHelp[] =
    R"(bps_conformance: does a plugin keep its contract?

    bps_conformance --transport ./libbyteps_transport_NAME.so [options]
    bps_conformance --scheduler ./libbyteps_scheduler_NAME.so [options]

Loads the plugin as the library would, and runs the conformance suite of its kind: abi/transport.h or abi/scheduler.h,
sentence by sentence. Each test runs in a process of its own, so that one that crashes or hangs is named, too.

    --list             name the tests, run none
    --filter PATTERN   run those whose name matches (* and ? stand for any characters, ':' is between patterns)
    --timeout SECONDS  for each test; 300 if not given
    --verbose          print also what tests that pass have written

The plugin's configuration (host->config) are the BYTEPS_ variables of the environment; a transport binds
DMLC_NODE_HOST, 127.0.0.1 if it is not set.

Exit status: 0: all tests that apply pass; 1: some fail; 2: wrong use, or the plugin cannot be loaded or used here.
Tests of what a transport does not announce are skipped, each with its reason.
)";

struct Options {
  std::string kind, path, filter = "*";
  std::string run;  // one test, in this process
  int timeout = 300;
  bool list = false, verbose = false;
};

int Usage(const std::string& what) {
  std::cerr << "bps_conformance: " << what << "; bps_conformance --help tells all\n";
  return 2;
}

// "" and the options, or what is wrong with them.
std::string Read(const std::vector<std::string>& words, Options* options) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--list") {
      options->list = true;
    } else if (word == "--verbose") {
      options->verbose = true;
    } else if (word == "--transport" || word == "--scheduler" || word == "--filter" || word == "--run" ||
               word == "--timeout") {
      if (++i == words.size()) return word + " takes a value";
      if (word == "--filter") {
        options->filter = words[i];
      } else if (word == "--run") {
        options->run = words[i];
      } else if (word == "--timeout") {
        char* end = nullptr;
        const long seconds = std::strtol(words[i].c_str(), &end, 10);
        if (*end != '\0' || seconds < 1 || seconds > 86400) return "--timeout takes a number of seconds, 1 to 86400";
        options->timeout = static_cast<int>(seconds);
      } else {
        if (!options->kind.empty()) return "one plugin at a time";
        options->kind = word.substr(2);
        options->path = words[i];
      }
    } else {
      return "unknown option " + word;
    }
  }
  return options->kind.empty() ? "name a plugin: --transport FILE or --scheduler FILE" : "";
}

struct Test {
  std::string full;  // as GoogleTest knows it
  std::string short_name;
};

// "Plugin/TransportTest.MessagesArrive/unix" is "MessagesArrive" to people.
std::string ShortName(const std::string& test) { return test.substr(0, test.find('/')); }

std::vector<Test> Tests(const std::string& filter) {
  std::vector<Test> tests;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    // GoogleTest's own note about suites that are not instantiated.
    if (std::strncmp(suite.name(), "Plugin/", 7) != 0) continue;
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& info = *suite.GetTestInfo(t);
      const Test test{std::string(suite.name()) + "." + info.name(), ShortName(info.name())};
      std::istringstream patterns(filter);
      for (std::string pattern; std::getline(patterns, pattern, ':');) {
        if (::fnmatch(pattern.c_str(), test.short_name.c_str(), 0) == 0) {
          tests.push_back(test);
          break;
        }
      }
    }
  }
  return tests;
}

// What a test has written, without GoogleTest's frame.
std::string Said(const std::string& output) {
  std::istringstream lines(output);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const bool frame = line.empty() || line.rfind("[==", 0) == 0 || line.rfind("[--", 0) == 0 ||
                       line.rfind("[ ", 0) == 0 || line.rfind("Note: Google Test", 0) == 0 ||
                       line.rfind("Running main", 0) == 0 || line.rfind("  YOU HAVE", 0) == 0 ||
                       line.rfind(" 1 FAILED", 0) == 0;
    if (!frame) text += "          " + line + "\n";
  }
  return text;
}

// Why a test was skipped: the line behind GoogleTest's "Skipped".
std::string WhySkipped(const std::string& output) {
  const size_t at = output.find(": Skipped\n");
  if (at == std::string::npos) return "";
  const size_t begin = at + std::strlen(": Skipped\n");
  return output.substr(begin, output.find('\n', begin) - begin);
}

int Report(const Options& options, const PluginUnderTest& plugin, const std::vector<Test>& tests) {
  std::cout << plugin.kind << " \"" << plugin.name << "\" " << plugin.version << ": " << plugin.description << "\n  "
            << plugin.path << ", written for version 1." << plugin.minor << " of the contract\n\n";
  int passed = 0, skipped = 0, failed = 0;
  for (const Test& test : tests) {
    const TestEnd end = RunInProcess({"/proc/self/exe", "--" + options.kind, plugin.path, "--run", test.full},
                                     std::chrono::seconds(options.timeout));
    const bool was_skipped = end.status == 0 && end.output.find("[  SKIPPED ]") != std::string::npos;
    const char* word = was_skipped ? "skipped" : end.status == 0 ? "ok" : "FAILED";
    ++(was_skipped ? skipped : end.status == 0 ? passed : failed);
    std::printf("  %-8s %-70s %6.1f s\n", word, test.short_name.c_str(), end.seconds);
    if (was_skipped) std::printf("          %s\n", WhySkipped(end.output).c_str());
    if (end.timed_out) {
      std::printf("          had not ended after %d s\n", options.timeout);
    } else if (end.status < 0) {
      std::printf("          crashed: %s\n", ::strsignal(-end.status));
    }
    if ((end.status != 0 || options.verbose) && !was_skipped) std::fputs(Said(end.output).c_str(), stdout);
    std::fflush(stdout);
  }
  std::printf("\n%d passed, %d failed, %d skipped: the %s \"%s\" %s\n", passed, failed, skipped, plugin.kind.c_str(),
              plugin.name.c_str(), failed == 0 ? "keeps its contract" : "does not keep its contract");
  return failed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (const std::string& word : words) {
    if (word != "--help" && word != "-h") continue;
    std::cout << kHelp;
    return 0;
  }
  Options options;
  if (const std::string wrong = Read(words, &options); !wrong.empty()) return Usage(wrong);
  const absl::StatusOr<PluginUnderTest> plugin = LoadPlugin(options.kind, options.path);
  if (!plugin.ok()) {
    std::cerr << "bps_conformance: the " << options.kind << " plugin cannot be tested: " << plugin.status().message()
              << "\n";
    return 2;
  }
  SetPluginUnderTest(*plugin);
  int no_words = 1;
  ::testing::InitGoogleTest(&no_words, argv);
  if (!options.run.empty()) {
    ::testing::GTEST_FLAG(filter) = options.run;
    return RUN_ALL_TESTS();
  }
  const std::vector<Test> tests = Tests(options.filter);
  if (tests.empty()) return Usage("no test matches --filter " + options.filter + "; --list names them");
  if (options.list) {
    for (const Test& test : tests) std::cout << test.short_name << "\n";
    return 0;
  }
  return Report(options, *plugin, tests);
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) { return byteps::Main(argc, argv); }
