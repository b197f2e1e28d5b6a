// plugin_calls.h - which plugin's code a thread is in, for another thread that watches it.
//
//     PluginCalls calls;
//     { const PluginCalls::Scope scope(&calls, name, "next");  table->next(...); }     // the thread that is watched
//     PluginCalls::Now now = calls.Look();                                             // any other
//     if (calls.Hold(now.number)) ...                                                  // it will not come back
//
// The subtle parts:
//
// Memory ordering. One writer. `entered` is odd while a call runs, and another number in each call; what Look returns
//                  belongs together if the number is the same before and after.
// Holding.         A thread that returns from a plugin looks whether it is held, and stops there for good: what it has
//                  been working on then belongs to the thread that holds it. A call costs no fence for that: Hold lets
//                  the kernel run one on all threads (membarrier), so either it sees that the call has ended, or the
//                  thread sees that it is held. Where the kernel refuses, no thread is ever held.
#ifndef BYTEPS_CORE_PLUGIN_PLUGIN_CALLS_H_
#define BYTEPS_CORE_PLUGIN_PLUGIN_CALLS_H_

#include <atomic>
#include <cstdint>

namespace byteps {

class PluginCalls {
 public:
  struct Now {
    uint64_t number = 0;           // of the call; 0: none runs
    const char* plugin = nullptr;  // `scheduler "x"`, as its owner has described it; outlives the call
    const char* verb = nullptr;    // "next"
  };

  // `calls` may be nullptr: nothing watches.
  class Scope {
   public:
    Scope(PluginCalls* calls, const char* plugin, const char* verb) : calls_(calls) {
      if (calls_ == nullptr) return;
      calls_->plugin_.store(plugin, std::memory_order_relaxed);
      calls_->verb_.store(verb, std::memory_order_relaxed);
      calls_->Step();
    }
    ~Scope() {
      if (calls_ == nullptr) return;
      calls_->Step();
      std::atomic_signal_fence(std::memory_order_seq_cst);
      if (calls_->held_.load(std::memory_order_relaxed)) calls_->Stay();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PluginCalls* const calls_;
  };

  Now Look() const {
    const uint64_t number = entered_.load(std::memory_order_acquire);
    if (number % 2 == 0) return {};
    const Now now{number, plugin_.load(std::memory_order_relaxed), verb_.load(std::memory_order_relaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    return entered_.load(std::memory_order_relaxed) == number ? now : Now{};
  }

  // True: the thread that is in this call stays there, even if the plugin returns: only the caller uses what that
  // thread has used, and no plugin may be called from there. False: it has returned, or cannot be held.
  bool Hold(uint64_t number);

 private:
  // (Callers who drive take turns under a lock: one writer at a time.)
  void Step() { entered_.store(entered_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  // Until Hold finds that it was too late, or for ever.
  void Stay() const;

  std::atomic<uint64_t> entered_{0};
  std::atomic<const char*> plugin_{nullptr};
  std::atomic<const char*> verb_{nullptr};
  std::atomic<bool> held_{false};
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_PLUGIN_CALLS_H_
