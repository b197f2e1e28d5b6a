// How peers of the shared memory transport meet: calls, newcomers, greetings, what they say over their sockets.
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport_plugins/shm/patience.h"
#include "transport_plugins/shm/process_memory.h"
#include "transport_plugins/shm/transport.h"

namespace byteps::shm {
namespace {

// Callers that have greeted, and are not known yet.
constexpr size_t kMaxNewcomers = 4096;
// Callers that have not greeted: of this user or root, and of others, which may be strangers.
constexpr size_t kMaxOurs = 256, kMaxOthers = 16;
// Accepted at once: the owner's thread has other work.
constexpr int kMostAtOnce = 64;
bool OutOfDescriptors(int error) { return error == EMFILE || error == ENFILE; }

}  // namespace

// ---- Peers ----

Peer* Transport::Find(bps_peer number) const {
  const auto found = peers_.find(number);
  return found == peers_.end() ? nullptr : found->second.get();
}

std::shared_ptr<Remote> Transport::FindRemote(bps_peer number) {
  const std::lock_guard<std::mutex> lock(remotes_mutex_);
  const auto found = remotes_.find(number);
  return found == remotes_.end() ? nullptr : found->second;
}

int32_t Transport::Connect(const bps_connect_args& args, std::string* reason) {
  Address theirs;
  if (!Address::Parse(args.address, args.address_size, &theirs, reason)) return BPS_INVALID_ARGUMENT;
  if (args.peer == BPS_PEER_UNKNOWN || peers_.count(args.peer) != 0 || departed_.count(args.peer) != 0) {
    *reason = "peer number " + std::to_string(args.peer) + " is in use";
    return BPS_INVALID_ARGUMENT;
  }
  if (!address_.CheckReach(theirs, reason)) return BPS_UNAVAILABLE;
  std::shared_ptr<Channel> channel = Channel::Create(reason);
  if (channel == nullptr) return BPS_RESOURCE_EXHAUSTED;
  Peer* peer = peers_.emplace(args.peer, std::make_unique<Peer>(&context_, args, theirs, std::move(channel)))
                   .first->second.get();
  peer->progress = now_ = Clock::now();
  // It may be one of those that could not be let in: now it is known whom that concerns.
  if (!listening_) WatchListener();
  for (auto newcomer = newcomers_.begin(); newcomer != newcomers_.end(); ++newcomer) {
    if (!newcomer->second.hello || !Meet(&*newcomer->second.hello, &newcomer->second.socket)) continue;
    newcomers_.erase(newcomer);
    return BPS_OK;
  }
  if (address_.nonce < theirs.nonce) Call(peer);
  return BPS_OK;
}

Control Transport::Greeting(const Peer& peer) const {
  Control control;
  control.kind = Control::kHello;
  control.job_key = job_key_;
  control.from_nonce = address_.nonce;
  control.to_nonce = peer.address().nonce;
  control.from_number = peer.called();
  control.probe = reinterpret_cast<uint64_t>(&address_.nonce);
  return control;
}

void Transport::Call(Peer* peer) {
  int error = 0;
  UniqueFd socket = CallAt(peer->address().SocketName(), &error);
  if (error == EAGAIN || error == EINTR) {
    calling_.push_back(peer);
    return;
  }
  if (OutOfDescriptors(error)) return FailOutOfDescriptors(peer);
  if (error != 0) {
    return MarkFailed(peer, BPS_UNAVAILABLE,
                      std::string("cannot be reached (") + std::strerror(error) + "): its process has ended");
  }
  peer->socket = std::move(socket);
  peer->state = PeerState::kGreeting;
  sleeper_.Watch(peer->socket.get(), Sleeper::kSocket, peer->number());
  Control greeting = Greeting(*peer);
  if (SendControl(peer->socket.get(), greeting, {peer->outgoing().fd(), sleeper_.bell()}) != 0) {
    MarkFailed(peer, BPS_UNAVAILABLE, "closed its connection");
  }
}

// The other side would wait for us until its peer timeout. The descriptor that was kept for this lets us say that we
// have none. If another part of this process takes it meanwhile, the other side is left with its timeout.
void Transport::CallOff(Peer* peer) {
  Control word = Greeting(*peer);
  word.kind = Control::kNoRoom;
  if (peer->socket) {
    SendControl(peer->socket.get(), word, {});
    return;
  }
  spare_.reset();
  int error = 0;
  if (const UniqueFd socket = CallAt(peer->address().SocketName(), &error); error == 0) {
    SendControl(socket.get(), word, {});
  }
  KeepSpare();
}

bool Transport::KeepSpare() {
  spare_ = UniqueFd(::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0));
  return static_cast<bool>(spare_);
}

void Transport::Accept() {
  for (int i = 0; i < kMostAtOnce;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && errno == EINTR) continue;
    if (!socket && OutOfDescriptors(errno)) {
      if (Evict()) continue;
      return FailCallersOutOfDescriptors();
    }
    if (!socket) return;
    ++i;
    const uint32_t number = next_newcomer_++;
    Newcomer newcomer{std::move(socket), {}, now_, std::nullopt};
    newcomer.caller = CallerOf(newcomer.socket.get());
    if (!MakeRoom(IsOurs(newcomer))) continue;
    sleeper_.Watch(newcomer.socket.get(), Sleeper::kNewcomer, number);
    newcomers_.emplace(number, std::move(newcomer));
    ReadGreeting(number);
  }
}

// Those that have not greeted have more descriptors than those that cannot come in.
bool Transport::Evict() {
  const auto silent =
      std::find_if(newcomers_.begin(), newcomers_.end(), [](const auto& entry) { return !entry.second.hello; });
  if (silent == newcomers_.end()) return false;
  Refuse(silent->first, "it had not greeted when its descriptor was needed");
  return true;
}

// The names of sockets can be read by every user of the host.
bool Transport::IsOurs(const Newcomer& newcomer) const {
  return newcomer.caller.uid == ::geteuid() || newcomer.caller.uid == 0;
}

bool Transport::MakeRoom(bool ours) {
  size_t silent = 0, greeted = 0;
  auto oldest = newcomers_.end(), farewell = newcomers_.end();
  for (auto at = newcomers_.begin(); at != newcomers_.end(); ++at) {
    if (at->second.hello) {
      ++greeted;
      if (farewell == newcomers_.end() && at->second.hello->control.kind == Control::kNoRoom) farewell = at;
    } else if (IsOurs(at->second) == ours) {
      if (silent++ == 0) oldest = at;
    }
  }
  if (silent >= (ours ? kMaxOurs : kMaxOthers)) Refuse(oldest->first, "it had not greeted when its place was needed");
  if (greeted < kMaxNewcomers) return true;
  // A caller that has only left word, and is not to be known any more, makes room.
  if (farewell == newcomers_.end()) return false;
  newcomers_.erase(farewell);
  return true;
}

void Transport::Refuse(uint32_t number, const std::string& why) {
  const auto newcomer = newcomers_.find(number);
  const Caller& caller = newcomer->second.caller;
  refusals_.Say(context_.host, now_,
                "refused a connection of process " + std::to_string(caller.pid) + " of user " +
                    std::to_string(caller.uid) + " that is not of this job: " + why);
  newcomers_.erase(newcomer);
}

void Transport::ExpireNewcomers() {
  for (auto at = newcomers_.begin(); at != newcomers_.end();) {
    const auto newcomer = at++;
    if (now_ - newcomer->second.since < kGreetingPatience) return;
    if (!newcomer->second.hello) Refuse(newcomer->first, "it had not greeted after 5 s");
  }
}

// Only the first packet: what else there is belongs to the peer that this will be.
void Transport::ReadGreeting(uint32_t number) {
  const auto newcomer = newcomers_.find(number);
  if (newcomer == newcomers_.end() || newcomer->second.hello) return;
  Packet packet;
  const int error = ReceiveControl(newcomer->second.socket.get(), &packet);
  if (error == EAGAIN) return;
  const Control& hello = packet.control;
  const bool greets = hello.kind == Control::kHello && (packet.descriptors.size() == 2 || packet.cut);
  const bool no_room = hello.kind == Control::kNoRoom;
  if (error != 0 || !(greets || no_room) || hello.job_key != job_key_ || hello.to_nonce != address_.nonce) {
    return Refuse(number, error != 0 ? "it closed the connection, or sent what is no greeting"
                                     : "its greeting is of another job, or for another endpoint");
  }
  if (Meet(&packet, &newcomer->second.socket)) {
    newcomers_.erase(newcomer);
    return;
  }
  if (no_room) {  // its word is kept until it is known whom that concerns, and its connection ends
    sleeper_.Forget(newcomer->second.socket.get());
    newcomer->second.socket.reset();
  }
  newcomer->second.hello = std::move(packet);
}

bool Transport::Meet(Packet* hello, UniqueFd* socket) {
  Peer* peer = Find(hello->control.from_number);
  if (peer == nullptr || peer->address().nonce != hello->control.from_nonce) return false;
  if (hello->control.kind == Control::kNoRoom) {
    sleeper_.Forget(socket->get());
    OnControl(peer, hello);
    return true;
  }
  if (peer->state != PeerState::kCalling || address_.nonce < peer->address().nonce) return false;
  sleeper_.Forget(socket->get());
  peer->socket = std::move(*socket);
  sleeper_.Watch(peer->socket.get(), Sleeper::kSocket, peer->number());
  if (SendControl(peer->socket.get(), Greeting(*peer), {peer->outgoing().fd(), sleeper_.bell()}) != 0) {
    MarkFailed(peer, BPS_UNAVAILABLE, "closed its connection");
    return true;
  }
  Establish(peer, hello);
  if (peer->connected()) ReadSocket(peer);
  return true;
}

void Transport::Establish(Peer* peer, Packet* hello) {
  if (hello->cut) return FailOutOfDescriptors(peer);
  if (hello->descriptors.size() != 2) return MarkFailed(peer, BPS_UNAVAILABLE, "greets without memory");
  std::string reason;
  std::shared_ptr<Channel> incoming = Channel::Adopt(std::move(hello->descriptors[0]), &reason);
  if (incoming == nullptr) return MarkFailed(peer, BPS_UNAVAILABLE, "cannot be used: " + reason);
  const Caller caller = CallerOf(peer->socket.get());
  const pid_t pid = caller.pid;
  // Tells of the end of the process even if a child that it has forked holds the socket open.
  bool ended = false;
  UniqueFd process = OpenCaller(peer->socket.get(), caller, &ended);
  if (ended) return MarkFailed(peer, BPS_UNAVAILABLE, "has ended");
  if (process && pid != ::getpid()) sleeper_.Watch(process.get(), Sleeper::kProcess, peer->number(), EPOLLIN | EPOLLET);
  auto remote = std::make_shared<Remote>(pid, std::move(process), incoming);
  {
    const std::lock_guard<std::mutex> lock(remotes_mutex_);
    remotes_[peer->number()] = remote;
  }
  peer->Connected(std::move(hello->descriptors[1]), std::move(incoming), std::move(remote));
  peer->progress = now_;
  active_.push_back(peer);
  ProbeMemory(peer, hello->control.probe);
  context_.regions.ForEach([&](Region* region) {
    if (region->memory && region->grants.count(peer->number()) != 0) Show(region, peer);
  });
}

// Whether the peer's memory can be read is tried, not guessed from namespaces and capabilities.
void Transport::ProbeMemory(Peer* peer, uint64_t address) {
  if (!process_memory_) return;
  uint64_t nonce = 0;
  const pid_t pid = peer->remote()->pid();
  int error = pid == 0 ? EPERM : ReadProcess(pid, address, &nonce, sizeof nonce);
  if (error == 0 && nonce != peer->address().nonce) error = EPERM;
  // Where it has ended, the number was perhaps another process's.
  if (error == 0 && peer->remote()->Ended()) return MarkFailed(peer, BPS_UNAVAILABLE, "has ended");
  if (error == 0) return peer->remote()->SetReadable(true);
  peer->OnRefused(error);
  Control reach;
  reach.kind = Control::kReach;
  reach.error = error;
  Say(peer, reach);
}

void Transport::ReadSocket(Peer* peer) {
  while (peer->failure_code == BPS_OK && peer->state != PeerState::kDown && peer->socket) {
    Packet packet;
    const int error = ReceiveControl(peer->socket.get(), &packet);
    if (error == EAGAIN) return;
    if (peer->state == PeerState::kFencing) {
      if (error != 0) return EndFence(peer);
      continue;
    }
    if (error != 0) return MarkFailed(peer, BPS_UNAVAILABLE, "closed its connection");
    OnControl(peer, &packet);
  }
}

void Transport::OnControl(Peer* peer, Packet* packet) {
  const Control& control = packet->control;
  switch (control.kind) {
    case Control::kHello:
      if (peer->state != PeerState::kGreeting || control.from_nonce != peer->address().nonce) break;
      return Establish(peer, packet);
    case Control::kReach: {
      // Where Yama is in the way, those that were started with us may be let in, only then. Several may have been
      // refused before the first of them was heard: each tries again, once.
      if (control.error != EPERM || std::exchange(peer->tries_again, true)) return;
      if (!permitted_) permitted_ = PermitDescendantsOf(context_.host.LauncherPid());
      if (!*permitted_) return;
      Control probe;
      probe.kind = Control::kProbe;
      probe.probe = reinterpret_cast<uint64_t>(&address_.nonce);
      return Say(peer, probe);
    }
    case Control::kProbe:
      if (!peer->connected()) break;
      return ProbeMemory(peer, control.probe);
    case Control::kRegion: {
      if (!peer->connected()) break;
      std::string reason = "its descriptor is missing: that process may have no more (ulimit -n)";
      std::optional<SharedMemory> memory;
      if (packet->cut) reason = "this process has no descriptors left (ulimit -n)";
      if (packet->descriptors.size() == 1) {
        memory = SharedMemory::Adopt(std::move(packet->descriptors[0]), control.size, &reason);
      }
      if (memory) return peer->remote()->AddRegion(control.region, *std::move(memory));
      if (!std::exchange(peer->unmapped_told, true)) {
        BPS_SHM_LOG(context_.host, WARNING,
                    "memory of peer " + std::to_string(peer->number()) + " cannot be mapped: " + reason +
                        "; it is copied as ordinary memory is (said once for this peer)");
      }
      return peer->remote()->AddUnmapped(control.region);
    }
    case Control::kGone:
      if (!peer->connected()) break;
      return peer->remote()->RemoveRegion(control.region);
    case Control::kNoRoom:
      return MarkFailed(peer, BPS_UNAVAILABLE,
                        "cannot be connected to: its process has no descriptors left (ulimit -n)");
    default:
      break;
  }
  MarkFailed(peer, BPS_UNAVAILABLE, "says what is not of this transport");
}

void Transport::Say(Peer* peer, const Control& control, int descriptor) {
  peer->unsent.emplace_back(control, descriptor < 0 ? -1 : ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  FlushUnsent(peer);
}

void Transport::FlushUnsent(Peer* peer) {
  while (!peer->unsent.empty()) {
    const auto& [control, descriptor] = peer->unsent.front();
    const int error = descriptor < 0 ? SendControl(peer->socket.get(), control, {})
                                     : SendControl(peer->socket.get(), control, {descriptor});
    if (error == EAGAIN) return;
    if (descriptor >= 0) ::close(descriptor);
    peer->unsent.pop_front();
    if (error != 0) return;  // its end is seen on the socket
  }
}

void Transport::Show(Region* region, Peer* peer) {
  Grant& grant = region->grants[peer->number()];
  if (!peer->connected() || std::exchange(grant.shown, true)) return;
  Control control;
  control.kind = Control::kRegion;
  control.region = region->number;
  control.size = region->memory->size();
  Say(peer, control, region->memory->fd());
}

}  // namespace byteps::shm
