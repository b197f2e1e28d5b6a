#include "server/reducer/lane.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/open_files.h"

namespace byteps {
namespace {

// How often a transport without a descriptor to wait for is polled.
constexpr Time kPollInterval = kMillisecond;

}  // namespace

absl::StatusOr<std::unique_ptr<Lane>> Lane::Start(Transport transport, const LaneOptions& options, OnBroken on_broken,
                                                  const Logger& log) {
  std::unique_ptr<Lane> lane(new Lane(options, std::move(on_broken), log));
  lane->wake_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!lane->wake_)
    return absl::ResourceExhaustedError(absl::StrCat("no eventfd: ", std::strerror(errno), OpenFilesAdvice(errno)));
  lane->address_.set_transport(options.reducer.transport);
  lane->address_.set_provider(transport.provider());
  absl::StatusOr<std::string> address = transport.Address();
  if (!address.ok()) return address.status();
  lane->address_.set_address(*address);
  absl::StatusOr<std::unique_ptr<Reducer>> reducer = Reducer::Make(std::move(transport), options.reducer, &lane->log_);
  if (!reducer.ok()) return reducer.status();
  lane->reducer_ = *std::move(reducer);
  lane->thread_ = std::thread([raw = lane.get()] { raw->Run(); });
  return lane;
}

Lane::Lane(const LaneOptions& options, OnBroken on_broken, const Logger& log)
    : options_(options), on_broken_(std::move(on_broken)), log_(log) {}

Lane::~Lane() { Stop(); }

void Lane::AddSession(const control::Epoch& epoch, uint32_t own_member) {
  Put({Message::Kind::kAdd, epoch, own_member, epoch.session_id()});
}

void Lane::EndSession(uint64_t session) { Put({Message::Kind::kEnd, {}, 0, session}); }

void Lane::Stop() {
  if (!thread_.joinable()) return;
  Put({Message::Kind::kStop, {}, 0, 0});
  thread_.join();
}

void Lane::Detach() {
  if (thread_.joinable()) thread_.detach();
}

void Lane::Put(Message message) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    messages_.push_back(std::move(message));
  }
  // The thread reads the signal when it sees has_messages_: set before, the messages could be gone when the signal
  // comes, which would not be read then, and no sleep would last.
  const uint64_t one = 1;
  // Full means that the thread has been woken often enough.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  has_messages_.store(true, std::memory_order_release);
}

ReducerStats Lane::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void Lane::Publish() {
  const ReducerStats stats = reducer_->stats();
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_ = stats;
}

void Lane::Run() {
  pthread_setname_np(pthread_self(), absl::StrCat("bps-lane-", options_.reducer.lane).c_str());
  Time busy = Now();
  while (true) {
    if (has_messages_.load(std::memory_order_acquire)) {
      if (!ReadMail()) break;
      busy = Now();
    }
    const Time now = Now();
    bool worked = true;
    // The lane serves the sessions that come later.
    try {
      worked = reducer_->Poll(now);
    } catch (const std::exception& error) {
      reducer_->BreakAll(error.what());
    }
    TellBroken();
    if (worked) {
      busy = now;
    } else if (now - busy < options_.spin) {
      sched_yield();
    } else {
      Sleep(now);
      busy = Now();
    }
  }
  Publish();
}

bool Lane::ReadMail() {
  // In this order: what is put from now on is seen again, and its signal read then.
  has_messages_.exchange(false, std::memory_order_acq_rel);
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof count);
  std::vector<Message> messages;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    messages.swap(messages_);
  }
  for (const Message& message : messages) {
    if (message.kind == Message::Kind::kStop) return false;
    try {
      if (message.kind == Message::Kind::kEnd) {
        reducer_->EndSession(Now(), message.session);
      } else if (absl::Status status = reducer_->AddSession(Now(), message.epoch, message.own_member); !status.ok()) {
        on_broken_({message.session, 0, status});
      }
    } catch (const std::exception& error) {
      reducer_->BreakAll(error.what());
      on_broken_({message.session, 0, absl::InternalError(error.what())});
    }
  }
  return true;
}

void Lane::TellBroken() {
  for (const BrokenSession& broken : reducer_->TakeBroken()) on_broken_(broken);
}

void Lane::Sleep(Time now) {
  Publish();
  const int wait_fd = reducer_->WaitFd();
  if (wait_fd >= 0 && !reducer_->Arm()) return;
  Time timer = reducer_->NextTimer();
  if (wait_fd < 0 && reducer_->sessions() > 0) timer = std::min(timer, now + kPollInterval);
  std::array<pollfd, 2> fds = {pollfd{wake_.get(), POLLIN, 0}, pollfd{wait_fd, POLLIN, 0}};
  poll(fds.data(), fds.size(), PollTimeout(now, timer));  // a negative descriptor is left out
}

}  // namespace byteps
