#include "transport_plugins/libfabric/door.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace byteps::fabric {
namespace {

using transports::UniqueFd;

constexpr int kBacklog = 4096;
// Accepted in one call of Progress: the owner's thread has other work.
constexpr int kMostAtOnce = 64;
// How long the listener is left alone when there are no descriptors.
constexpr auto kPause = std::chrono::milliseconds(100);
// libfabric takes what is handed over as soon as its event queue is read.
constexpr auto kHandPatience = std::chrono::seconds(5);
constexpr auto kNever = Door::Clock::time_point::max();

std::string Why(const std::string& what) { return what + ": " + std::strerror(errno); }

// The number of a descriptor of this process of which `is` says yes; -1: there is none.
template <typename Is>
int FindDescriptor(const Is& is) {
  if (DIR* const folder = ::opendir("/proc/self/fd")) {
    int found = -1;
    while (const dirent* entry = ::readdir(folder)) {
      char* end = nullptr;
      const long number = std::strtol(entry->d_name, &end, 10);
      if (end == entry->d_name || *end != '\0' || !is(static_cast<int>(number))) continue;
      found = static_cast<int>(number);
      break;
    }
    ::closedir(folder);
    return found;
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  for (int number = 0; number < static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 16)); ++number) {
    if (is(number)) return number;
  }
  return -1;
}

// What getsockname or getpeername says of a descriptor; "" if it is no socket, or has none.
template <typename Ask>
std::string NameOf(int fd, const Ask& ask) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (ask(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0 || size > sizeof storage) return "";
  return {reinterpret_cast<const char*>(&storage), size};
}

bool IsListening(int fd) {
  int listening = 0;
  socklen_t size = sizeof listening;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening != 0;
}

// The host of an address, and the whole of it, for people.
void Print(const sockaddr_storage& storage, std::string* host, std::string* who) {
  char text[INET6_ADDRSTRLEN] = "?";
  uint16_t port = 0;
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    port = ntohs(in.sin_port);
  } else if (storage.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
    ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
    port = ntohs(in.sin6_port);
  }
  *host = text;
  *who = (storage.ss_family == AF_INET6 ? "[" + *host + "]:" : *host + ":") + std::to_string(port);
}

std::string RandomName() {
  uint64_t numbers[2] = {};
  if (::getrandom(numbers, sizeof numbers, 0) != static_cast<ssize_t>(sizeof numbers)) return "";
  char text[40];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(numbers[0]),
                static_cast<unsigned long long>(numbers[1]));
  return text;
}

bool SetAddress(const std::string& path, std::vector<char>* out) {
  sockaddr_un address{};
  if (path.size() >= sizeof address.sun_path) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const size_t size = offsetof(sockaddr_un, sun_path) + path.size() + (path[0] == '\0' ? 0 : 1);
  const auto* bytes = reinterpret_cast<const char*>(&address);
  out->assign(bytes, bytes + size);
  return true;
}

const sockaddr* AddressOf(const std::vector<char>& bytes) { return reinterpret_cast<const sockaddr*>(bytes.data()); }

}  // namespace

size_t Door::Caller::data_size() const {
  return static_cast<size_t>(std::to_integer<uint8_t>(bytes[2])) << 8 | std::to_integer<uint8_t>(bytes[3]);
}

std::unique_ptr<Door> Door::Replace(const std::string& address, std::string* reason) {
  const int number = FindDescriptor([&](int fd) {
    return !IsListening(fd) && NameOf(fd, ::getsockname) == address && NameOf(fd, ::getpeername) == "";
  });
  if (number < 0) {
    *reason = "libfabric's listening socket is not found";
    return nullptr;
  }
  std::unique_ptr<Door> door(new Door);
  door->listener_ = UniqueFd(::fcntl(number, F_DUPFD_CLOEXEC, 0));
  door->epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!door->listener_ || !door->epoll_) {
    *reason = Why("no descriptors");
    return nullptr;
  }
  if (!door->ListenInside(reason)) return nullptr;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    door->most_ = std::clamp<size_t>(static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20)) / 16, 4, kMost);
  }
  // From here on libfabric listens where no other process calls.
  if (::dup3(door->inside_.get(), number, O_CLOEXEC) < 0) {
    *reason = Why("dup3");
    return nullptr;
  }
  door->inside_.reset();
  return door;
}

// A socket file in a folder of ours, of which nothing but a descriptor is left: without that it cannot be called.
bool Door::ListenInside(std::string* reason) {
  inside_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!inside_) {
    *reason = Why("no Unix socket");
    return false;
  }
  const char* temporary = std::getenv("TMPDIR");
  for (const char* parent : {temporary, "/tmp", "/dev/shm", "/run", "."}) {
    if (parent == nullptr || *parent == '\0') continue;
    std::string folder = std::string(parent) + "/byteps-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) continue;
    const std::string path = folder + "/door";
    std::vector<char> bound;
    const bool there =
        SetAddress(path, &bound) && ::bind(inside_.get(), AddressOf(bound), static_cast<socklen_t>(bound.size())) == 0;
    if (there) spare_ = UniqueFd(::open(path.c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW));
    ::unlink(path.c_str());
    ::rmdir(folder.c_str());
    if (!there) continue;
    inner_path_ = "/proc/self/fd/" + std::to_string(spare_.get());
    if (spare_ && SetAddress(inner_path_, &inner_address_)) return true;
    *reason = "the socket of the inner side cannot be named";
    return false;
  }
  // Nowhere to put a file: a name that cannot be guessed, but which users of this host can read in /proc/net/unix.
  const std::string name = RandomName();
  if (name.empty() || !SetAddress(std::string(1, '\0') + "byteps-door-" + name, &inner_address_) ||
      ::bind(inside_.get(), AddressOf(inner_address_), static_cast<socklen_t>(inner_address_.size())) != 0) {
    *reason = Why("no Unix socket for the inner side");
    return false;
  }
  return true;
}

int Door::Listen() {
  const int seconds = static_cast<int>(kDeferred.count());
  ::setsockopt(listener_.get(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
  const int flags = ::fcntl(listener_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK) != 0) return errno;
  if (::listen(listener_.get(), kBacklog) != 0 || !Watch(listener_.get(), 0)) return errno;
  return 0;
}

bool Door::Watch(int fd, uint64_t number) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = number;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

Door::Clock::time_point Door::NextDeadline() const {
  Clock::time_point next = kNever;
  if (paused_) next = paused_until_;
  if (!callers_.empty()) next = std::min(next, callers_.begin()->second.since + kPatience);
  if (handed_) next = std::min(next, handed_->since + kHandPatience);
  if (!handed_ && !ready_.empty()) next = std::min(next, retry_);
  return next;
}

void Door::Progress(Clock::time_point now, const Check& check, const Refused& refused) {
  Expire(now, refused);
  if (paused_ && now >= paused_until_) paused_ = !Watch(listener_.get(), 0);
  epoll_event events[32];
  const int count = ::epoll_wait(epoll_.get(), events, std::size(events), 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == 0) {
      Accept(now, check, refused);
    } else {
      Read(events[i].data.u64, check, refused);
    }
  }
  HandOver(now);
}

void Door::Accept(Clock::time_point now, const Check& check, const Refused& refused) {
  for (int i = 0; i < kMostAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    UniqueFd socket(
        ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      // Those that wait here have more than those that cannot come in.
      if (!callers_.empty()) {
        MakeRoom(refused);
        continue;
      }
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
      paused_ = true;
      paused_until_ = now + kPause;
      return;
    }
    if (callers_.size() >= most_) MakeRoom(refused);
    const uint64_t number = next_++;
    Caller& caller = callers_[number];
    caller.socket = std::move(socket);
    caller.since = now;
    Print(from, &caller.host, &caller.who);
    if (!Watch(caller.socket.get(), number)) {
      callers_.erase(number);
      continue;
    }
    Read(number, check, refused);  // usually all of it is there
  }
}

void Door::Read(uint64_t number, const Check& check, const Refused& refused) {
  const auto found = callers_.find(number);
  if (found == callers_.end()) return;
  Caller& caller = found->second;
  const auto refuse = [&](const std::string& why) {
    refused(caller.who, why);
    callers_.erase(found);
  };
  while (!caller.complete()) {
    const size_t wanted = caller.got < kHead ? kHead : kHead + caller.data_size();
    if (wanted > caller.bytes.size()) return refuse("what came is no request of libfabric");
    const ssize_t got = ::recv(caller.socket.get(), caller.bytes.data() + caller.got, wanted - caller.got, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      return refuse(caller.got == 0 ? "it closed the connection without a word"
                                    : "it closed the connection in the middle of its request");
    }
    caller.got += static_cast<size_t>(got);
  }
  if (!check(caller.data())) return refuse("its request is not of this job");
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, caller.socket.get(), nullptr);
  ready_.push_back(std::move(caller));
  callers_.erase(found);
}

// The oldest of the host that holds most places: one host cannot keep others out.
void Door::MakeRoom(const Refused& refused) {
  std::map<std::string_view, size_t> places;
  size_t most = 0;
  for (const auto& [number, caller] : callers_) most = std::max(most, ++places[caller.host]);
  for (auto caller = callers_.begin(); caller != callers_.end(); ++caller) {
    if (places[caller->second.host] != most) continue;
    refused(caller->second.who, "it had not said its request when its place was needed for another");
    callers_.erase(caller);
    return;
  }
}

void Door::Expire(Clock::time_point now, const Refused& refused) {
  while (!callers_.empty() && now - callers_.begin()->second.since >= kPatience) {
    refused(callers_.begin()->second.who,
            "it had not said its request after " + std::to_string(kPatience.count()) + " s");
    callers_.erase(callers_.begin());
  }
  if (handed_ && now - handed_->since >= kHandPatience) {
    refused(handed_->caller.who, "libfabric did not take its request");
    handed_.reset();
  }
}

void Door::HandOver(Clock::time_point now) {
  while (!handed_ && !ready_.empty()) {
    Handed handed{std::move(ready_.front()), {}, "", now};
    if (!CallInside(&handed)) {
      const bool later = errno == EMFILE || errno == ENFILE || errno == EAGAIN;
      // It waits until there are descriptors, or until its side gives up.
      if (later) {
        std::swap(ready_.front(), handed.caller);
        retry_ = now + kPause;
        return;
      }
    } else {
      handed_ = std::move(handed);
    }
    ready_.pop_front();
  }
}

bool Door::CallInside(Handed* handed) {
  handed->inner = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!handed->inner) return false;
  const int fd = handed->inner.get();
  // A name of its own, which the kernel chooses, so that the other end of this connection can be told from others.
  const sa_family_t unnamed = AF_UNIX;
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&unnamed), sizeof unnamed) != 0) return false;
  handed->name = NameOf(fd, ::getsockname);
  if (::connect(fd, AddressOf(inner_address_), static_cast<socklen_t>(inner_address_.size())) != 0) return false;
  const Caller& caller = handed->caller;
  return ::send(fd, caller.bytes.data(), caller.got, MSG_NOSIGNAL) == static_cast<ssize_t>(caller.got);
}

bool Door::Admit(std::span<const std::byte> data) {
  if (!handed_) return false;
  const Handed handed = *std::exchange(handed_, std::nullopt);
  const std::span<const std::byte> said = handed.caller.data();
  if (data.size() < said.size() || !std::equal(said.begin(), said.end(), data.begin())) return false;
  const int number = FindDescriptor([&](int fd) { return NameOf(fd, ::getpeername) == handed.name; });
  return number >= 0 && ::dup3(handed.caller.socket.get(), number, O_CLOEXEC) == number;
}

}  // namespace byteps::fabric
