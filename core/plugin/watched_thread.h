// watched_thread.h - whose record the calls of device plugins by this thread belong to.
//
//     { const WatchedThread::Scope watched(&calls);  machine->Step(now); }            // the thread that drives
//     const PluginCalls::Scope scope(WatchedThread::calls(), title, "event_query");   // whoever calls the plugin
//
// A transport and a scheduler are called by the thread that drives alone; a device plugin is also called by threads of
// the program, inside bps_push_pull and the like, while another thread drives. A record has one writer, so it belongs
// to the thread that drives, for as long as it does. Calls of other threads are in none: what does not return there
// holds the caller that asked for it, and nobody else.
//
// Threads: each has its own.
#ifndef BYTEPS_CORE_PLUGIN_WATCHED_THREAD_H_
#define BYTEPS_CORE_PLUGIN_WATCHED_THREAD_H_

#include "core/plugin/plugin_calls.h"

namespace byteps {

class WatchedThread {
 public:
  // nullptr: nothing watches this thread.
  static PluginCalls* calls();

  class Scope {
   public:
    // `calls` may be nullptr; it outlives the scope.
    explicit Scope(PluginCalls* calls);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PluginCalls* const before_;
  };
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_WATCHED_THREAD_H_
