// transport.h - owns one instance of a transport plugin.
//
//     absl::StatusOr<Transport> transport = Transport::Open(plugin, args);
//     Transport simulated = Transport::Adopt(table, handle);   // an endpoint that somebody else opened
//
// The verbs are those of abi/transport.h, which has their contract; what is set up answers with a Status, what is on
// the hot path with the plugin's code. Closed on destruction; regions must be unregistered by then.
//
// A plugin is held to its contract (core/plugin/transport_audit.h): one that breaks it, or throws, is named in the cause
// with which all its peers go down. An adopted transport is not.
//
// Threads: as abi/transport.h says: one at a time.
#ifndef BYTEPS_CORE_PLUGIN_TRANSPORT_H_
#define BYTEPS_CORE_PLUGIN_TRANSPORT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "abi/transport.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plugin/transport_audit.h"

namespace byteps {

class Transport {
 public:
  static absl::StatusOr<Transport> Open(const bps_transport_plugin& plugin, const bps_transport_open_args& args);
  // Takes over `handle`, which `table` drives. `table` must outlive it.
  static Transport Adopt(const bps_transport_table* table, bps_transport* handle, std::string name = "");
  // For sets: the capabilities towards one peer; NULL: not known.
  using CapsOfPeer = const bps_transport_caps* (*)(const bps_transport* handle, bps_peer peer);
  void SetCapsOfPeer(CapsOfPeer caps_of) { caps_of_ = caps_of; }

  Transport(Transport&&) = default;
  Transport& operator=(Transport&&) = default;

  const bps_transport_caps& caps() const { return caps_; }
  // Of a set: those of the member that leads to this peer, as long as the peer is connected; else those of all. What a
  // peer is sent or shown may go by these; sizes of keys and messages are always those of caps().
  const bps_transport_caps& CapsOf(bps_peer peer) const {
    const bps_transport_caps* theirs = caps_of_ == nullptr ? nullptr : caps_of_(handle(), peer);
    return theirs == nullptr ? caps_ : *theirs;
  }
  bool Has(uint32_t capability) const { return (caps_.flags & capability) != 0; }
  // The plugin's name; of an adopted one what it was given.
  const std::string& name() const { return name_; }
  std::string provider() const { return caps_.provider == nullptr ? "" : caps_.provider; }

  absl::StatusOr<std::string> Address();
  absl::Status Connect(const bps_connect_args& args);
  int32_t Disconnect(bps_peer peer);

  absl::Status Reg(void* base, size_t size, bps_region** region);
  // Memory of the transport's own choice; UNIMPLEMENTED where it has none.
  absl::Status Allocate(size_t size, bps_region** region, void** base);
  // Memory that is a shared mapping of `fd`, which stays open until Unreg; where the transport makes no difference, it
  // is registered as any memory is.
  absl::Status RegShared(void* base, size_t size, int fd, bps_region** region);
  // Does it make a difference: can peers map what was registered so?
  bool shares() const { return shares_; }
  void Unreg(bps_region* region) { table_->unreg(handle(), region); }
  // `key`: caps().key_size bytes.
  int32_t ExportKey(bps_region* region, bps_peer peer, void* key) {
    return table_->export_key(handle(), region, peer, key);
  }

  int32_t PostSend(bps_peer peer, const void* data, size_t size, uint64_t user) {
    return Post(BPS_EVENT_SENT, "post_send", user, [&] { return table_->post_send(handle(), peer, data, size, user); });
  }
  int32_t PostWrite(bps_peer peer, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                    uint64_t user) {
    return Post(BPS_EVENT_WRITTEN, "post_write", user,
                [&] { return table_->post_write(handle(), peer, &from, size, &to, immediate, user); });
  }
  // BPS_UNIMPLEMENTED: PostSend, then PostWrite.
  int32_t PostSendAndWrite(bps_peer peer, std::span<const std::byte> message, const bps_local& from, size_t size,
                           const bps_remote& to, uint32_t immediate, uint64_t user) {
    if (!sends_and_writes_) return BPS_UNIMPLEMENTED;
    return Post(BPS_EVENT_WRITTEN, "post_send_and_write", user, [&] {
      return table_->post_send_and_write(handle(), peer, message.data(), message.size(), &from, size, &to, immediate,
                                         user);
    });
  }
  // Only with BPS_TRANSPORT_READ.
  int32_t PostRead(bps_peer peer, const bps_local& to, size_t size, const bps_remote& from, uint64_t user) {
    return Post(BPS_EVENT_READ, "post_read", user,
                [&] { return table_->post_read(handle(), peer, &to, size, &from, user); });
  }

  // Only with BPS_TRANSPORT_MAP_REMOTE.
  int32_t MapRemote(bps_peer peer, const bps_remote& remote, size_t size, void** base) {
    return table_->map_remote(handle(), peer, &remote, size, base);
  }
  // The pointer of one MapRemote is not used any more.
  void UnmapRemote(bps_peer peer, const bps_remote& remote) {
    if (unmaps_) table_->unmap_remote(handle(), peer, &remote);
  }
  // A pointer that may be written until EndWrite; BPS_UNIMPLEMENTED: CopyTo is the way.
  int32_t BeginWrite(bps_peer peer, const bps_remote& remote, size_t size, void** base) {
    return writes_ ? table_->begin_write(handle(), peer, &remote, size, base) : BPS_UNIMPLEMENTED;
  }
  void EndWrite(bps_peer peer, const bps_remote& remote) { table_->end_write(handle(), peer, &remote); }
  // Only with BPS_TRANSPORT_COPY.
  int32_t CopyFrom(bps_peer peer, const bps_remote& from, void* to, size_t size) {
    return table_->copy_from(handle(), peer, &from, to, size);
  }
  int32_t CopyTo(bps_peer peer, const bps_remote& to, const void* from, size_t size) {
    return table_->copy_to(handle(), peer, &to, from, size);
  }

  size_t Poll(bps_event* events, size_t capacity) {
    if (audit_ == nullptr) return table_->poll(handle(), events, capacity);
    size_t answered = 0;
    if (!audit_->broken()) {
      try {
        answered = table_->poll(handle(), events, capacity);
      } catch (...) {
        Thrown("poll");
      }
    }
    if (!says_why_) ForgetWhy(events, std::min(answered, capacity));
    return audit_->Check(events, answered, capacity);
  }
  void Release(uint64_t lease) { table_->release(handle(), lease); }

  // -1 without BPS_TRANSPORT_WAIT_FD.
  int WaitFd() { return Has(BPS_TRANSPORT_WAIT_FD) ? table_->wait_fd(handle()) : -1; }
  // True: it is safe to block on WaitFd.
  bool Arm() { return !Has(BPS_TRANSPORT_WAIT_FD) || table_->arm(handle()) == BPS_OK; }

 private:
  struct Closer {
    const bps_transport_table* table;
    void operator()(bps_transport* transport) const { table->close(transport); }
  };

  Transport(const bps_transport_table* table, bps_transport* handle);
  template <typename Call>
  int32_t Post(uint32_t type, const char* verb, uint64_t user, const Call& call) {
    if (audit_ == nullptr) return call();
    if (audit_->broken()) return BPS_UNAVAILABLE;
    int32_t code = BPS_UNAVAILABLE;
    try {
      code = call();
    } catch (...) {
      Thrown(verb);
    }
    if (code == BPS_OK) audit_->OnPosted(type, user);
    return code;
  }
  // Inside a handler: breaks the audit.
  void Thrown(const char* verb);
  // The region that the plugin has answered with success; there must be one.
  absl::Status Registered(const char* verb, const bps_region* region);
  static absl::Status CheckCaps(const std::string& subject, const bps_transport_caps& caps);
  static void ForgetWhy(bps_event* events, size_t count);
  bps_transport* handle() const { return handle_.get(); }

  const bps_transport_table* table_;
  std::unique_ptr<bps_transport, Closer> handle_;
  bps_transport_caps caps_{};
  bool shares_ = false;  // functions that a plugin may lack
  bool unmaps_ = false;
  bool writes_ = false;
  bool sends_and_writes_ = false;
  bool says_why_ = true;  // with PEER_DOWN
  CapsOfPeer caps_of_ = nullptr;
  std::string name_;
  std::unique_ptr<TransportAudit> audit_;  // of a plugin that was opened here
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_TRANSPORT_H_
