#include "server/process/coordinator_shell.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/control/control_codec.h"
#include "core/control/host_identity.h"

namespace byteps {
namespace {

// To take its last message.
constexpr Time kCloseTimeout = 5 * kSecond;
// After the job's end, for all of them.
constexpr Time kFinishTimeout = 2 * kSecond;
// ... and to close their side, for those whose host has everything: they may have been stopped, and bpslaunch has
// little patience.
constexpr Time kPartingTimeout = 300 * kMillisecond;
constexpr Time kPartingPause = 20 * kMillisecond;
constexpr Time kAcceptPause = 100 * kMillisecond;
constexpr Time kComplaintPause = 10 * kSecond;
constexpr int kAcceptsAtOnce = 64;
// After the end of a process, for what it has sent to arrive, and for its connection to end by itself.
constexpr Time kHeldTimeout = kSecond;

// A descriptor that becomes readable when the process ends; none if the kernel cannot do that, or there is no such
// process.
UniqueFd WatchProcess(int64_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0u)));
}

UniqueFd SpareDescriptor() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

std::string OpenFilesAdvice() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  return " (the coordinator may have " + std::to_string(limit.rlim_cur) +
         " open files, two for each member: raise its ulimit -n)";
}

// Has the other side's host acknowledged everything, the end included? Then it gets there without us.
bool Delivered(int socket) {
  int left = 0;
  return ::ioctl(socket, SIOCOUTQ, &left) == 0 && left == 0;
}

}  // namespace

struct CoordinatorShell::Link {
  explicit Link(UniqueFd fd) : socket(std::move(fd), kMaxHelloBytes) {}

  ControlSocket socket;
  bool registered = false;
  absl::Status broken;   // found by Send; told to the coordinator by the next Sweep
  bool closing = false;  // the coordinator knows it no more
  bool shut = false;     // everything has left; only the other side's end is awaited
  bool done = false;     // to be destroyed
  Time close_deadline = kNever;
  UniqueFd process;          // of a member on this host
  Time held_until = kNever;  // its process has ended: when the connection must have ended, too
};

CoordinatorShell::CoordinatorShell(UniqueFd listener, CoordinatorOptions options, const Logger* log)
    : listener_(std::move(listener)),
      spare_(SpareDescriptor()),
      log_(log),
      host_(HostIdentity()),
      now_(Now()),
      coordinator_(std::move(options), this, log, now_) {}

CoordinatorShell::~CoordinatorShell() = default;

void CoordinatorShell::Send(ConnectionId connection, const control::Envelope& envelope) {
  const auto found = links_.find(connection);
  if (found == links_.end() || found->second->closing || !found->second->broken.ok()) return;
  found->second->broken = found->second->socket.Send(envelope);
}

void CoordinatorShell::OnRegistered(ConnectionId connection, const control::Hello& hello) {
  Link* link = links_.at(connection).get();
  link->registered = true;
  link->socket.set_max_frame(kMaxFrameBytes);
  --strangers_;
  if (hello.pid() > 0 && SamePids(host_, hello.host())) link->process = WatchProcess(hello.pid());
}

void CoordinatorShell::Close(ConnectionId connection) {
  const auto found = links_.find(connection);
  if (found == links_.end() || found->second->closing) return;
  Link* link = found->second.get();
  link->closing = true;
  link->close_deadline = After(now_, kCloseTimeout);
  if (!link->registered) --strangers_;
}

Time CoordinatorShell::NextTimer() const {
  Time next = coordinator_.NextTimer();
  if (accept_again_ > now_) next = std::min(next, accept_again_);
  for (const auto& [id, link] : links_) next = std::min({next, link->close_deadline, link->held_until});
  return next;
}

absl::Status CoordinatorShell::Run(StopSignal* stop) {
  std::vector<struct pollfd> polled;
  std::vector<ConnectionId> ids;
  while (!coordinator_.over()) {
    polled.clear();
    ids.clear();
    polled.push_back({stop->fd(), POLLIN, 0});
    polled.push_back({linger_while_.get(), POLLIN, 0});
    polled.push_back({accept_again_ > now_ ? -1 : listener_.get(), POLLIN, 0});
    const size_t first = polled.size();
    for (const auto& [id, link] : links_) {
      const bool wants_write = link->socket.wants_write();
      polled.push_back({link->socket.fd(), static_cast<short>(POLLIN | (wants_write ? POLLOUT : 0)), 0});
      ids.push_back(id);
    }
    const size_t sockets = ids.size();
    for (const auto& [id, link] : links_) {
      if (!link->process) continue;
      polled.push_back({link->process.get(), POLLIN, 0});
      ids.push_back(id);
    }
    const int ready = ::poll(polled.data(), polled.size(), PollTimeout(now_, NextTimer()));
    if (ready < 0 && errno != EINTR) return absl::UnavailableError(std::string("poll: ") + std::strerror(errno));
    now_ = Now();
    // Deaths before newcomers: a member that is started again finds its place free.
    for (size_t i = 0; ready > 0 && i < ids.size(); ++i) {
      if (polled[first + i].revents == 0) continue;
      const auto found = links_.find(ids[i]);
      if (found == links_.end()) continue;
      Link* link = found->second.get();
      if (i < sockets) {
        Progress(ids[i], link);
      } else {
        link->process.Reset();
        link->held_until = After(now_, kHeldTimeout);
      }
    }
    for (const auto& [id, link] : links_) CheckHeld(id, link.get());
    Sweep();
    if (ready > 0 && polled[first - 1].revents != 0) Accept();
    coordinator_.Tick(now_);
    Sweep();
    if (const char* signal = stop->Take()) {
      coordinator_.Stop(now_, absl::UnavailableError(std::string("the coordinator was ended by ") + signal));
    }
    if (ready > 0 && polled[1].revents != 0) {
      linger_while_.Reset();
      coordinator_.DoNotLinger(now_);
    }
  }
  Finish();
  return coordinator_.outcome();
}

void CoordinatorShell::CheckHeld(ConnectionId id, Link* link) {
  if (now_ < link->held_until) return;
  link->held_until = kNever;
  Progress(id, link);
  if (link->closing || !link->broken.ok()) return;
  link->broken = absl::UnavailableError("its process has ended, though something that it forked holds its connection");
}

void CoordinatorShell::Progress(ConnectionId id, Link* link) {
  if (link->closing) return ProgressClosing(link);
  absl::Status status = link->broken.ok() ? link->socket.Flush() : link->broken;
  const absl::Status received = link->socket.Receive([&](const control::Envelope& envelope) {
    coordinator_.OnFrame(now_, id, envelope);
    return !link->closing;
  });
  if (status.ok()) status = received;
  if (link->closing) {
    // It has gone, too: the rest has no reader.
    if (!status.ok()) link->done = true;
    return;
  }
  if (link->broken.ok()) link->broken = status;
}

void CoordinatorShell::ProgressClosing(Link* link) {
  if (!link->broken.ok() || !link->socket.Flush().ok()) {
    link->done = true;
    return;
  }
  if (!link->socket.wants_write() && !link->shut) {
    link->shut = true;
    ::shutdown(link->socket.fd(), SHUT_WR);
  }
  char bytes[4096];
  for (int i = 0; i < 16; ++i) {
    const ssize_t got = ::recv(link->socket.fd(), bytes, sizeof(bytes), 0);
    if (got > 0) continue;
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) link->done = true;
    return;
  }
}

void CoordinatorShell::Sweep() {
  // Telling the coordinator of one death may break or close others: until nothing new is found.
  for (bool again = true; again;) {
    again = false;
    for (const auto& [id, link] : links_) {
      if (link->closing || link->broken.ok()) continue;
      const absl::Status why = link->broken;
      link->closing = true;
      link->done = true;
      if (!link->registered) --strangers_;
      // What was wrong with its messages, the other side cannot know by itself.
      if (why.code() != absl::StatusCode::kUnavailable) {
        control::Envelope envelope;
        envelope.mutable_failure()->set_code(static_cast<int32_t>(why.code()));
        envelope.mutable_failure()->set_error("the coordinator refuses this connection: " +
                                              std::string(why.message().data(), why.message().size()));
        link->done = !link->socket.Send(envelope).ok();
        link->broken = absl::OkStatus();
        link->close_deadline = After(now_, kCloseTimeout);
      }
      coordinator_.OnClosed(now_, id, why);
      again = true;
    }
  }
  for (auto each = links_.begin(); each != links_.end();) {
    Link* link = each->second.get();
    if (link->closing && !link->done) ProgressClosing(link);
    if (link->closing && now_ >= link->close_deadline) link->done = true;
    each = link->done ? links_.erase(each) : std::next(each);
  }
}

void CoordinatorShell::Accept() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) continue;
      const std::string why =
          std::string("no more connections can be taken: ") + std::strerror(errno) + OpenFilesAdvice();
      if (now_ >= complain_again_) {
        complain_again_ = After(now_, kComplaintPause);
        BPS_LOG(*log_, kWarning) << why;
      }
      coordinator_.OnNoRoom(now_, why);
      // Members alone fill it: there will be no room, and a process that waits for an answer had better know.
      if (strangers_ == 0 && RefuseNext(why)) continue;
      // The next attempt would fail at once, and again, and again.
      accept_again_ = After(now_, kAcceptPause);
      return DropOldestStranger("the coordinator is out of file descriptors");
    }
    if (!PrepareControlSocket(fd.get()).ok()) continue;
    if (strangers_ >= kMaxStrangers) DropOldestStranger("too many connections that do not say who they are");
    const std::string address = PeerAddress(fd.get());
    const ConnectionId id = ++last_link_;
    links_[id] = std::make_unique<Link>(std::move(fd));
    ++strangers_;
    BPS_VERBOSE(*log_, 1) << "connection " << id << " from " << address;
    coordinator_.OnOpened(now_, id, address);
  }
}

// In the place that is kept for it.
bool CoordinatorShell::RefuseNext(const std::string& why) {
  spare_.Reset();
  UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const bool accepted = static_cast<bool>(fd);
  if (accepted) {
    control::Envelope envelope;
    envelope.mutable_failure()->set_code(static_cast<int32_t>(absl::StatusCode::kResourceExhausted));
    envelope.mutable_failure()->set_error("the coordinator refuses this connection: " + why);
    // It has said nothing yet, so what it is told is not lost with the connection.
    ControlSocket(std::move(fd), kMaxHelloBytes).Send(envelope).IgnoreError();
  }
  spare_ = SpareDescriptor();
  return accepted;
}

void CoordinatorShell::DropOldestStranger(const char* why) {
  for (const auto& [id, link] : links_) {
    if (link->registered || link->closing) continue;
    link->closing = link->done = true;
    --strangers_;
    coordinator_.OnClosed(now_, id, absl::ResourceExhaustedError(why));
    return;
  }
}

void CoordinatorShell::Finish() {
  listener_.Reset();
  const Time deadline = After(Now(), kFinishTimeout), parting = After(Now(), kPartingTimeout);
  while (!links_.empty() && now_ < deadline) {
    std::vector<struct pollfd> polled;
    for (const auto& [id, link] : links_) {
      polled.push_back({link->socket.fd(), static_cast<short>(POLLIN | (link->socket.wants_write() ? POLLOUT : 0)), 0});
    }
    // Nothing wakes us when something was acknowledged.
    if (::poll(polled.data(), polled.size(), PollTimeout(now_, After(now_, kPartingPause))) < 0 && errno != EINTR)
      return;
    now_ = Now();
    for (const auto& [id, link] : links_) link->done |= now_ >= parting && link->shut && Delivered(link->socket.fd());
    Sweep();
  }
}

}  // namespace byteps
