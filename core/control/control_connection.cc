#include "core/control/control_connection.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/auth.h"
#include "core/base/open_files.h"
#include "core/base/time_text.h"

namespace byteps {

namespace {

// Binds to `address` if it is of the family of the socket.
int BindTo(int fd, int family, const std::string& address) {
  struct addrinfo hints = {};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  struct addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) return 0;
  const int error = ::bind(fd, found->ai_addr, found->ai_addrlen) != 0 ? errno : 0;
  ::freeaddrinfo(found);
  return error;
}

// Trying a port of this host's own range for outgoing connections, where no process listens, may connect a socket to
// itself: the kernel has chosen the very port it calls.
bool IsConnectedToItself(int fd) {
  struct sockaddr_storage own = {}, peer = {};
  socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
  return ::getsockname(fd, reinterpret_cast<struct sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(fd, reinterpret_cast<struct sockaddr*>(&peer), &peer_size) == 0 && own_size == peer_size &&
         std::memcmp(&own, &peer, own_size) == 0;
}

}  // namespace

ControlConnection::ControlConnection(ControlConnectionOptions options, ControlConnectionHandler* handler, Time now)
    : options_(std::move(options)), handler_(handler), next_attempt_(now), pause_(options_.first_pause) {}

ControlConnection::~ControlConnection() = default;

int ControlConnection::fd() const {
  if (lookup_ != nullptr) return lookup_->fd();
  return socket_ ? socket_->fd() : attempt_.get();
}

short ControlConnection::events() const {
  if (lookup_ != nullptr) return POLLIN;
  if (socket_) return static_cast<short>(POLLIN | (socket_->wants_write() ? POLLOUT : 0));
  return attempt_ ? POLLOUT : 0;
}

Time ControlConnection::NextTimer() const {
  if (closed_) return kNever;
  if (!broken_.ok()) return 0;
  if (socket_) return kNever;
  return attempt_ || lookup_ != nullptr ? attempt_deadline_ : next_attempt_;
}

void ControlConnection::Drive(Time now) {
  driving_ = true;
  if (!closed_) Progress(now);
  driving_ = false;
  // The handler may have closed it in the middle of its own callback.
  if (closed_) Close();
}

void ControlConnection::Progress(Time now) {
  if (!socket_ && !attempt_ && lookup_ == nullptr && now >= next_attempt_) Attempt(now);
  if (lookup_ != nullptr) CheckLookup(now);
  if (attempt_) CheckAttempt(now);
  if (!socket_ || closed_) return;
  absl::Status status = broken_;
  if (status.ok()) status = socket_->Flush();
  // Also when writing failed: what the other side said last is worth more than "broken pipe".
  const absl::Status received = socket_->Receive([this](const control::Envelope& envelope) {
    handler_->OnFrame(envelope);
    return !closed_;
  });
  if (closed_) return;
  if (status.ok()) status = received;
  if (status.ok()) status = broken_;
  if (!status.ok()) Lost(now, status);
}

void ControlConnection::Attempt(Time now) {
  failures_.clear();
  addresses_.clear();
  lookup_ = std::make_unique<NameLookup>(options_.host, options_.port);
  attempt_deadline_ = After(now, options_.attempt_timeout);
}

void ControlConnection::CheckLookup(Time now) {
  const std::string what = "DMLC_PS_ROOT_URI (the coordinator's host): ";
  if (!lookup_->done()) {
    if (now < attempt_deadline_) return;
    attempt_deadline_ = kNever;
    handler_->OnClosed(absl::UnavailableError(what + "\"" + options_.host +
                                              "\": the resolver has not answered within " +
                                              SecondsText(options_.attempt_timeout)));
    if (!handler_->WantsConnection()) closed_ = true;
    return;
  }
  if (!lookup_->status().ok()) failures_ = what + std::string(lookup_->status().message());
  addresses_.assign(lookup_->addresses().rbegin(), lookup_->addresses().rend());
  known_addresses_.clear();
  for (const SocketAddress& address : lookup_->addresses()) known_addresses_.push_back(address.text);
  lookup_.reset();
  NextAddress(now);
}

void ControlConnection::NextAddress(Time now) {
  while (!addresses_.empty()) {
    const SocketAddress address = std::move(addresses_.back());
    addresses_.pop_back();
    attempt_address_ = HostPort(address.text, options_.port);
    attempt_.Reset(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int error = attempt_ ? 0 : errno;
    if (error == 0 && !options_.local_address.empty()) {
      error = BindTo(attempt_.get(), address.family(), options_.local_address);
    }
    if (error == 0 && ::connect(attempt_.get(), address.get(), address.size) != 0) {
      error = errno == EINPROGRESS || errno == EINTR ? 0 : errno;
    }
    if (error == 0) {
      attempt_deadline_ = After(now, options_.attempt_timeout);
      return;
    }
    AttemptFailed(std::strerror(error) + OpenFilesAdvice(error));
    if (error != EMFILE) continue;
    addresses_.clear();
    handler_->OnClosed(absl::ResourceExhaustedError(failures_));
    if (!handler_->WantsConnection()) closed_ = true;
    return Pause(now);
  }
  if (attempt_) return;
  Pause(now);
  handler_->OnClosed(absl::UnavailableError(failures_));
  if (!handler_->WantsConnection()) closed_ = true;
}

void ControlConnection::AttemptFailed(const std::string& why) {
  attempt_.Reset();
  if (!failures_.empty()) failures_ += "; ";
  failures_ += attempt_address_ + ": " + why;
}

void ControlConnection::CheckAttempt(Time now) {
  struct pollfd ready = {attempt_.get(), POLLOUT, 0};
  const int count = ::poll(&ready, 1, 0);
  if (count <= 0) {
    if (now < attempt_deadline_) return;
    AttemptFailed("no answer");
    NextAddress(now);
    return;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(attempt_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) {
    AttemptFailed(std::strerror(error));
    NextAddress(now);
    return;
  }
  if (IsConnectedToItself(attempt_.get())) {
    AttemptFailed(std::strerror(ECONNREFUSED));
    NextAddress(now);
    return;
  }
  Established();
}

void ControlConnection::Established() {
  broken_ = PrepareControlSocket(attempt_.get());
  socket_.emplace(std::move(attempt_), kMaxFrameBytes);
  addresses_.clear();
  pause_ = options_.first_pause;
  handler_->OnConnected();
}

void ControlConnection::Lost(Time now, const absl::Status& why) {
  socket_.reset();
  broken_ = absl::OkStatus();
  Pause(now);
  handler_->OnClosed(why);
  if (!handler_->WantsConnection()) closed_ = true;
}

void ControlConnection::Pause(Time now) {
  // Between half of the pause and all of it.
  const Time half = pause_ / 2;
  next_attempt_ = now + half + static_cast<Time>(RandomNumber() % static_cast<uint64_t>(half + 1));
  pause_ = std::min(2 * pause_, options_.longest_pause);
}

void ControlConnection::Send(const control::Envelope& envelope) {
  if (!socket_ || !broken_.ok()) return;
  broken_ = socket_->Send(envelope);
}

void ControlConnection::Close() {
  closed_ = true;
  if (driving_) return;
  lookup_.reset();
  attempt_.Reset();
  socket_.reset();
}

}  // namespace byteps
