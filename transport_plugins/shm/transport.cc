#include "transport_plugins/shm/transport.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport_plugins/shm/process_memory.h"

namespace byteps::shm {
namespace {

constexpr char kDetached[] =
    ", and this process may not kill it: it writes into pages that are nobody's any more; their bytes were copied";
constexpr char kUnkillable[] =
    ", and this process may not kill it: until it ends it may write there. End it by hand, if it is stopped";

// Callers that have greeted, and are not known yet.
constexpr size_t kMaxNewcomers = 4096;
// Callers that have not greeted: of this user or root, and of others, which may be anybody.
constexpr size_t kMaxOurs = 256, kMaxOthers = 16;
// A caller greets at once.
constexpr auto kGreetingPatience = std::chrono::seconds(5);
// Accepted at once: the owner's thread has other work.
constexpr int kMostAtOnce = 64;
// Between two looks at the sockets while nobody sleeps: that is how fast a death is seen then.
constexpr auto kSocketInterval = std::chrono::milliseconds(1);
constexpr auto kTimeCheckInterval = std::chrono::milliseconds(100);
// A listener that has no time, a socket that takes nothing: both are rare.
constexpr auto kRetryInterval = std::chrono::milliseconds(2);
// How long a peer may take to end a copy into memory that is taken back, before its process is killed: it is one block,
// so only a stopped process takes longer than milliseconds.
constexpr auto kCopyPatience = std::chrono::seconds(2);
// How long a peer that was disconnected may keep pointers into our memory (at most: BYTEPS_PEER_TIMEOUT, if shorter).
constexpr std::chrono::nanoseconds kFencePatience = std::chrono::seconds(10);
constexpr auto kKillPatience = std::chrono::seconds(5);
constexpr uint64_t kMaxTransfer = uint64_t{1} << 40;
constexpr auto kNever = Clock::time_point::max();

bool ParseKey(const bps_remote& remote, size_t size, Key* key, int32_t* code) {
  *code = BPS_INVALID_ARGUMENT;
  if (remote.key_size != sizeof *key || size > kMaxTransfer) return false;
  std::memcpy(key, remote.key, sizeof *key);
  *code = BPS_OUT_OF_RANGE;
  return remote.offset <= key->size && size <= key->size - remote.offset;
}

bool OutOfDescriptors(int error) { return error == EMFILE || error == ENFILE; }

}  // namespace

// ---- Opening ----

bool Transport::Probe(std::string* reason) {
  // What everything else rests on: shared memory, and a Unix socket.
  if (!SharedMemory::Create("byteps-probe", 4096, reason)) return false;
  const Address address = Address::OfThisProcess();
  return address.CheckPlace(reason) && static_cast<bool>(ListenAt(address.SocketName(), reason));
}

Transport::Transport(const Host& host, uint64_t job_key)
    : context_(host),
      job_key_(job_key),
      address_(Address::OfThisProcess()),
      place_("shm;" + address_.Place()),
      peer_timeout_(host.PeerTimeout()) {}

std::unique_ptr<Transport> Transport::Open(const Host& host, const bps_transport_open_args& args, std::string* reason) {
  std::unique_ptr<Transport> transport(new Transport(host, args.job_key));
  transport->listener_ = ListenAt(transport->address_.SocketName(), reason);
  if (!transport->listener_ || !transport->sleeper_.Open(reason)) return nullptr;
  if (!transport->KeepSpare()) {
    *reason = std::string("no descriptor to spare: ") + std::strerror(errno);
    return nullptr;
  }
  if (!transport->WatchListener()) {
    *reason = std::string("cannot watch the socket: ") + std::strerror(errno);
    return nullptr;
  }
  // A filter of system calls shows itself on our own memory already.
  uint64_t copy = 0;
  transport->process_memory_ = host.ProcessMemory();
  if (transport->process_memory_) {
    const int error =
        ReadProcess(::getpid(), reinterpret_cast<uint64_t>(&transport->address_.nonce), &copy, sizeof copy);
    if (error != 0) {
      transport->process_memory_ = false;
      transport->context_.refusal_logged = true;
      BPS_SHM_LOG(host, INFO,
                  std::string("process_vm_readv is not allowed here (") + std::strerror(error) +
                      "): payloads go through shared memory, which costs a copy more");
    }
  }
  return transport;
}

Transport::~Transport() {
  for (auto& [number, peer] : peers_) TakeDown(peer.get(), BPS_CANCELLED);
}

void Transport::Caps(bps_transport_caps* out) const {
  bps_transport_caps caps{};
  caps.struct_size = out->struct_size;
  caps.flags = BPS_TRANSPORT_READ | BPS_TRANSPORT_MAP_REMOTE | BPS_TRANSPORT_COPY | BPS_TRANSPORT_LOCAL_ANY |
               BPS_TRANSPORT_CHEAP_REG | BPS_TRANSPORT_REG_ADDRESSES | BPS_TRANSPORT_WAIT_FD;
  caps.immediate_bits = 32;
  caps.max_message = kMaxMessage;
  caps.receive_pool = kSlots;
  caps.tx_depth = kOperations;
  caps.key_size = sizeof(Key);
  caps.max_transfer = kMaxTransfer;
  caps.alignment = 1;
  caps.provider = place_.c_str();
  std::memcpy(out, &caps, std::min(out->struct_size, sizeof caps));
}

void Transport::WriteAddress(void* out, size_t* size) const {
  std::memcpy(out, &address_, sizeof address_);
  *size = sizeof address_;
}

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
  // It may be one of those who could not be let in: now it is known whom that concerns.
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
  if (OutOfDescriptors(error)) return Starve(peer);
  if (error != 0) {
    return Doom(peer, BPS_UNAVAILABLE,
                std::string("cannot be reached (") + std::strerror(error) + "): its process has ended");
  }
  peer->socket = std::move(socket);
  peer->state = PeerState::kGreeting;
  sleeper_.Watch(peer->socket.get(), Sleeper::kSocket, peer->number());
  Control greeting = Greeting(*peer);
  if (SendControl(peer->socket.get(), greeting, {peer->outgoing().fd(), sleeper_.bell()}) != 0) {
    Doom(peer, BPS_UNAVAILABLE, "closed its connection");
  }
}

// The other side would wait for us until its peer timeout. The descriptor that was kept for this lets us say that we have
// none. If somebody else of this process takes it meanwhile, the other side is left with its timeout.
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
      return StarveCallers();
    }
    if (!socket) return;
    ++i;
    const uint32_t number = next_newcomer_++;
    Newcomer newcomer{std::move(socket), {}, now_, std::nullopt};
    newcomer.caller = CallerOf(newcomer.socket.get());
    if (!MakeRoom(IsOurs(newcomer))) continue;
    sleeper_.Watch(newcomer.socket.get(), Sleeper::kNewcomer, number);
    newcomers_.emplace(number, std::move(newcomer));
    Hear(number);
  }
}

// Those who have not greeted have more descriptors than those who cannot come in.
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
void Transport::Hear(uint32_t number) {
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
    Doom(peer, BPS_UNAVAILABLE, "closed its connection");
    return true;
  }
  Establish(peer, hello);
  if (peer->connected()) ReadSocket(peer);
  return true;
}

void Transport::Establish(Peer* peer, Packet* hello) {
  if (hello->cut) return Starve(peer);
  if (hello->descriptors.size() != 2) return Doom(peer, BPS_UNAVAILABLE, "greets without memory");
  std::string reason;
  std::shared_ptr<Channel> incoming = Channel::Adopt(std::move(hello->descriptors[0]), &reason);
  if (incoming == nullptr) return Doom(peer, BPS_UNAVAILABLE, "cannot be used: " + reason);
  const Caller caller = CallerOf(peer->socket.get());
  const pid_t pid = caller.pid;
  // Tells of the end of the process even if a child that it has forked holds the socket open.
  bool ended = false;
  UniqueFd process = OpenCaller(peer->socket.get(), caller, &ended);
  if (ended) return Doom(peer, BPS_UNAVAILABLE, "has ended");
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
  if (error == 0 && peer->remote()->Ended()) return Doom(peer, BPS_UNAVAILABLE, "has ended");
  if (error == 0) return peer->remote()->SetReadable(true);
  peer->OnRefused(error);
  Control reach;
  reach.kind = Control::kReach;
  reach.error = error;
  Say(peer, reach);
}

void Transport::ReadSocket(Peer* peer) {
  while (peer->doom == BPS_OK && peer->state != PeerState::kDown && peer->socket) {
    Packet packet;
    const int error = ReceiveControl(peer->socket.get(), &packet);
    if (error == EAGAIN) return;
    if (peer->state == PeerState::kFencing) {
      if (error != 0) return EndFence(peer);
      continue;
    }
    if (error != 0) return Doom(peer, BPS_UNAVAILABLE, "closed its connection");
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
      // Where Yama is in the way, those that were started with us may be let in, only then. Several may have been refused
      // before the first of them was heard: each tries again, once.
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
      return Doom(peer, BPS_UNAVAILABLE, "cannot be connected to: its process has no descriptors left (ulimit -n)");
    default:
      break;
  }
  Doom(peer, BPS_UNAVAILABLE, "says what is not of this transport");
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

// ---- The end of peers ----

void Transport::Doom(Peer* peer, int32_t code, const std::string& cause) {
  if (peer->doom != BPS_OK || peer->state == PeerState::kDown || peer->state == PeerState::kFencing) return;
  peer->doom = code;
  peer->cause = cause;
  doomed_.push_back(peer);
}

void Transport::Starve(Peer* peer) {
  CallOff(peer);
  Doom(peer, BPS_RESOURCE_EXHAUSTED,
       "cannot be connected to: this process has no descriptors left (ulimit -n; each connection needs five)");
}

bool Transport::WatchListener() { return listening_ = sleeper_.Watch(listener_.get(), Sleeper::kListener, 0, EPOLLIN); }

// Nobody can be let in, so those who are to call need not be waited for. Who calls before we know of it stays at the
// door until then: the listener would wake us for ever.
void Transport::StarveCallers() {
  sleeper_.Forget(listener_.get());
  listening_ = false;
  for (const auto& [number, peer] : peers_) {
    if (peer->state == PeerState::kCalling && peer->address().nonce < address_.nonce) Starve(peer.get());
  }
}

void Transport::BuryTheDoomed() {
  while (!doomed_.empty()) {
    Peer* peer = doomed_.back();
    doomed_.pop_back();
    const int32_t code = peer->doom;
    const std::string what = peer->Who() + " " + peer->cause;
    if (code == BPS_RESOURCE_EXHAUSTED) {
      BPS_SHM_LOG(context_.host, WARNING, what);
    } else {
      BPS_SHM_LOG(context_.host, INFO, what);
    }
    TakeDown(peer, code);
    bps_event& event = context_.events.Add(BPS_EVENT_PEER_DOWN, peer->number(), code);
    reasons_.Attach(&event, peer->cause);  // the peer may be gone when it is read
  }
}

void Transport::TakeDown(Peer* peer, int32_t code) {
  if (peer->state == PeerState::kDown) return;
  peer->state = PeerState::kDown;
  peer->EndAll(code);
  // shutdown() as well: a forked child may hold the socket open.
  if (peer->socket) ::shutdown(peer->socket.get(), SHUT_RDWR);
  sleeper_.Forget(peer->socket.get());
  if (peer->remote() != nullptr) sleeper_.Forget(peer->remote()->process());
  peer->socket.reset();
  for (const auto& [control, descriptor] : peer->unsent) {
    if (descriptor >= 0) ::close(descriptor);
  }
  peer->unsent.clear();
  std::erase(active_, peer);
  std::erase(calling_, peer);
}

// Could the peer still write memory of ours without our doing?
bool Transport::StillUses(const Peer& peer) const {
  if (peer.remote() == nullptr || peer.remote()->Ended()) return false;
  // Nothing more can be known of a process that is not visible and has closed its connection.
  if (peer.remote()->process() < 0 && peer.state == PeerState::kDown) return false;
  return peer.UsesLedger() || peer.outgoing().memory().header.mapped.load() != 0;
}

int32_t Transport::Disconnect(bps_peer number) {
  Peer* peer = Find(number);
  if (peer == nullptr || peer->state == PeerState::kFencing) return BPS_NOT_FOUND;
  const bool was_down = peer->state == PeerState::kDown;
  std::erase(doomed_, peer);
  peer->outgoing().memory().header.closed.store(1);
  peer->RevokeAll();
  context_.regions.ForEach([&](Region* region) {
    const auto grant = region->grants.find(number);
    if (grant == region->grants.end()) return;
    if (region->memory && region->memory->lent() && peer->Users(grant->second) != 0) {
      peer->writing.push_back(region->number);
    }
    region->grants.erase(grant);
  });
  {
    const std::lock_guard<std::mutex> lock(remotes_mutex_);
    remotes_.erase(number);
  }
  if (was_down || !peer->connected() || !StillUses(*peer)) {
    // (Of a peer that was lost, the connection is gone, and with it the end of its copies, or its process.)
    TakeDown(peer, BPS_CANCELLED);
    if (!was_down || !StillUses(*peer)) {
      EndFence(peer);
      return BPS_OK;
    }
  } else {
    peer->EndAll(BPS_CANCELLED);
    std::erase(active_, peer);
    ::shutdown(peer->socket.get(), SHUT_WR);
  }
  peer->state = PeerState::kFencing;
  peer->fence_deadline =
      Clock::now() + (peer_timeout_.count() == 0 ? kFencePatience : std::min(kFencePatience, peer_timeout_));
  fencing_.push_back(peer);
  return BPS_OK;
}

void Transport::CheckFences() {
  for (size_t i = 0; i < fencing_.size();) {
    Peer* peer = fencing_[i];
    const size_t before = fencing_.size();
    if (!StillUses(*peer)) {
      EndFence(peer);
    } else if (now_ >= peer->fence_deadline) {
      const std::string who = peer->Who() + " was disconnected and holds memory of ours";
      if (!std::exchange(peer->killed, true) && peer->remote()->Kill()) {
        BPS_SHM_LOG(context_.host, WARNING, who + ": it is killed, so that it cannot write there any more");
        peer->fence_deadline = now_ + kKillPatience;
      } else {
        DetachFrom(*peer, who);
        EndFence(peer);
      }
    }
    if (fencing_.size() == before) ++i;
  }
}

// It may not be killed, but memory that is not the transport's own can be taken out of its reach.
void Transport::DetachFrom(const Peer& peer, const std::string& who) {
  bool safe = peer.outgoing().memory().header.mapped.load() == 0;
  for (const uint64_t number : peer.writing) {
    Region* region = context_.regions.Find(number);
    // Given back meanwhile, or out of reach already, since another peer was writing it, too.
    if (region == nullptr || !region->memory) continue;
    if (region->memory->Detach()) {
      Withdraw(region);
    } else {
      safe = false;
    }
  }
  if (safe && !peer.writing.empty()) {
    BPS_SHM_LOG(context_.host, WARNING, who + kDetached);
  } else {
    BPS_SHM_LOG(context_.host, ERROR, who + kUnkillable);
  }
}

// Who goes on writing into the file writes for nobody: better that he is lost than what he has sent.
void Transport::Withdraw(Region* region) {
  for (const auto& [number, grant] : region->grants) {
    Peer* other = Find(number);
    if (grant.shown && other != nullptr) {
      Doom(other, BPS_UNAVAILABLE,
           "shares memory with a process that does not move and had to be taken out of its reach");
    }
  }
  context_.regions.MakeOrdinary(region);
}

void Transport::EndFence(Peer* peer) {
  std::erase(fencing_, peer);
  if (peer->state == PeerState::kFencing) peer->state = PeerState::kCalling;  // so that TakeDown has something to do
  TakeDown(peer, BPS_CANCELLED);
  const bps_peer number = peer->number();
  context_.events.Add(BPS_EVENT_DISCONNECTED, number);
  auto node = peers_.extract(number);
  if (peer->leases() != 0) departed_.insert(std::move(node));
}

// ---- Memory ----

int32_t Transport::Reg(void* base, size_t size, Region** region, std::string* reason) {
  if (base == nullptr || size == 0) {
    *reason = "a region needs an address and a size";
    return BPS_INVALID_ARGUMENT;
  }
  *region = context_.regions.Add(static_cast<std::byte*>(base), size, std::nullopt);
  return BPS_OK;
}

int32_t Transport::Allocate(size_t size, Region** region, void** base, std::string* reason) {
  if (size == 0) {
    *reason = "a region needs a size";
    return BPS_INVALID_ARGUMENT;
  }
  std::optional<SharedMemory> memory = SharedMemory::Create("byteps-memory", size, reason);
  if (!memory) return BPS_RESOURCE_EXHAUSTED;
  std::byte* const first = memory->base();
  *base = first;
  *region = context_.regions.Add(first, size, std::move(memory));
  return BPS_OK;
}

int32_t Transport::RegShared(void* base, size_t size, int fd, Region** region, std::string* reason) {
  if (base == nullptr || size == 0) {
    *reason = "a region needs an address and a size";
    return BPS_INVALID_ARGUMENT;
  }
  if (SharedMemory::IsDetached(fd)) return Reg(base, size, region, reason);
  std::optional<SharedMemory> memory = SharedMemory::Borrow(fd, static_cast<std::byte*>(base), size, reason);
  if (!memory) return BPS_INVALID_ARGUMENT;
  *region = context_.regions.Add(static_cast<std::byte*>(base), size, std::move(memory));
  return BPS_OK;
}

void Transport::Unreg(Region* region) {
  if (!context_.regions.Has(region)) return;
  for (auto& [number, peer] : peers_) peer->Cancel(region);
  // Writes are carried out by ourselves, so they have ended with that. What is left are copies by the peers' own hands.
  for (auto& [number, grant] : region->grants) {
    Peer* peer = Find(number);
    if (peer == nullptr) continue;
    peer->Revoke(grant);
    Clock::time_point deadline = Clock::now() + kCopyPatience;
    while (peer->Users(grant) != 0 && peer->remote() != nullptr && !peer->remote()->Ended()) {
      ::sched_yield();
      // Shared memory of our own goes with its mapping, whoever still writes to the pages.
      if (region->memory && !region->memory->lent()) break;
      if (Clock::now() < deadline) continue;
      const std::string who =
          peer->Who() + " is in the middle of a copy into memory that is given back, and does not move";
      if (!std::exchange(peer->killed, true) && peer->remote()->Kill()) {
        BPS_SHM_LOG(context_.host, WARNING, who + ": it is killed");
        deadline = Clock::now() + kKillPatience;
      } else if (region->memory && region->memory->Detach()) {
        BPS_SHM_LOG(context_.host, WARNING, who + kDetached);
        break;
      } else {
        BPS_SHM_LOG(context_.host, ERROR, who + kUnkillable);
        break;
      }
    }
    // An entry that somebody still holds is not used again.
    if (peer->Users(grant) == 0) peer->FreeLedgerEntry(grant.entry);
    if (grant.shown && peer->connected()) {
      Control control;
      control.kind = Control::kGone;
      control.region = region->number;
      Say(peer, control);
    }
  }
  context_.regions.Remove(region);
}

int32_t Transport::ExportKey(Region* region, bps_peer number, void* out) {
  Peer* peer = Find(number);
  if (peer == nullptr || !peer->usable() || peer->doom != BPS_OK) return BPS_UNAVAILABLE;
  if (!context_.regions.Has(region)) return BPS_INVALID_ARGUMENT;
  Grant& grant = region->grants[number];
  if (!std::exchange(grant.exported, true)) {
    grant.secret = RandomNumber() | uint64_t{1} << 16;  // its upper part is never 0
    grant.entry = peer->NewLedgerEntry(grant.secret);
  }
  if (region->memory) Show(region, peer);
  const uint32_t flags = !region->memory ? 0 : region->memory->lent() ? kKeyShared | kKeyLent : kKeyShared;
  const Key key{region->number, grant.secret, reinterpret_cast<uint64_t>(region->base),
                region->size,   grant.entry,  flags};
  std::memcpy(out, &key, sizeof key);
  return BPS_OK;
}

// ---- Operations ----

Peer* Transport::FindToPost(bps_peer number) {
  Peer* peer = Find(number);
  if (peer == nullptr || !peer->usable() || peer->doom != BPS_OK) return nullptr;
  // Patience with it begins now, not when it was last looked at: both may have had nothing to do since.
  if (!peer->Busy()) peer->progress = Clock::now();
  return peer;
}

int32_t Transport::PostSend(bps_peer number, const void* data, size_t size, uint64_t user) {
  if (size == 0 || size > kMaxMessage) return BPS_INVALID_ARGUMENT;
  Peer* peer = FindToPost(number);
  if (peer == nullptr) return BPS_UNAVAILABLE;
  return peer->Send(data, size, user);
}

int32_t Transport::PostWrite(bps_peer number, const bps_local& from, size_t size, const bps_remote& to,
                             uint32_t immediate, uint64_t user) {
  Key key;
  int32_t code = BPS_OK;
  if (!ParseKey(to, size, &key, &code)) return code;
  auto* region = reinterpret_cast<Region*>(from.region);
  if (region != nullptr && !region->Contains(from.base, size)) return BPS_INVALID_ARGUMENT;
  Peer* peer = FindToPost(number);
  if (peer == nullptr) return BPS_UNAVAILABLE;
  if (Region* shared = context_.regions.FindShared(from.base, size)) Show(shared, peer);
  return peer->Write(region, from.base, size, key, to.offset, immediate, user);
}

int32_t Transport::PostRead(bps_peer number, const bps_local& to, size_t size, const bps_remote& from, uint64_t user) {
  Key key;
  int32_t code = BPS_OK;
  if (!ParseKey(from, size, &key, &code)) return code;
  auto* region = reinterpret_cast<Region*>(to.region);
  if (region != nullptr && !region->Contains(to.base, size)) return BPS_INVALID_ARGUMENT;
  Peer* peer = FindToPost(number);
  if (peer == nullptr) return BPS_UNAVAILABLE;
  return peer->Read(region, to.base, size, key, from.offset, user);
}

int32_t Transport::MapRemote(bps_peer number, const bps_remote& remote, size_t size, void** base) {
  Key key;
  int32_t code = BPS_OK;
  if (!ParseKey(remote, size, &key, &code)) return code;
  Peer* peer = Find(number);
  if (peer == nullptr || !peer->connected() || peer->doom != BPS_OK) return BPS_UNAVAILABLE;
  code = peer->remote()->Map(key, remote.offset, size, base);
  if (code != BPS_TRANSPORT_AGAIN) return code;
  ReadSocket(peer);  // its descriptor was sent before its key
  return peer->remote()->Map(key, remote.offset, size, base);
}

void Transport::UnmapRemote(bps_peer number, const bps_remote& remote) {
  Key key;
  int32_t code = BPS_OK;
  Peer* peer = Find(number);
  if (!ParseKey(remote, 0, &key, &code) || peer == nullptr || peer->remote() == nullptr) return;
  peer->remote()->Unmap(key);
}

int32_t Transport::BeginWrite(bps_peer number, const bps_remote& remote, size_t size, void** base) {
  Key key;
  int32_t code = BPS_OK;
  if (!ParseKey(remote, size, &key, &code)) return code;
  Peer* peer = Find(number);
  if (peer == nullptr || !peer->connected() || peer->doom != BPS_OK) return BPS_UNAVAILABLE;
  code = peer->remote()->BeginWrite(key, remote.offset, size, base);
  if (code != BPS_TRANSPORT_AGAIN) return code;
  ReadSocket(peer);  // its descriptor was sent before its key
  return peer->remote()->BeginWrite(key, remote.offset, size, base);
}

void Transport::EndWrite(bps_peer number, const bps_remote& remote) {
  Key key;
  int32_t code = BPS_OK;
  Peer* peer = Find(number);
  if (ParseKey(remote, 0, &key, &code) && peer != nullptr) peer->remote()->EndWrite(key);
}

int32_t Transport::CopyFrom(bps_peer number, const bps_remote& from, void* to, size_t size) {
  Key key;
  int32_t code = BPS_OK;
  if (!ParseKey(from, size, &key, &code)) return code;
  const std::shared_ptr<Remote> remote = FindRemote(number);
  return remote == nullptr ? BPS_UNAVAILABLE : remote->CopyFrom(key, from.offset, to, size);
}

int32_t Transport::CopyTo(bps_peer number, const bps_remote& to, const void* from, size_t size) {
  Key key;
  int32_t code = BPS_OK;
  if (!ParseKey(to, size, &key, &code)) return code;
  const std::shared_ptr<Remote> remote = FindRemote(number);
  return remote == nullptr ? BPS_UNAVAILABLE : remote->CopyTo(key, to.offset, from, size);
}

// ---- Progress ----

size_t Transport::Poll(bps_event* events, size_t capacity) {
  if (context_.events.empty()) reasons_.Forget();
  if (context_.events.size() < capacity) Progress();
  return context_.events.Take(events, capacity);
}

void Transport::Progress() {
  now_ = Clock::now();
  if (slept_) {
    for (Peer* peer : active_) peer->Awake();
  }
  if (slept_ || now_ - looked_ >= kSocketInterval || active_.size() != peers_.size()) LookAtSockets();
  slept_ = false;
  // Nobody is always last.
  const size_t count = active_.size();
  for (size_t i = 0; i < count; ++i) {
    Peer* peer = active_[(first_ + i) % count];
    peer->Progress();
    if (peer->process_ended()) Doom(peer, BPS_UNAVAILABLE, "has ended");
    if (!peer->violation().empty()) Doom(peer, BPS_UNAVAILABLE, peer->violation());
    if (!peer->unsent.empty()) FlushUnsent(peer);
  }
  ++first_;
  if (!calling_.empty()) {
    std::vector<Peer*> again;
    again.swap(calling_);
    for (Peer* peer : again) Call(peer);
  }
  if (!fencing_.empty()) CheckFences();
  CheckTime();
  BuryTheDoomed();
}

void Transport::LookAtSockets() {
  looked_ = now_;
  Sleeper::Event events[Sleeper::kBatch];
  size_t count = 0;
  do {
    count = sleeper_.Take(events);
    for (size_t i = 0; i < count; ++i) {
      const Sleeper::Event& event = events[i];
      Peer* peer = nullptr;
      switch (event.source) {
        case Sleeper::kBell:
        case Sleeper::kTimer:
          break;
        case Sleeper::kListener:
          Accept();
          break;
        case Sleeper::kNewcomer: {
          Hear(event.number);
          const auto newcomer = newcomers_.find(event.number);
          if (newcomer != newcomers_.end() && newcomer->second.socket &&
              (event.events & (EPOLLRDHUP | EPOLLHUP)) != 0) {
            newcomers_.erase(newcomer);  // it had greeted
          }
          break;
        }
        case Sleeper::kSocket:
          // What it said before it ended counts.
          peer = Find(event.number);
          if (peer != nullptr && peer->connected()) peer->Progress();
          if (peer != nullptr) ReadSocket(peer);
          break;
        case Sleeper::kProcess:
          peer = Find(event.number);
          if (peer == nullptr) break;
          if (peer->connected()) peer->Progress();
          Doom(peer, BPS_UNAVAILABLE, "has ended");
          break;
      }
    }
  } while (count == Sleeper::kBatch);
}

void Transport::CheckTime() {
  if (now_ - checked_ < kTimeCheckInterval) return;
  checked_ = now_;
  ExpireNewcomers();
  if (peer_timeout_.count() == 0) return;
  for (auto& [number, peer] : peers_) {
    if (!peer->usable()) continue;
    const uint64_t pulse = peer->Pulse();
    if (!peer->Busy() || pulse != peer->pulse) {
      peer->pulse = pulse;
      peer->progress = now_;
    } else if (now_ - peer->progress >= peer_timeout_) {
      const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(peer_timeout_).count();
      Doom(peer.get(), BPS_UNAVAILABLE,
           std::string(peer->connected() ? "took nothing" : "did not connect") + " for " +
               std::to_string(milliseconds) + " ms (BYTEPS_PEER_TIMEOUT)");
    }
  }
}

void Transport::Release(uint64_t lease) {
  const auto number = static_cast<bps_peer>(lease >> 32);
  const auto slot = static_cast<uint32_t>(lease);
  Peer* peer = Find(number);
  const auto departed = departed_.find(number);
  if (peer == nullptr && departed != departed_.end()) peer = departed->second.get();
  if (peer == nullptr) return BPS_SHM_LOG(context_.host, ERROR, "release of a message that is not on loan");
  peer->Release(slot);
  if (departed != departed_.end() && peer->leases() == 0) departed_.erase(departed);
}

int32_t Transport::Arm() {
  if (!context_.events.empty() || !doomed_.empty()) return BPS_TRANSPORT_AGAIN;
  Clock::time_point wake = kNever;
  if (!calling_.empty()) wake = Clock::now() + kRetryInterval;
  for (const auto& [number, newcomer] : newcomers_) {
    if (newcomer.hello) continue;
    wake = std::min(wake, newcomer.since + kGreetingPatience + kTimeCheckInterval);
    break;  // the oldest
  }
  for (const Peer* peer : fencing_) {
    wake = std::min({wake, peer->fence_deadline, Clock::now() + kTimeCheckInterval});
  }
  for (auto& [number, peer] : peers_) {
    if (!peer->unsent.empty()) wake = std::min(wake, Clock::now() + kRetryInterval);
    // The sleep ends when the patience with a peer does.
    if (peer_timeout_.count() != 0 && peer->usable() && peer->Busy()) {
      if (peer->pulse != peer->Pulse()) {
        peer->pulse = peer->Pulse();
        peer->progress = now_;
      }
      wake = std::min(wake, peer->progress + peer_timeout_);
    }
  }
  if (wake != kNever) sleeper_.Until(wake);
  slept_ = true;
  for (Peer* peer : active_) peer->Sleep();
  const bool quiet = std::all_of(active_.begin(), active_.end(), [](const Peer* peer) { return peer->Quiet(); });
  if (quiet) return BPS_OK;
  for (Peer* peer : active_) peer->Awake();
  return BPS_TRANSPORT_AGAIN;
}

}  // namespace byteps::shm
