#include "frameworks/jax/native/completion_threads.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace byteps::jax {
namespace {

// Longer than most of what XLA computes at once, much shorter than XLA's own patience with a collective.
constexpr std::chrono::milliseconds kStandstill{2};

}  // namespace

CompletionThreads::CompletionThreads(size_t limit) : limit_(std::max<size_t>(1, limit)) {}

void CompletionThreads::Run(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (!Waiting()) {
    filled_.notify_one();
    return;
  }
  if (threads_ < limit_) {
    Add();
    return;
  }
  if (!watched_) {
    std::thread([this] { WatchForStandstill(); }).detach();
    watched_ = true;
  }
  waiting_.notify_one();
}

bool CompletionThreads::Settle(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return settled_.wait_for(lock, patience, [this] { return running_ == 0 && tasks_.empty(); });
}

size_t CompletionThreads::threads() const {
  const std::lock_guard lock(mutex_);
  return threads_;
}

void CompletionThreads::Add() {
  try {
    std::thread([this] { Work(); }).detach();
    ++threads_;
  } catch (const std::system_error&) {
    // No more are to be had. Those there are come to it, unless there are none.
    if (threads_ == 0) throw;
  }
}

void CompletionThreads::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (tasks_.empty() && threads_ > limit_) break;
    ++idle_;
    filled_.wait(lock, [this] { return !tasks_.empty(); });
    --idle_;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++begun_;
    ++running_;
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    if (--running_ == 0 && tasks_.empty()) settled_.notify_all();
  }
  --threads_;
}

void CompletionThreads::WatchForStandstill() {
  std::unique_lock lock(mutex_);
  for (;;) {
    waiting_.wait(lock, [this] { return Waiting(); });
    const uint64_t begun = begun_;
    lock.unlock();
    std::this_thread::sleep_for(kStandstill);
    lock.lock();
    if (begun_ == begun && Waiting()) Add();
  }
}

CompletionThreads& TheCompletionThreads() {
  static auto* const kThreads = new CompletionThreads(std::thread::hardware_concurrency());
  return *kThreads;
}

}  // namespace byteps::jax
