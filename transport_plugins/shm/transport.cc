#include "transport_plugins/shm/transport.h"

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

namespace byteps::shm {
namespace {

// Between two looks at the sockets while the owner does not sleep: that is how fast a death is seen then.
constexpr auto kSocketInterval = std::chrono::milliseconds(1);
constexpr auto kTimeCheckInterval = std::chrono::milliseconds(100);
// A listener that has no time, a socket that takes nothing: both are rare.
constexpr auto kRetryInterval = std::chrono::milliseconds(2);
// How long a peer may take to end a copy into memory that is taken back, before its process is killed: it is one block,
// so only a stopped process takes longer than milliseconds.
constexpr auto kCopyPatience = std::chrono::seconds(2);

constexpr uint64_t kMaxTransfer = uint64_t{1} << 40;
constexpr auto kNever = Clock::time_point::max();
bool ParseKey(const bps_remote& remote, size_t size, Key* key, int32_t* code) {
  *code = BPS_INVALID_ARGUMENT;
  if (remote.key_size != sizeof *key || size > kMaxTransfer) return false;
  std::memcpy(key, remote.key, sizeof *key);
  *code = BPS_OUT_OF_RANGE;
  return remote.offset <= key->size && size <= key->size - remote.offset;
}

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
      // Shared memory of our own goes with its mapping, whichever peer still writes to the pages.
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
    // An entry that a peer still holds is not used again.
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
  if (peer == nullptr || !peer->usable() || peer->failure_code != BPS_OK) return BPS_UNAVAILABLE;
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
  if (peer == nullptr || !peer->usable() || peer->failure_code != BPS_OK) return nullptr;
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
  if (peer == nullptr || !peer->connected() || peer->failure_code != BPS_OK) return BPS_UNAVAILABLE;
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
  if (peer == nullptr || !peer->connected() || peer->failure_code != BPS_OK) return BPS_UNAVAILABLE;
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
  // No peer is always last.
  const size_t count = active_.size();
  for (size_t i = 0; i < count; ++i) {
    Peer* peer = active_[(first_ + i) % count];
    peer->Progress();
    if (peer->process_ended()) MarkFailed(peer, BPS_UNAVAILABLE, "has ended");
    if (!peer->violation().empty()) MarkFailed(peer, BPS_UNAVAILABLE, peer->violation());
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
  ReportFailedPeers();
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
          ReadGreeting(event.number);
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
          MarkFailed(peer, BPS_UNAVAILABLE, "has ended");
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
    const uint64_t progress_count = peer->ProgressCount();
    if (!peer->Busy() || progress_count != peer->progress_count) {
      peer->progress_count = progress_count;
      peer->progress = now_;
    } else if (now_ - peer->progress >= peer_timeout_) {
      const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(peer_timeout_).count();
      MarkFailed(peer.get(), BPS_UNAVAILABLE,
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
  if (!context_.events.empty() || !failed_peers_.empty()) return BPS_TRANSPORT_AGAIN;
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
      if (peer->progress_count != peer->ProgressCount()) {
        peer->progress_count = peer->ProgressCount();
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
