#include "core/control/name_lookup.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/unique_fd.h"

namespace byteps {
namespace {

std::string Numeric(const struct addrinfo& entry) {
  char host[NI_MAXHOST];
  const int error = ::getnameinfo(entry.ai_addr, entry.ai_addrlen, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? host : "?";
}

// The error of getaddrinfo, 0: none.
int Resolve(const std::string& host, const std::string& port, int flags, std::vector<SocketAddress>* addresses) {
  struct addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  struct addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) return error;
  for (const struct addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    if (entry->ai_addrlen > sizeof(address.bytes)) continue;
    std::memcpy(&address.bytes, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
    address.text = Numeric(*entry);
    addresses->push_back(std::move(address));
  }
  ::freeaddrinfo(found);
  return 0;
}

}  // namespace

struct NameLookup::Answer {
  // On any thread, once.
  void Ask() {
    const int error = Resolve(host, port, 0, &addresses);
    if (error != 0) status = absl::UnavailableError("\"" + host + "\": " + ::gai_strerror(error));
    {
      const std::lock_guard<std::mutex> lock(mutex);
      done = true;
    }
    known.notify_all();
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof(one));
  }

  std::string host, port;
  absl::Status status;
  std::vector<SocketAddress> addresses;
  UniqueFd event;
  std::mutex mutex;
  std::condition_variable known;
  bool done = false;  // behind it nothing changes
};

NameLookup::NameLookup(const std::string& host, int port) : answer_(std::make_shared<Answer>()) {
  answer_->host = host;
  answer_->port = std::to_string(port);
  if (Resolve(host, answer_->port, AI_NUMERICHOST, &answer_->addresses) == 0) {
    answer_->done = true;
    return;
  }
  answer_->event = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!answer_->event) {
    answer_->Ask();  // here, since nothing could wake a waiting thread
    return;
  }
  sigset_t all, before;
  sigfillset(&all);
  // The program's signals are for its own threads.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([answer = answer_] { answer->Ask(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  } catch (const std::system_error&) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    answer_->Ask();  // no thread is left: then it blocks
  }
}

NameLookup::~NameLookup() = default;

int NameLookup::fd() const { return answer_->event.get(); }

bool NameLookup::done() const {
  const std::lock_guard<std::mutex> lock(answer_->mutex);
  return answer_->done;
}

bool NameLookup::Wait(Time deadline) const {
  std::unique_lock<std::mutex> lock(answer_->mutex);
  while (!answer_->done) {
    const Time now = Now();
    if (now >= deadline) return false;
    answer_->known.wait_for(lock, std::chrono::nanoseconds(std::min(deadline - now, 60 * kSecond)));
  }
  return true;
}

const absl::Status& NameLookup::status() const { return answer_->status; }

const std::vector<SocketAddress>& NameLookup::addresses() const { return answer_->addresses; }

}  // namespace byteps
