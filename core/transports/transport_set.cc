#include "core/transports/transport_set.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/plugin/transport_verbs.h"
#include "core/transports/host_transport.h"

namespace byteps {
namespace {

constexpr char kMagic[4] = {'B', 'P', 'S', 'A'};

// One transport of a list of addresses.
struct Entry {
  std::string name;
  std::string provider;
  std::string address;
};

void Append(std::string* out, const std::string& text) {
  const auto size = static_cast<uint16_t>(text.size());
  out->append(reinterpret_cast<const char*>(&size), sizeof size);
  out->append(text);
}

bool Read(std::string_view* rest, std::string* text) {
  uint16_t size = 0;
  if (rest->size() < sizeof size) return false;
  std::memcpy(&size, rest->data(), sizeof size);
  rest->remove_prefix(sizeof size);
  if (rest->size() < size) return false;
  *text = std::string(rest->substr(0, size));
  rest->remove_prefix(size);
  return true;
}

// Nothing: this is no list.
std::optional<std::vector<Entry>> ReadList(std::string_view address) {
  if (address.size() < sizeof kMagic || std::memcmp(address.data(), kMagic, sizeof kMagic) != 0) return std::nullopt;
  address.remove_prefix(sizeof kMagic);
  std::vector<Entry> entries;
  while (!address.empty()) {
    Entry& entry = entries.emplace_back();
    if (!Read(&address, &entry.name) || !Read(&address, &entry.provider) || !Read(&address, &entry.address)) {
      return std::nullopt;
    }
  }
  return entries;
}

struct Member {
  Transport transport;
  std::string name;
  std::string provider;
  std::string address;
  size_t peers = 0;
  bool look = true;  // poll it although it has no peers
};

// What the owner has as a bps_region.
struct SetRegion {
  std::byte* base = nullptr;
  size_t size = 0;
  int fd = -1;                       // of memory that can be shared
  bool device = false;               // of a GPU: only the members that can have it registered
  std::vector<bps_region*> regions;  // by member; NULL: not registered there
  size_t allocated_by = SIZE_MAX;    // whose memory it is: unregistered last
};

class TransportSet final : public TransportVerbs {
 public:
  explicit TransportSet(std::vector<Member> members) : members_(std::move(members)) {
    caps_.struct_size = sizeof caps_;
    caps_.flags =
        BPS_TRANSPORT_LOCAL_ANY | BPS_TRANSPORT_CHEAP_REG | BPS_TRANSPORT_REG_ADDRESSES | BPS_TRANSPORT_WAIT_FD;
    caps_.immediate_bits = 32;
    caps_.max_message = caps_.receive_pool = caps_.tx_depth = UINT32_MAX;
    caps_.key_size = BPS_TRANSPORT_MAX_KEY;  // whatever the peer's set consists of
    caps_.max_transfer = UINT64_MAX;
    caps_.alignment = 1;
    for (const Member& member : members_) {
      const bps_transport_caps& theirs = member.transport.caps();
      caps_.flags &= theirs.flags;
      caps_.immediate_bits = std::min(caps_.immediate_bits, theirs.immediate_bits);
      caps_.max_message = std::min(caps_.max_message, theirs.max_message);
      caps_.receive_pool = std::min(caps_.receive_pool, theirs.receive_pool);
      caps_.tx_depth = std::min(caps_.tx_depth, theirs.tx_depth);
      caps_.max_transfer = std::min(caps_.max_transfer, theirs.max_transfer);
      caps_.alignment = std::max(caps_.alignment, theirs.alignment);
    }
    caps_.provider = members_.back().provider.c_str();
    if ((caps_.flags & BPS_TRANSPORT_WAIT_FD) == 0) return;
    wait_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    for (Member& member : members_) {
      epoll_event event{};
      event.events = EPOLLIN;
      if (!wait_ || ::epoll_ctl(wait_.get(), EPOLL_CTL_ADD, member.transport.WaitFd(), &event) != 0) {
        caps_.flags &= ~BPS_TRANSPORT_WAIT_FD;  // the owner polls at intervals, then
        return;
      }
    }
  }

  const bps_transport_caps& caps() const override { return caps_; }
  bool shares() const override {
    return std::any_of(members_.begin(), members_.end(), [](const Member& each) { return each.transport.shares(); });
  }
  const bps_transport_caps* CapsOf(bps_peer peer) const override {
    const auto found = routes_.find(peer);
    return found == routes_.end() ? nullptr : &members_[found->second].transport.caps();
  }
  std::string_view NameOf(bps_peer peer) const override {
    const auto found = routes_.find(peer);
    return found == routes_.end() ? std::string_view() : members_[found->second].name;
  }

  absl::StatusOr<std::string> Address() override {
    std::string address(kMagic, sizeof kMagic);
    for (const Member& member : members_) {
      Append(&address, member.name);
      Append(&address, member.provider);
      Append(&address, member.address);
    }
    if (address.size() > BPS_TRANSPORT_MAX_ADDRESS) {
      return absl::OutOfRangeError("the addresses of these transports are too long together");
    }
    return address;
  }

  absl::Status Connect(const bps_connect_args& args) override {
    const std::string_view bytes(static_cast<const char*>(args.address), args.address_size);
    std::optional<std::vector<Entry>> list = ReadList(bytes);
    // The address of a lone transport: it is the network's.
    if (!list) list = {{members_.back().name, members_.back().provider, std::string(bytes)}};
    for (size_t i = 0; i < members_.size(); ++i) {
      const auto entry = std::find_if(list->begin(), list->end(), [&](const Entry& each) {
        return each.name == members_[i].name && each.provider == members_[i].provider;
      });
      if (entry == list->end()) continue;
      bps_connect_args inner = args;
      inner.address = entry->address.data();
      inner.address_size = entry->address.size();
      if (absl::Status status = members_[i].transport.Connect(inner); !status.ok()) return status;
      ++members_[i].peers;
      routes_[args.peer] = i;
      return absl::OkStatus();
    }
    std::string theirs, ours;
    for (const Entry& each : *list) absl::StrAppend(&theirs, theirs.empty() ? "" : ", ", each.name, " ", each.provider);
    for (const Member& each : members_) absl::StrAppend(&ours, ours.empty() ? "" : ", ", each.name, " ", each.provider);
    return absl::UnavailableError(
        absl::StrCat("no transport in common: the peer is reached over ", theirs, "; this process has ", ours));
  }

  int32_t Disconnect(bps_peer peer) override {
    Member* member = Route(peer);
    return member == nullptr ? BPS_NOT_FOUND : member->transport.Disconnect(peer);
  }

  absl::Status Reg(void* base, size_t size, bps_region** region) override {
    *region = Wrap(Make(base, size, -1));
    return absl::OkStatus();
  }
  absl::Status RegShared(void* base, size_t size, int fd, bps_region** region) override {
    *region = Wrap(Make(base, size, fd));
    return absl::OkStatus();
  }

  // At once, with every member that can: whether it works is what the caller wants to know.
  absl::Status RegDevice(const bps_device_memory& memory, bps_region** out) override {
    std::unique_ptr<SetRegion> region(Make(memory.base, memory.size, -1));
    region->device = true;
    absl::Status status = absl::UnimplementedError("none of these transports reads a GPU's memory");
    for (size_t i = 0; i < members_.size(); ++i) {
      if (!members_[i].transport.Has(BPS_TRANSPORT_CUDA)) continue;
      status = members_[i].transport.RegDevice(memory, &region->regions[i]);
      if (!status.ok()) break;
    }
    bps_region* const handle = Wrap(region.release());
    if (!status.ok()) {
      Unreg(handle);
      return status;
    }
    *out = handle;
    return absl::OkStatus();
  }

  absl::Status Allocate(size_t size, bps_region** out, void** base) override {
    for (size_t i = 0; i < members_.size(); ++i) {
      bps_region* handle = nullptr;
      absl::Status status = members_[i].transport.Allocate(size, &handle, base);
      if (absl::IsUnimplemented(status)) continue;
      if (!status.ok()) return status;
      SetRegion* region = Make(*base, size, -1);
      region->regions[i] = handle;
      region->allocated_by = i;
      *out = Wrap(region);
      return absl::OkStatus();
    }
    return absl::UnimplementedError("none of these transports allocates memory");
  }

  void Unreg(bps_region* handle) override {
    const std::unique_ptr<SetRegion> region(Unwrap(handle));
    for (size_t i = 0; i < members_.size(); ++i) {
      if (i != region->allocated_by && region->regions[i] != nullptr) members_[i].transport.Unreg(region->regions[i]);
    }
    if (region->allocated_by != SIZE_MAX) {
      members_[region->allocated_by].transport.Unreg(region->regions[region->allocated_by]);
    }
  }

  int32_t ExportKey(bps_region* region, bps_peer peer, void* key) override {
    Member* member = Route(peer);
    if (member == nullptr) return BPS_UNAVAILABLE;
    bps_region* inner = nullptr;
    if (absl::Status status = RegionAt(Unwrap(region), member, &inner); !status.ok()) return StatusCode(status);
    std::memset(key, 0, caps_.key_size);
    return member->transport.ExportKey(inner, peer, key);
  }

  int32_t PostRead(bps_peer, const bps_local&, size_t, const bps_remote&, uint64_t) override {
    return BPS_UNIMPLEMENTED;
  }
  int32_t PostSend(bps_peer peer, const void* data, size_t size, uint64_t user) override {
    Member* member = Route(peer);
    return member == nullptr ? BPS_UNAVAILABLE : member->transport.PostSend(peer, data, size, user);
  }

  int32_t PostWrite(bps_peer peer, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                    uint64_t user) override {
    return WithMember(peer, from, to, [&](Transport& transport, const bps_local& local, const bps_remote& remote) {
      return transport.PostWrite(peer, local, size, remote, immediate, user);
    });
  }

  int32_t PostSendAndWrite(bps_peer peer, std::span<const std::byte> message, const bps_local& from, size_t size,
                           const bps_remote& to, uint32_t immediate, uint64_t user) override {
    return WithMember(peer, from, to, [&](Transport& transport, const bps_local& local, const bps_remote& remote) {
      return transport.PostSendAndWrite(peer, message, local, size, remote, immediate, user);
    });
  }

  // post(transport, local, remote), with what that transport knows.
  template <typename Post>
  int32_t WithMember(bps_peer peer, const bps_local& from, const bps_remote& to, const Post& post) {
    Member* member = Route(peer);
    if (member == nullptr) return BPS_UNAVAILABLE;
    bps_local local = from;
    if (local.region != nullptr) {
      const absl::Status status = RegionAt(Unwrap(from.region), member, &local.region);
      if (!status.ok()) return StatusCode(status);
    }
    if (to.key_size < member->transport.caps().key_size) return BPS_INVALID_ARGUMENT;
    return post(member->transport, local, bps_remote{to.key, member->transport.caps().key_size, to.offset});
  }

  // Towards peers of a member that can.
  int32_t MapRemote(bps_peer peer, const bps_remote& remote, size_t size, void** base) override {
    return Reach(peer, remote, BPS_TRANSPORT_MAP_REMOTE,
                 [&](Transport& to, const bps_remote& there) { return to.MapRemote(peer, there, size, base); });
  }
  void UnmapRemote(bps_peer peer, const bps_remote& remote) override {
    Reach(peer, remote, BPS_TRANSPORT_MAP_REMOTE, [&](Transport& to, const bps_remote& there) -> int32_t {
      to.UnmapRemote(peer, there);
      return BPS_OK;
    });
  }
  int32_t BeginWrite(bps_peer peer, const bps_remote& remote, size_t size, void** base) override {
    return Reach(peer, remote, 0,
                 [&](Transport& to, const bps_remote& there) { return to.BeginWrite(peer, there, size, base); });
  }
  void EndWrite(bps_peer peer, const bps_remote& remote) override {
    Reach(peer, remote, 0, [&](Transport& to, const bps_remote& there) -> int32_t {
      to.EndWrite(peer, there);
      return BPS_OK;
    });
  }
  int32_t CopyFrom(bps_peer peer, const bps_remote& from, void* to, size_t size) override {
    return Reach(peer, from, BPS_TRANSPORT_COPY,
                 [&](Transport& way, const bps_remote& there) { return way.CopyFrom(peer, there, to, size); });
  }
  int32_t CopyTo(bps_peer peer, const bps_remote& to, const void* from, size_t size) override {
    return Reach(peer, to, BPS_TRANSPORT_COPY,
                 [&](Transport& way, const bps_remote& there) { return way.CopyTo(peer, there, from, size); });
  }

  size_t Poll(bps_event* events, size_t capacity) override {
    size_t count = 0;
    for (size_t i = 0; i < members_.size() && count < capacity; ++i) {
      Member& member = members_[(first_ + i) % members_.size()];
      if (member.peers == 0 && !std::exchange(member.look, false)) continue;
      const size_t got = member.transport.Poll(events + count, capacity - count);
      for (size_t j = count; j < count + got; ++j) Translate(&member, &events[j]);
      count += got;
    }
    first_ = (first_ + 1) % members_.size();
    return count;
  }

  void Release(uint64_t lease) override {
    const auto [member, inner] = leases_[lease];
    free_leases_.push_back(lease);
    member->transport.Release(inner);
  }

  int WaitFd() override { return wait_.get(); }

  bool Arm() override {
    bool armed = true;
    for (Member& member : members_) {
      // Whatever ends the sleep may be for a member that is not polled as a rule: a peer that calls too early.
      member.look = true;
      if (!member.transport.Arm()) armed = false;
    }
    return armed;
  }

 private:
  static bps_region* Wrap(SetRegion* region) { return reinterpret_cast<bps_region*>(region); }
  static SetRegion* Unwrap(bps_region* region) { return reinterpret_cast<SetRegion*>(region); }

  SetRegion* Make(void* base, size_t size, int fd) const {
    auto* region = new SetRegion;
    region->fd = fd;
    region->base = static_cast<std::byte*>(base);
    region->size = size;
    region->regions.resize(members_.size());
    return region;
  }

  Member* Route(bps_peer peer) {
    const auto found = routes_.find(peer);
    return found == routes_.end() ? nullptr : &members_[found->second];
  }

  // Remote memory as the member that leads there names it, if that member has `capability`.
  template <typename Verb>
  int32_t Reach(bps_peer peer, const bps_remote& remote, uint32_t capability, const Verb& verb) {
    Member* member = Route(peer);
    if (member == nullptr) return BPS_UNAVAILABLE;
    const bps_transport_caps& caps = member->transport.caps();
    if ((caps.flags & capability) != capability) return BPS_UNIMPLEMENTED;
    if (remote.key_size < caps.key_size) return BPS_INVALID_ARGUMENT;
    return verb(member->transport, {remote.key, caps.key_size, remote.offset});
  }

  absl::Status RegionAt(SetRegion* region, Member* member, bps_region** inner) {
    bps_region*& there = region->regions[static_cast<size_t>(member - members_.data())];
    if (there == nullptr && region->device) return absl::UnimplementedError("this transport reads no GPU's memory");
    if (there == nullptr) {
      absl::Status status = region->fd < 0
                                ? member->transport.Reg(region->base, region->size, &there)
                                : member->transport.RegShared(region->base, region->size, region->fd, &there);
      if (!status.ok()) return status;
    }
    *inner = there;
    return absl::OkStatus();
  }

  void Translate(Member* member, bps_event* event) {
    if (event->type == BPS_EVENT_MESSAGE) {
      uint64_t lease = leases_.size();
      if (free_leases_.empty()) {
        leases_.emplace_back();
      } else {
        lease = free_leases_.back();
        free_leases_.pop_back();
      }
      leases_[lease] = {member, event->lease};
      event->lease = lease;
    } else if (event->type == BPS_EVENT_DISCONNECTED) {
      routes_.erase(event->peer);
      --member->peers;
    }
  }

  std::vector<Member> members_;
  bps_transport_caps caps_{};
  UniqueFd wait_;
  absl::flat_hash_map<bps_peer, size_t> routes_;
  std::vector<std::pair<Member*, uint64_t>> leases_;
  std::vector<uint64_t> free_leases_;
  size_t first_ = 0;
};

}  // namespace

absl::StatusOr<Transport> MakeTransportSet(std::vector<Transport> transports) {
  std::vector<Member> members;
  for (Transport& transport : transports) {
    absl::StatusOr<std::string> address = transport.Address();
    if (!address.ok()) return address.status();
    std::string name = transport.name();
    std::string provider = transport.provider();
    members.push_back({std::move(transport), std::move(name), std::move(provider), *std::move(address)});
  }
  const std::string name = members.back().name;
  return Transport(std::make_unique<TransportSet>(std::move(members)), name);
}

absl::StatusOr<Transport> OpenTransports(PluginRegistry* registry, const Config& config, const std::string& network,
                                         const std::string& local_host, const Logger& log) {
  std::vector<Transport> members;
  if (config.GetBool("BYTEPS_SHM") && network != kHostTransport) {
    absl::StatusOr<Transport> shm = registry->OpenTransport(kHostTransport, local_host);
    if (shm.ok()) {
      members.push_back(*std::move(shm));
    } else {
      BPS_LOG(log, kInfo) << "processes of this host are reached over the network, too: "
                          << std::string(shm.status().message());
    }
  }
  absl::StatusOr<Transport> last = registry->OpenTransport(network, local_host);
  if (!last.ok()) return last.status();
  members.push_back(*std::move(last));
  return MakeTransportSet(std::move(members));
}

absl::StatusOr<std::string> MemberAddress(const std::string& address, const std::string& name) {
  for (const Entry& entry : ReadList(address).value_or(std::vector<Entry>())) {
    if (entry.name == name) return entry.address;
  }
  return absl::NotFoundError(absl::StrCat("this address has no entry of the transport \"", name, "\""));
}

}  // namespace byteps
