// transport.h - owns one transport: an endpoint of a plugin, or several transports as one.
//
//     absl::StatusOr<Transport> transport = Transport::Open(plugin, args);
//     Transport simulated = Transport::Adopt(table, handle);   // an endpoint that was opened elsewhere
//     Transport set(std::make_unique<TransportSet>(...), "tcp");
//
// Who uses it need not know which of these it is (transport_verbs.h). Closed on destruction; regions must be
// unregistered by then.
//
// Threads: as abi/transport.h says: one at a time.
#ifndef BYTEPS_CORE_PLUGIN_TRANSPORT_H_
#define BYTEPS_CORE_PLUGIN_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "abi/transport.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plugin/plugin_calls.h"
#include "core/plugin/transport_verbs.h"

namespace byteps {

class Transport {
 public:
  // `calls`, if given, outlives it and tells which function of the plugin runs.
  static absl::StatusOr<Transport> Open(const bps_transport_plugin& plugin, const bps_transport_open_args& args,
                                        PluginCalls* calls = nullptr);
  // Takes over `handle`, which `table` drives. `table` must outlive it.
  static Transport Adopt(const bps_transport_table* table, bps_transport* handle, std::string name = "");
  // `name`: for people, and for peers to tell transports apart.
  Transport(std::unique_ptr<TransportVerbs> verbs, std::string name);

  Transport(Transport&&) = default;
  Transport& operator=(Transport&&) = default;

  const bps_transport_caps& caps() const { return *caps_; }
  // Of a set: those of the member that leads to this peer, as long as the peer is connected; else those of all. What a
  // peer is sent or shown may go by these; sizes of keys and messages are always those of caps().
  const bps_transport_caps& CapsOf(bps_peer peer) const {
    const bps_transport_caps* theirs = verbs_->CapsOf(peer);
    return theirs == nullptr ? *caps_ : *theirs;
  }
  // Of a set: the name of the member that leads to this peer, as long as the peer is connected; else name().
  std::string_view NameOf(bps_peer peer) const {
    const std::string_view theirs = verbs_->NameOf(peer);
    return theirs.empty() ? std::string_view(name_) : theirs;
  }
  bool Has(uint32_t capability) const { return (caps_->flags & capability) != 0; }
  // The plugin's name; of another one what it was given.
  const std::string& name() const { return name_; }
  std::string provider() const { return caps_->provider == nullptr ? "" : caps_->provider; }

  absl::StatusOr<std::string> Address() { return verbs_->Address(); }
  absl::Status Connect(const bps_connect_args& args) { return verbs_->Connect(args); }
  int32_t Disconnect(bps_peer peer) { return verbs_->Disconnect(peer); }

  absl::Status Reg(void* base, size_t size, bps_region** region) { return verbs_->Reg(base, size, region); }
  // Memory of a GPU; UNIMPLEMENTED without BPS_TRANSPORT_CUDA.
  absl::Status RegDevice(const bps_device_memory& memory, bps_region** region) {
    return verbs_->RegDevice(memory, region);
  }
  // Memory of the transport's own choice; UNIMPLEMENTED where it has none.
  absl::Status Allocate(size_t size, bps_region** region, void** base) { return verbs_->Allocate(size, region, base); }
  // Memory that is a shared mapping of `fd`, which stays open until Unreg; where the transport makes no difference, it
  // is registered as any memory is.
  absl::Status RegShared(void* base, size_t size, int fd, bps_region** region) {
    return shares() ? verbs_->RegShared(base, size, fd, region) : Reg(base, size, region);
  }
  // Does it make a difference: can peers map what was registered so?
  bool shares() const { return verbs_->shares(); }
  void Unreg(bps_region* region) { verbs_->Unreg(region); }
  // `key`: caps().key_size bytes.
  int32_t ExportKey(bps_region* region, bps_peer peer, void* key) { return verbs_->ExportKey(region, peer, key); }

  int32_t PostSend(bps_peer peer, const void* data, size_t size, uint64_t user) {
    return verbs_->PostSend(peer, data, size, user);
  }
  int32_t PostWrite(bps_peer peer, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                    uint64_t user) {
    return verbs_->PostWrite(peer, from, size, to, immediate, user);
  }
  // BPS_UNIMPLEMENTED: PostSend, then PostWrite.
  int32_t PostSendAndWrite(bps_peer peer, std::span<const std::byte> message, const bps_local& from, size_t size,
                           const bps_remote& to, uint32_t immediate, uint64_t user) {
    return verbs_->PostSendAndWrite(peer, message, from, size, to, immediate, user);
  }
  // Only with BPS_TRANSPORT_READ.
  int32_t PostRead(bps_peer peer, const bps_local& to, size_t size, const bps_remote& from, uint64_t user) {
    return verbs_->PostRead(peer, to, size, from, user);
  }

  // Only with BPS_TRANSPORT_MAP_REMOTE.
  int32_t MapRemote(bps_peer peer, const bps_remote& remote, size_t size, void** base) {
    return verbs_->MapRemote(peer, remote, size, base);
  }
  // The pointer of one MapRemote is not used any more.
  void UnmapRemote(bps_peer peer, const bps_remote& remote) { verbs_->UnmapRemote(peer, remote); }
  // A pointer that may be written until EndWrite; BPS_UNIMPLEMENTED: CopyTo is the way.
  int32_t BeginWrite(bps_peer peer, const bps_remote& remote, size_t size, void** base) {
    return verbs_->BeginWrite(peer, remote, size, base);
  }
  void EndWrite(bps_peer peer, const bps_remote& remote) { verbs_->EndWrite(peer, remote); }
  // Only with BPS_TRANSPORT_COPY.
  int32_t CopyFrom(bps_peer peer, const bps_remote& from, void* to, size_t size) {
    return verbs_->CopyFrom(peer, from, to, size);
  }
  int32_t CopyTo(bps_peer peer, const bps_remote& to, const void* from, size_t size) {
    return verbs_->CopyTo(peer, to, from, size);
  }

  size_t Poll(bps_event* events, size_t capacity) { return verbs_->Poll(events, capacity); }
  void Release(uint64_t lease) { verbs_->Release(lease); }

  // -1 without BPS_TRANSPORT_WAIT_FD.
  int WaitFd() { return Has(BPS_TRANSPORT_WAIT_FD) ? verbs_->WaitFd() : -1; }
  // True: it is safe to block on WaitFd.
  bool Arm() { return !Has(BPS_TRANSPORT_WAIT_FD) || verbs_->Arm(); }

 private:
  std::unique_ptr<TransportVerbs> verbs_;
  const bps_transport_caps* caps_;
  std::string name_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_TRANSPORT_H_
