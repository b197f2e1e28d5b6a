#include "core/transports/transport_set.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/plugin/plugin_host.h"

namespace byteps {
namespace {

constexpr char kMagic[4] = {'B', 'P', 'S', 'A'};
constexpr char kShm[] = "shm";

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
  std::vector<bps_region*> regions;  // by member; NULL: not registered there
  size_t allocated_by = SIZE_MAX;    // whose memory it is: unregistered last
};

class Set {
 public:
  explicit Set(std::vector<Member> members) : members_(std::move(members)) {
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

  const bps_transport_caps& caps() const { return caps_; }
  const bps_transport_caps* CapsOf(bps_peer peer) const {
    const auto found = routes_.find(peer);
    return found == routes_.end() ? nullptr : &members_[found->second].transport.caps();
  }

  std::string Address() const {
    std::string address(kMagic, sizeof kMagic);
    for (const Member& member : members_) {
      Append(&address, member.name);
      Append(&address, member.provider);
      Append(&address, member.address);
    }
    return address;
  }

  absl::Status Connect(const bps_connect_args& args) {
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

  int32_t Disconnect(bps_peer peer) {
    Member* member = Route(peer);
    return member == nullptr ? BPS_NOT_FOUND : member->transport.Disconnect(peer);
  }

  SetRegion* Reg(void* base, size_t size, int fd = -1) {
    auto* region = new SetRegion;
    region->fd = fd;
    region->base = static_cast<std::byte*>(base);
    region->size = size;
    region->regions.resize(members_.size());
    return region;
  }

  absl::Status Allocate(size_t size, SetRegion** out, void** base) {
    for (size_t i = 0; i < members_.size(); ++i) {
      bps_region* handle = nullptr;
      absl::Status status = members_[i].transport.Allocate(size, &handle, base);
      if (absl::IsUnimplemented(status)) continue;
      if (!status.ok()) return status;
      SetRegion* region = Reg(*base, size);
      region->regions[i] = handle;
      region->allocated_by = i;
      *out = region;
      return absl::OkStatus();
    }
    return absl::UnimplementedError("none of these transports allocates memory");
  }

  void Unreg(SetRegion* region) {
    for (size_t i = 0; i < members_.size(); ++i) {
      if (i != region->allocated_by && region->regions[i] != nullptr) members_[i].transport.Unreg(region->regions[i]);
    }
    if (region->allocated_by != SIZE_MAX) {
      members_[region->allocated_by].transport.Unreg(region->regions[region->allocated_by]);
    }
    delete region;
  }

  int32_t ExportKey(SetRegion* region, bps_peer peer, void* key) {
    Member* member = Route(peer);
    if (member == nullptr) return BPS_UNAVAILABLE;
    bps_region* inner = nullptr;
    if (absl::Status status = RegionAt(region, member, &inner); !status.ok()) return StatusCode(status);
    std::memset(key, 0, caps_.key_size);
    return member->transport.ExportKey(inner, peer, key);
  }

  int32_t PostSend(bps_peer peer, const void* data, size_t size, uint64_t user) {
    Member* member = Route(peer);
    return member == nullptr ? BPS_UNAVAILABLE : member->transport.PostSend(peer, data, size, user);
  }

  int32_t PostWrite(bps_peer peer, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                    uint64_t user) {
    return WithMember(peer, from, to, [&](Transport& transport, const bps_local& local, const bps_remote& remote) {
      return transport.PostWrite(peer, local, size, remote, immediate, user);
    });
  }

  int32_t PostSendAndWrite(bps_peer peer, std::span<const std::byte> message, const bps_local& from, size_t size,
                           const bps_remote& to, uint32_t immediate, uint64_t user) {
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
      const absl::Status status = RegionAt(reinterpret_cast<SetRegion*>(from.region), member, &local.region);
      if (!status.ok()) return StatusCode(status);
    }
    if (to.key_size < member->transport.caps().key_size) return BPS_INVALID_ARGUMENT;
    return post(member->transport, local, bps_remote{to.key, member->transport.caps().key_size, to.offset});
  }

  // Towards peers of a member that can.
  int32_t MapRemote(bps_peer peer, const bps_remote& remote, size_t size, void** base) {
    return Reach(peer, remote, BPS_TRANSPORT_MAP_REMOTE,
                 [&](Transport& to, const bps_remote& there) { return to.MapRemote(peer, there, size, base); });
  }
  void UnmapRemote(bps_peer peer, const bps_remote& remote) {
    Reach(peer, remote, BPS_TRANSPORT_MAP_REMOTE, [&](Transport& to, const bps_remote& there) -> int32_t {
      to.UnmapRemote(peer, there);
      return BPS_OK;
    });
  }
  int32_t BeginWrite(bps_peer peer, const bps_remote& remote, size_t size, void** base) {
    return Reach(peer, remote, 0,
                 [&](Transport& to, const bps_remote& there) { return to.BeginWrite(peer, there, size, base); });
  }
  void EndWrite(bps_peer peer, const bps_remote& remote) {
    Reach(peer, remote, 0, [&](Transport& to, const bps_remote& there) -> int32_t {
      to.EndWrite(peer, there);
      return BPS_OK;
    });
  }
  int32_t CopyFrom(bps_peer peer, const bps_remote& from, void* to, size_t size) {
    return Reach(peer, from, BPS_TRANSPORT_COPY,
                 [&](Transport& way, const bps_remote& there) { return way.CopyFrom(peer, there, to, size); });
  }
  int32_t CopyTo(bps_peer peer, const bps_remote& to, const void* from, size_t size) {
    return Reach(peer, to, BPS_TRANSPORT_COPY,
                 [&](Transport& way, const bps_remote& there) { return way.CopyTo(peer, there, from, size); });
  }

  size_t Poll(bps_event* events, size_t capacity) {
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

  void Release(uint64_t lease) {
    const auto [member, inner] = leases_[lease];
    free_leases_.push_back(lease);
    member->transport.Release(inner);
  }

  int WaitFd() const { return wait_.get(); }

  bool Arm() {
    bool armed = true;
    for (Member& member : members_) {
      // Whatever ends the sleep may be for a member that is not polled as a rule: somebody who calls too early.
      member.look = true;
      if (!member.transport.Arm()) armed = false;
    }
    return armed;
  }

 private:
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

Set* Unwrap(bps_transport* transport) { return reinterpret_cast<Set*>(transport); }
SetRegion* Unwrap(bps_region* region) { return reinterpret_cast<SetRegion*>(region); }

int32_t Answer(const absl::Status& status, bps_failure* failure) {
  if (status.ok()) return BPS_OK;
  const std::string reason(status.message());
  return PluginHost()->fail(failure, StatusCode(status), reason.c_str());
}

constexpr bps_transport_table kTable = {
    .struct_size = sizeof(bps_transport_table),
    .open = nullptr,  // made by MakeTransportSet
    .close = [](bps_transport* transport) { delete Unwrap(transport); },
    .caps =
        [](bps_transport* transport, bps_transport_caps* caps) {
          bps_transport_caps ours = Unwrap(transport)->caps();
          ours.struct_size = caps->struct_size;
          std::memcpy(caps, &ours, std::min(caps->struct_size, sizeof ours));
        },
    .address =
        [](bps_transport* transport, void* out, size_t* size, bps_failure* failure) {
          const std::string address = Unwrap(transport)->Address();
          if (address.size() > BPS_TRANSPORT_MAX_ADDRESS) {
            return Answer(absl::OutOfRangeError("the addresses of these transports are too long together"), failure);
          }
          std::memcpy(out, address.data(), address.size());
          *size = address.size();
          return BPS_OK;
        },
    .connect = [](bps_transport* transport, const bps_connect_args* args,
                  bps_failure* failure) { return Answer(Unwrap(transport)->Connect(*args), failure); },
    .disconnect = [](bps_transport* transport, bps_peer peer) { return Unwrap(transport)->Disconnect(peer); },
    .reg =
        [](bps_transport* transport, void* base, size_t size, bps_region** region, bps_failure*) {
          *region = reinterpret_cast<bps_region*>(Unwrap(transport)->Reg(base, size));
          return BPS_OK;
        },
    .unreg = [](bps_transport* transport, bps_region* region) { Unwrap(transport)->Unreg(Unwrap(region)); },
    .export_key = [](bps_transport* transport, bps_region* region, bps_peer peer,
                     void* key) { return Unwrap(transport)->ExportKey(Unwrap(region), peer, key); },
    .post_send = [](bps_transport* transport, bps_peer peer, const void* data, size_t size,
                    uint64_t user) { return Unwrap(transport)->PostSend(peer, data, size, user); },
    .post_write = [](bps_transport* transport, bps_peer peer, const bps_local* from, size_t size, const bps_remote* to,
                     uint32_t immediate,
                     uint64_t user) { return Unwrap(transport)->PostWrite(peer, *from, size, *to, immediate, user); },
    .poll = [](bps_transport* transport, bps_event* events,
               size_t capacity) { return Unwrap(transport)->Poll(events, capacity); },
    .release = [](bps_transport* transport, uint64_t lease) { Unwrap(transport)->Release(lease); },
    .post_read = nullptr,
    .map_remote = [](bps_transport* transport, bps_peer peer, const bps_remote* remote, size_t size,
                     void** base) { return Unwrap(transport)->MapRemote(peer, *remote, size, base); },
    .copy_from = [](bps_transport* transport, bps_peer peer, const bps_remote* from, void* to,
                    size_t size) { return Unwrap(transport)->CopyFrom(peer, *from, to, size); },
    .copy_to = [](bps_transport* transport, bps_peer peer, const bps_remote* to, const void* from,
                  size_t size) { return Unwrap(transport)->CopyTo(peer, *to, from, size); },
    .wait_fd = [](bps_transport* transport) -> int32_t { return Unwrap(transport)->WaitFd(); },
    .arm = [](bps_transport* transport) -> int32_t { return Unwrap(transport)->Arm() ? BPS_OK : BPS_TRANSPORT_AGAIN; },
    .allocate =
        [](bps_transport* transport, size_t size, bps_region** region, void** base, bps_failure* failure) {
          return Answer(Unwrap(transport)->Allocate(size, reinterpret_cast<SetRegion**>(region), base), failure);
        },
    .reg_shared =
        [](bps_transport* transport, void* base, size_t size, int32_t fd, bps_region** region, bps_failure*) {
          *region = reinterpret_cast<bps_region*>(Unwrap(transport)->Reg(base, size, fd));
          return BPS_OK;
        },
    .unmap_remote = [](bps_transport* transport, bps_peer peer,
                       const bps_remote* remote) { Unwrap(transport)->UnmapRemote(peer, *remote); },
    .begin_write = [](bps_transport* transport, bps_peer peer, const bps_remote* remote, size_t size,
                      void** base) { return Unwrap(transport)->BeginWrite(peer, *remote, size, base); },
    .end_write = [](bps_transport* transport, bps_peer peer,
                    const bps_remote* remote) { Unwrap(transport)->EndWrite(peer, *remote); },
    .post_send_and_write =
        [](bps_transport* transport, bps_peer peer, const void* message, size_t message_size, const bps_local* from,
           size_t size, const bps_remote* to, uint32_t immediate, uint64_t user) {
          return Unwrap(transport)->PostSendAndWrite(peer, {static_cast<const std::byte*>(message), message_size},
                                                     *from, size, *to, immediate, user);
        },
};

// Without a member that can show memory to other processes.
constexpr bps_transport_table kPrivateTable = [] {
  bps_transport_table table = kTable;
  table.reg_shared = nullptr;
  return table;
}();

}  // namespace

absl::StatusOr<Transport> MakeTransportSet(std::vector<Transport> transports) {
  std::vector<Member> members;
  bool shares = false;
  for (Transport& transport : transports) {
    shares |= transport.shares();
    absl::StatusOr<std::string> address = transport.Address();
    if (!address.ok()) return address.status();
    std::string name = transport.name();
    std::string provider = transport.provider();
    members.push_back({std::move(transport), std::move(name), std::move(provider), *std::move(address)});
  }
  const std::string name = members.back().name;
  Transport set = Transport::Adopt(shares ? &kTable : &kPrivateTable,
                                   reinterpret_cast<bps_transport*>(new Set(std::move(members))), name);
  set.SetCapsOfPeer(
      [](const bps_transport* handle, bps_peer peer) { return reinterpret_cast<const Set*>(handle)->CapsOf(peer); });
  return set;
}

absl::StatusOr<Transport> OpenTransports(PluginRegistry* registry, const Config& config, const std::string& network,
                                         const std::string& local_host, const Logger& log) {
  std::vector<Transport> members;
  if (config.GetBool("BYTEPS_SHM") && network != kShm) {
    absl::StatusOr<Transport> shm = registry->OpenTransport(kShm, local_host);
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
