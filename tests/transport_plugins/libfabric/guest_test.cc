// The plugin, as the file that is shipped, in a stranger's process: nothing of the process changes with it.

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"

namespace byteps::testing {
namespace {

int32_t Fail(bps_failure* failure, int32_t code, const char* reason) {
  *reinterpret_cast<std::string*>(failure) = reason;
  return code;
}
const char* Config(const void*, const char*) { return nullptr; }
constexpr bps_plugin_host kHost = {sizeof(bps_plugin_host), nullptr, Fail, Config};

std::string Maps() {
  std::ifstream file("/proc/self/maps");
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t Entries(const char* directory) {
  const std::filesystem::directory_iterator entries(directory);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

std::vector<std::string> Environment() {
  std::vector<std::string> out;
  for (char** at = environ; *at != nullptr; ++at) out.emplace_back(*at);
  return out;
}

std::vector<void*> Handlers() {
  std::vector<void*> out;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    out.push_back(reinterpret_cast<void*>(action.sa_sigaction));
  }
  return out;
}

volatile sig_atomic_t interrupts = 0;
void OnInterrupt(int) { interrupts = interrupts + 1; }

// A process that interrupts this one over and over, while it lives.
class Interrupter {
 public:
  Interrupter() : process_(fork()) {
    if (process_ != 0) return;
    const pid_t parent = getppid();
    while (getppid() == parent && kill(parent, SIGINT) == 0) usleep(100);
    _exit(0);
  }
  ~Interrupter() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;

 private:
  const pid_t process_;
};

TEST(Guest, LeavesTheProcessAsItFoundIt) {
  ASSERT_EQ(Maps().find("libfabric.so"), std::string::npos) << "this test must not be linked with libfabric";
  signal(SIGINT, OnInterrupt);  // as Python has one
  const std::vector<void*> handlers = Handlers();
  const std::vector<std::string> environment = Environment();
  const size_t threads = Entries("/proc/self/task");

  void* library = dlopen(std::getenv("TCP_PLUGIN"), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  ASSERT_NE(library, nullptr) << dlerror();
  EXPECT_EQ(Maps().find("libfabric.so"), std::string::npos) << "loading the plugin loads libfabric";
  auto entry = reinterpret_cast<bps_transport_plugin_fn>(dlsym(library, BPS_TRANSPORT_ENTRY));
  ASSERT_NE(entry, nullptr) << dlerror();
  EXPECT_EQ(dlsym(library, "fi_getinfo"), nullptr) << "shows functions of libfabric that are its own";

  const bps_transport_plugin* plugin = nullptr;
  ASSERT_EQ(entry(&kHost, &plugin), BPS_OK);
  std::string reason;
  auto* failure = reinterpret_cast<bps_failure*>(&reason);
  {
    // Of libfabric's handlers each would end this process.
    const Interrupter interrupter;
    const sig_atomic_t before = interrupts;
    ASSERT_EQ(plugin->probe(nullptr, failure), BPS_OK) << reason;
    EXPECT_GT(interrupts, before);
  }
  EXPECT_NE(Maps().find("libfabric.so"), std::string::npos);
  for (int life = 0; life < 3; ++life) {
    const size_t before = Entries("/proc/self/fd");
    bps_transport_open_args args{};
    args.struct_size = sizeof args;
    args.local_host = "127.0.0.1";
    bps_transport* transport = nullptr;
    ASSERT_EQ(plugin->table->open(&args, &transport, failure), BPS_OK) << reason;
    bps_event event;
    plugin->table->poll(transport, &event, 1);
    plugin->table->close(transport);
    if (life > 0) {
      EXPECT_EQ(Entries("/proc/self/fd"), before) << "descriptors leak";
    }
  }
  EXPECT_EQ(Handlers(), handlers);
  EXPECT_EQ(Environment(), environment);
  EXPECT_EQ(Entries("/proc/self/task"), threads);
}

}  // namespace
}  // namespace byteps::testing
