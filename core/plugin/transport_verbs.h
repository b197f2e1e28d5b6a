// transport_verbs.h - what can be done with a transport, whichever it is: a plugin (plugin_transport.h), or several
// transports as one (core/transports/transport_set.h).
//
// The verbs are those of abi/transport.h, which has their contract: what is set up answers with a Status, what is on
// the hot path with a code of byteps.h. Ending it closes the transport; regions must be unregistered by then.
//
// Threads: as abi/transport.h says: one at a time.
#ifndef BYTEPS_CORE_PLUGIN_TRANSPORT_VERBS_H_
#define BYTEPS_CORE_PLUGIN_TRANSPORT_VERBS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "abi/transport.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace byteps {

class TransportVerbs {
 public:
  virtual ~TransportVerbs() = default;

  // Valid as long as this; they do not change.
  virtual const bps_transport_caps& caps() const = 0;
  // Of the way to one connected peer; nullptr: those of caps().
  virtual const bps_transport_caps* CapsOf(bps_peer peer) const { return (void)peer, nullptr; }
  // What leads to one connected peer; "": this.
  virtual std::string_view NameOf(bps_peer peer) const { return (void)peer, std::string_view(); }
  // Does RegShared make a difference: can peers map what was registered so?
  virtual bool shares() const = 0;

  virtual absl::StatusOr<std::string> Address() = 0;
  virtual absl::Status Connect(const bps_connect_args& args) = 0;
  virtual int32_t Disconnect(bps_peer peer) = 0;

  virtual absl::Status Reg(void* base, size_t size, bps_region** region) = 0;
  virtual absl::Status Allocate(size_t size, bps_region** region, void** base) = 0;
  // Only with BPS_TRANSPORT_CUDA.
  virtual absl::Status RegDevice(const bps_device_memory& memory, bps_region** region) = 0;
  virtual absl::Status RegShared(void* base, size_t size, int fd, bps_region** region) = 0;
  virtual void Unreg(bps_region* region) = 0;
  virtual int32_t ExportKey(bps_region* region, bps_peer peer, void* key) = 0;

  virtual int32_t PostSend(bps_peer peer, const void* data, size_t size, uint64_t user) = 0;
  virtual int32_t PostWrite(bps_peer peer, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                            uint64_t user) = 0;
  // BPS_UNIMPLEMENTED: PostSend, then PostWrite.
  virtual int32_t PostSendAndWrite(bps_peer peer, std::span<const std::byte> message, const bps_local& from,
                                   size_t size, const bps_remote& to, uint32_t immediate, uint64_t user) = 0;
  virtual int32_t PostRead(bps_peer peer, const bps_local& to, size_t size, const bps_remote& from, uint64_t user) = 0;

  virtual int32_t MapRemote(bps_peer peer, const bps_remote& remote, size_t size, void** base) = 0;
  virtual void UnmapRemote(bps_peer peer, const bps_remote& remote) = 0;
  // BPS_UNIMPLEMENTED: CopyTo is the way.
  virtual int32_t BeginWrite(bps_peer peer, const bps_remote& remote, size_t size, void** base) = 0;
  virtual void EndWrite(bps_peer peer, const bps_remote& remote) = 0;
  virtual int32_t CopyFrom(bps_peer peer, const bps_remote& from, void* to, size_t size) = 0;
  virtual int32_t CopyTo(bps_peer peer, const bps_remote& to, const void* from, size_t size) = 0;

  virtual size_t Poll(bps_event* events, size_t capacity) = 0;
  virtual void Release(uint64_t lease) = 0;
  // Only with BPS_TRANSPORT_WAIT_FD.
  virtual int WaitFd() = 0;
  virtual bool Arm() = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_TRANSPORT_VERBS_H_
