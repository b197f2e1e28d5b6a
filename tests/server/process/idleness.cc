#include "tests/server/process/idleness.h"

#include <poll.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

namespace byteps {
namespace {

constexpr Time kWindow = 2 * kSecond;
constexpr int kWindows = 6;

// How often its threads went to sleep by their own will: each time they had been woken.
int64_t Sleeps(pid_t pid) {
  int64_t sum = 0;
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
    std::ifstream status(thread.path() / "status");
    for (std::string word; status >> word;) {
      if (word != "voluntary_ctxt_switches:") continue;
      int64_t count = 0;
      status >> count;
      sum += count;
    }
  }
  return sum;
}

// A process under watch.
class Watched {
 public:
  explicit Watched(pid_t pid) : pid_(pid) {}

  void Begin() { cpu_ = CpuTime(pid_), sleeps_ = Sleeps(pid_), began_ = Now(); }
  void End(const IdleBounds& bounds) {
    const Time cpu = CpuTime(pid_);
    if (cpu_ == kNever || cpu == kNever) {
      said_ += " it has ended;";
      return;
    }
    const double seconds = static_cast<double>(Now() - began_) / kSecond;
    const double share = static_cast<double>(cpu - cpu_) / kSecond / seconds;
    const double wakes = static_cast<double>(Sleeps(pid_) - sleeps_) / seconds;
    idle_ = idle_ || (share < bounds.share && wakes < bounds.wakes);
    char text[80];
    std::snprintf(text, sizeof text, " %.3f%% of a processor, woken %.1f times a second;", 100 * share, wakes);
    said_ += text;
  }
  bool idle() const { return idle_; }
  // What was seen in each window.
  std::string Said() const { return "process " + std::to_string(pid_) + ":" + said_ + "\n"; }

 private:
  const pid_t pid_;
  Time cpu_ = 0, began_ = 0;
  int64_t sleeps_ = 0;
  bool idle_ = false;
  std::string said_;
};

}  // namespace

Time CpuTime(pid_t pid) {
  clockid_t clock;
  struct timespec used;
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return kNever;
  return used.tv_sec * kSecond + used.tv_nsec;
}

testing::AssertionResult AreIdle(const std::vector<pid_t>& processes, const std::function<void(Time)>& pass,
                                 const IdleBounds& bounds) {
  std::vector<Watched> watched(processes.begin(), processes.end());
  bool idle = false;
  for (int window = 0; window < kWindows && !idle; ++window) {
    for (Watched& each : watched) each.Begin();
    pass(kWindow);
    idle = true;
    for (Watched& each : watched) {
      each.End(bounds);
      idle = idle && each.idle();
    }
  }
  std::string said;
  for (const Watched& each : watched) said += each.Said();
  std::printf("%s", said.c_str());
  return idle ? testing::AssertionSuccess() : testing::AssertionFailure() << said;
}

testing::AssertionResult AreIdle(const std::vector<pid_t>& processes, const IdleBounds& bounds) {
  return AreIdle(
      processes, [](Time time) { ::poll(nullptr, 0, static_cast<int>(time / kMillisecond)); }, bounds);
}

}  // namespace byteps
