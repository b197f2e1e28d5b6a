#include "transport_plugins/libfabric/laned_transport.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "transport_plugins/libfabric/address.h"
#include "transport_plugins/libfabric/event.h"

namespace byteps::fabric {
namespace {

constexpr size_t kFetched = 64;
// How long a lane yields before it sleeps.
constexpr std::chrono::microseconds kSpin{50};
// When a lane tries again what its transport did not take.
constexpr int kRetryMs = 1;

void Signal(int fd) {
  const uint64_t one = 1;
  // Full means that it has been signalled often enough.
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
}

void Drain(int fd) {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(fd, &count, sizeof count);
}

int Checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

void Watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  Checked(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

bps_event EndOfWrite(bps_peer peer, uint64_t user, int32_t code) { return Event(BPS_EVENT_WRITTEN, peer, code, user); }

}  // namespace

LanedTransport::LanedTransport(const transports::Host& host, std::vector<std::unique_ptr<ConnectedTransport>> lanes,
                               size_t least)
    : Transport(host), least_(least), depth_(lanes.front()->depth()) {
  for (size_t i = 0; i < lanes.size(); ++i) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_[i]->index = i;
    lanes_[i]->transport = std::move(lanes[i]);
  }
  // Signals belong to the host's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    epoll_ = Checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    ready_ = Checked(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    Watch(epoll_, ready_);
    Watch(epoll_, first().WaitFd());
    for (size_t i = 1; i < lanes_.size(); ++i) {
      Lane* lane = lanes_[i].get();
      lane->wake = Checked(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
      lane->thread = std::thread([this, lane] { Run(lane); });
      pthread_setname_np(lane->thread.native_handle(), ("bps-tcp-" + std::to_string(i)).c_str());
    }
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    Stop();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LanedTransport::~LanedTransport() { Stop(); }

void LanedTransport::Stop() {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (!lane->thread.joinable()) continue;
    {
      const std::lock_guard<std::mutex> mail(lane->mail);
      lane->stop = true;
    }
    Signal(lane->wake);
    lane->thread.join();
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->wake >= 0) ::close(std::exchange(lane->wake, -1));
  }
  for (int* fd : {&ready_, &epoll_}) {
    if (*fd >= 0) ::close(std::exchange(*fd, -1));
  }
}

template <typename Body>
auto LanedTransport::With(size_t index, const Body& body) {
  Lane& lane = *lanes_[index];
  if (index == 0) return body(*lane.transport);
  lane.wanted.fetch_add(1);
  const std::lock_guard<std::mutex> drive(lane.drive);
  lane.wanted.fetch_sub(1);
  // What it led to is for the lane's thread to fetch, which may be asleep.
  struct Waker {
    LanedTransport* self;
    Lane* lane;
    ~Waker() { self->Wake(lane); }
  } waker{this, &lane};
  return body(*lane.transport);
}

void LanedTransport::Wake(Lane* lane) {
  const std::lock_guard<std::mutex> mail(lane->mail);
  if (std::exchange(lane->asleep, false)) Signal(lane->wake);
}

// ---- The lanes' threads ----

void LanedTransport::Run(Lane* lane) {
  Clock::time_point busy = Clock::now();
  while (true) {
    {
      const std::lock_guard<std::mutex> mail(lane->mail);
      if (lane->stop) return;
    }
    while (lane->wanted.load() > 0) ::sched_yield();
    if (RunOnce(lane)) {
      busy = Clock::now();
    } else if (Clock::now() - busy < kSpin) {
      ::sched_yield();
    } else {
      Sleep(lane);
      busy = Clock::now();
    }
  }
}

bool LanedTransport::RunOnce(Lane* lane) {
  const std::lock_guard<std::mutex> drive(lane->drive);
  std::deque<Post> posts;
  {
    const std::lock_guard<std::mutex> mail(lane->mail);
    posts.swap(lane->posts);
  }
  std::vector<bps_event> events;
  while (!posts.empty()) {
    const Post& post = posts.front();
    const bps_remote to{post.key.data(), post.key.size(), post.offset};
    const int32_t code = lane->transport->PostWrite(post.peer, post.from, post.size, to, post.immediate, post.user);
    if (code == BPS_TRANSPORT_AGAIN) break;
    // It was accepted, so it must end.
    if (code != BPS_OK) events.push_back(EndOfWrite(post.peer, post.user, code));
    posts.pop_front();
  }
  bps_event fetched[kFetched];
  const size_t count = lane->transport->Poll(fetched, kFetched);
  events.insert(events.end(), fetched, fetched + count);
  lane->refused = !posts.empty();
  {
    const std::lock_guard<std::mutex> mail(lane->mail);
    lane->posts.insert(lane->posts.begin(), std::make_move_iterator(posts.begin()),
                       std::make_move_iterator(posts.end()));
    for (bps_event& event : events) {
      // What the lane says is gone with its next poll.
      if (event.type == BPS_EVENT_PEER_DOWN) lane->reasons.Attach(&event, transports::LossReason(event));
    }
    lane->events.insert(lane->events.end(), events.begin(), events.end());
  }
  if (events.empty()) return false;
  if (armed_.exchange(false)) Signal(ready_);
  return true;
}

void LanedTransport::Sleep(Lane* lane) {
  int timeout = -1;
  {
    const std::lock_guard<std::mutex> drive(lane->drive);
    const std::lock_guard<std::mutex> mail(lane->mail);
    // What came meanwhile is posted at once.
    if (lane->stop || (!lane->posts.empty() && !lane->refused)) return;
    if (lane->transport->Arm() != BPS_OK) return;
    if (lane->refused) timeout = kRetryMs;
    lane->asleep = true;
  }
  pollfd fds[] = {{lane->wake, POLLIN, 0}, {lane->transport->WaitFd(), POLLIN, 0}};
  ::poll(fds, 2, timeout);
  const std::lock_guard<std::mutex> mail(lane->mail);
  lane->asleep = false;
  if (fds[0].revents != 0) Drain(lane->wake);
}

// ---- Connections ----

void LanedTransport::WriteAddress(void* out, size_t* size) const {
  *size = 0;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    size_t one = 0;
    lane->transport->WriteAddress(static_cast<char*>(out) + *size, &one);  // does not change: no lock
    *size += one;
  }
}

LanedTransport::LanedPeer* LanedTransport::FindPeer(bps_peer number) {
  auto peer = peers_.find(number);
  return peer == peers_.end() ? nullptr : &peer->second;
}

int32_t LanedTransport::Connect(const bps_connect_args& args, std::string* reason) {
  const std::vector<Address> addresses = ParseAddresses(Address::kConnected, args.address, args.address_size);
  const auto* at = static_cast<const char*>(args.address);
  LanedPeer peer;
  peer.lanes = std::clamp<size_t>(addresses.size(), 1, lanes_.size());
  for (size_t i = 0; i < peer.lanes; ++i) {
    bps_connect_args one = args;
    if (!addresses.empty()) {
      one.address = at;
      one.address_size = addresses[i].size();
      at += one.address_size;
    }
    const int32_t code = With(i, [&](ConnectedTransport& lane) { return lane.Connect(one, reason); });
    if (code == BPS_OK) continue;
    // The owner does not know this peer: what comes of it is not told.
    for (size_t made = 0; made < i; ++made) {
      With(made, [&](ConnectedTransport& lane) { return lane.Disconnect(args.peer); });
    }
    return code;
  }
  peers_.emplace(args.peer, peer);
  return BPS_OK;
}

template <typename Which>
void LanedTransport::EndPosts(Lane* lane, const Which& which) {
  const std::lock_guard<std::mutex> mail(lane->mail);
  std::deque<Post> kept;
  for (Post& post : lane->posts) {
    if (which(post)) {
      lane->events.push_back(EndOfWrite(post.peer, post.user, BPS_CANCELLED));
    } else {
      kept.push_back(std::move(post));
    }
  }
  lane->posts.swap(kept);
}

void LanedTransport::LeaveLane(bps_peer number, LanedPeer* peer, size_t index) {
  peer->state[index] = LaneState::kDisconnecting;
  With(index, [&](ConnectedTransport& lane) {
    EndPosts(lanes_[index].get(), [number](const Post& post) { return post.peer == number; });
    return lane.Disconnect(number);
  });
}

int32_t LanedTransport::Disconnect(bps_peer number) {
  LanedPeer* peer = FindPeer(number);
  if (peer == nullptr || peer->leaving) return BPS_NOT_FOUND;
  peer->leaving = peer->down = true;
  for (size_t i = 0; i < peer->lanes; ++i) {
    if (peer->state[i] == LaneState::kUp || peer->state[i] == LaneState::kDown) LeaveLane(number, peer, i);
  }
  return BPS_OK;
}

// ---- Memory ----

int32_t LanedTransport::Reg(void* base, size_t size, bps_region** out, std::string* reason) {
  auto region = std::make_unique<LanedRegion>();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    bps_region* one = nullptr;
    const int32_t code = With(i, [&](ConnectedTransport& lane) { return lane.Reg(base, size, &one, reason); });
    if (code != BPS_OK) {
      UnregAll(*region);
      return code;
    }
    region->regions.push_back(one);
  }
  *out = reinterpret_cast<bps_region*>(region.get());
  regions_.emplace(region.get(), std::move(region));
  return BPS_OK;
}

void LanedTransport::UnregAll(const LanedRegion& region) {
  for (size_t i = 0; i < region.regions.size(); ++i) {
    bps_region* one = region.regions[i];
    With(i, [&](ConnectedTransport& lane) {
      EndPosts(lanes_[i].get(), [one](const Post& post) { return post.from.region == one; });
      lane.Unreg(one);
      return 0;
    });
  }
}

void LanedTransport::Unreg(bps_region* handle) {
  auto found = regions_.find(reinterpret_cast<LanedRegion*>(handle));
  UnregAll(*found->second);
  regions_.erase(found);
}

int32_t LanedTransport::ExportKey(bps_region* handle, bps_peer number, void* out) {
  auto* region = reinterpret_cast<LanedRegion*>(handle);
  LanedPeer* peer = FindPeer(number);
  if (peer == nullptr || peer->down) return BPS_UNAVAILABLE;
  if (const int32_t code = first().ExportKey(region->regions[0], number, out); code != BPS_OK) return code;
  if (peer->lanes == 1 || !region->shown_to.insert(number).second) return BPS_OK;
  for (size_t i = 1; i < peer->lanes; ++i) {
    const int32_t code =
        With(i, [&](ConnectedTransport& lane) { return lane.ExportSameKey(region->regions[i], number, out); });
    if (code == BPS_OK) continue;
    region->shown_to.erase(number);
    return code;
  }
  return BPS_OK;
}

// ---- Operations ----

int32_t LanedTransport::PostSend(bps_peer number, const void* data, size_t size, uint64_t user) {
  LanedPeer* peer = FindPeer(number);
  if (peer == nullptr || peer->down) return BPS_UNAVAILABLE;
  return first().PostSend(number, data, size, user);
}

size_t LanedTransport::ChooseLane(const LanedPeer& peer) const {
  size_t best = peer.lanes;
  for (size_t i = 0; i < peer.lanes; ++i) {
    if (peer.under_way[i] < depth_ && (best == peer.lanes || peer.bytes[i] < peer.bytes[best])) best = i;
  }
  return best;
}

int32_t LanedTransport::PostWrite(bps_peer number, const bps_local& from, size_t size, const bps_remote& to,
                                  uint32_t immediate, uint64_t user) {
  LanedPeer* peer = FindPeer(number);
  if (peer == nullptr || peer->down) return BPS_UNAVAILABLE;
  const size_t index = size < least_ ? 0 : ChooseLane(*peer);
  if (index == peer->lanes) return BPS_TRANSPORT_AGAIN;
  auto on_lane = [&](size_t lane) {
    auto* region = reinterpret_cast<LanedRegion*>(from.region);
    return bps_local{region == nullptr ? nullptr : region->regions[lane], from.base};
  };
  const uint64_t burden = next_burden_++;
  if (index == 0) {
    const int32_t code = first().PostWrite(number, on_lane(0), size, to, immediate, burden);
    if (code != BPS_OK) return code;
  } else {
    if (const int32_t code = first().CheckWrite(on_lane(0), size, to); code != BPS_OK) return code;
    const auto* key = static_cast<const std::byte*>(to.key);
    Lane* lane = lanes_[index].get();
    const std::lock_guard<std::mutex> mail(lane->mail);
    lane->posts.push_back({number, on_lane(index), size, {key, key + to.key_size}, to.offset, immediate, burden});
    if (std::exchange(lane->asleep, false)) Signal(lane->wake);
  }
  burdens_.emplace(burden, Burden{number, index, size, user});
  ++peer->under_way[index];
  peer->bytes[index] += size;
  return BPS_OK;
}

// ---- Progress ----

size_t LanedTransport::Poll(bps_event* events, size_t capacity) {
  armed_.store(false);
  if (events_.empty()) reasons_.Forget();
  if (events_.size() < capacity) Fetch();
  const size_t count = std::min(capacity, events_.size());
  std::copy_n(events_.begin(), count, events);
  events_.erase(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(count));
  return count;
}

void LanedTransport::Fetch() {
  for (size_t i = 1; i < lanes_.size(); ++i) {
    {
      const std::lock_guard<std::mutex> mail(lanes_[i]->mail);
      fetched_.swap(lanes_[i]->events);
      fetched_reasons_.swap(lanes_[i]->reasons);
    }
    for (const bps_event& event : fetched_) Handle(i, event);
    fetched_.clear();
    fetched_reasons_.Forget();
  }
  bps_event own[kFetched];
  const size_t count = first().Poll(own, kFetched);
  for (size_t i = 0; i < count; ++i) Handle(0, own[i]);
}

void LanedTransport::Handle(size_t index, const bps_event& event) {
  switch (event.type) {
    case BPS_EVENT_WRITTEN: {
      auto found = burdens_.find(event.user);
      const Burden burden = found->second;
      burdens_.erase(found);
      bps_event told = event;
      told.user = burden.user;
      events_.push_back(told);
      LanedPeer* peer = FindPeer(burden.peer);
      --peer->under_way[index];
      peer->bytes[index] -= burden.bytes;
      TellEnd(burden.peer, peer);
      return;
    }
    case BPS_EVENT_PEER_DOWN: {
      LanedPeer* peer = FindPeer(event.peer);
      if (peer == nullptr || peer->state[index] != LaneState::kUp) return;
      peer->state[index] = LaneState::kDown;
      peer->code = event.code;
      peer->cause = transports::LossReason(event);
      peer->down = true;
      for (size_t i = 0; i < peer->lanes; ++i) {
        if (peer->state[i] == LaneState::kUp) LeaveLane(event.peer, peer, i);
      }
      TellEnd(event.peer, peer);
      return;
    }
    case BPS_EVENT_DISCONNECTED: {
      LanedPeer* peer = FindPeer(event.peer);
      if (peer == nullptr) return;
      peer->state[index] = LaneState::kGone;
      TellEnd(event.peer, peer);
      return;
    }
    default:
      events_.push_back(event);
  }
}

// PEER_DOWN and DISCONNECTED, when all lanes are so far.
void LanedTransport::TellEnd(bps_peer number, LanedPeer* peer) {
  if (!peer->down) return;
  bool gone = true;
  for (size_t i = 0; i < peer->lanes; ++i) {
    if (peer->under_way[i] != 0) return;
    if (peer->state[i] == LaneState::kUp || peer->state[i] == LaneState::kDisconnecting) return;
    if (peer->state[i] != LaneState::kGone) gone = false;
  }
  bps_event event{};
  event.peer = number;
  if (peer->leaving && gone) {
    event.type = BPS_EVENT_DISCONNECTED;
    events_.push_back(event);
    peers_.erase(number);
  } else if (!peer->leaving && !std::exchange(peer->told, true)) {
    event.type = BPS_EVENT_PEER_DOWN;
    event.code = peer->code;
    reasons_.Attach(&event, peer->cause);
    events_.push_back(event);
  }
}

int32_t LanedTransport::Arm() {
  if (!events_.empty()) return BPS_TRANSPORT_AGAIN;
  Drain(ready_);
  armed_.store(true);
  // A thread that adds an event from here on signals.
  for (size_t i = 1; i < lanes_.size(); ++i) {
    const std::lock_guard<std::mutex> mail(lanes_[i]->mail);
    if (lanes_[i]->events.empty()) continue;
    armed_.store(false);
    return BPS_TRANSPORT_AGAIN;
  }
  const int32_t code = first().Arm();
  if (code != BPS_OK) armed_.store(false);
  return code;
}

}  // namespace byteps::fabric
