#include "device_plugins/fake/runner.h"

#include <unistd.h>

#include <chrono>
#include <utility>

namespace byteps::fake {
namespace {

// A collective that is as old as this is run: the program has had the time to do it by asking.
constexpr auto kPeriod = std::chrono::milliseconds(1);

}  // namespace

Runner::Runner(std::shared_ptr<Machine> machine)
    : machine_(std::move(machine)), owner_(::getpid()), thread_([this] { Run(); }) {}

Runner::~Runner() {
  if (::getpid() != owner_) {  // a forked child has no such thread
    thread_.detach();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Runner::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kPeriod, [this] { return stop_; })) machine_->RunCollectives();
}

}  // namespace byteps::fake
