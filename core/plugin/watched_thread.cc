#include "core/plugin/watched_thread.h"

#include <utility>

namespace byteps {
namespace {

thread_local PluginCalls* calls_of_this_thread = nullptr;

}  // namespace

PluginCalls* WatchedThread::calls() { return calls_of_this_thread; }

WatchedThread::Scope::Scope(PluginCalls* calls) : before_(std::exchange(calls_of_this_thread, calls)) {}

WatchedThread::Scope::~Scope() { calls_of_this_thread = before_; }

}  // namespace byteps
