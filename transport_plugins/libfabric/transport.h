// transport.h - one endpoint of this process as abi/transport.h describes it, on a libfabric provider.
//
//     std::unique_ptr<Transport> transport = OpenTransport(provider, host, args, &reason);
//     transport->Connect(args, &reason); transport->PostWrite(...); transport->Poll(events, n);
//
// There are two kinds: ConnectedTransport has a connection to each peer (tcp, verbs), DatagramTransport one endpoint
// for all of them (efa). Which one a provider gets is said in provider_table.h.
//
// Threads: one at a time.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_TRANSPORT_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "abi/transport.h"
#include "transport_plugins/common/host.h"

namespace byteps::fabric {

class Transport {
 public:
  explicit Transport(const transports::Host& host) : host_(host) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  const transports::Host& host() const { return host_; }

  // As the functions of bps_transport_table; those with a `reason` say why they answer other than BPS_OK.
  virtual void Caps(bps_transport_caps* caps) const = 0;
  virtual void WriteAddress(void* out, size_t* size) const = 0;
  virtual int32_t Connect(const bps_connect_args& args, std::string* reason) = 0;
  virtual int32_t Disconnect(bps_peer number) = 0;
  virtual int32_t Reg(void* base, size_t size, bps_region** region, std::string* reason) = 0;
  // Only with BPS_TRANSPORT_CUDA.
  virtual int32_t RegDevice(const bps_device_memory& memory, bps_region** region, std::string* reason) {
    (void)memory, (void)region;
    *reason = "this transport registers no memory of GPUs";
    return BPS_UNIMPLEMENTED;
  }
  virtual void Unreg(bps_region* region) = 0;
  virtual int32_t ExportKey(bps_region* region, bps_peer peer, void* key) = 0;
  virtual int32_t PostSend(bps_peer number, const void* data, size_t size, uint64_t user) = 0;
  virtual int32_t PostWrite(bps_peer number, const bps_local& from, size_t size, const bps_remote& to,
                            uint32_t immediate, uint64_t user) = 0;
  virtual int32_t PostSendAndWrite(bps_peer number, std::span<const std::byte> message, const bps_local& from,
                                   size_t size, const bps_remote& to, uint32_t immediate, uint64_t user) {
    (void)number, (void)message, (void)from, (void)size, (void)to, (void)immediate, (void)user;
    return BPS_UNIMPLEMENTED;
  }
  virtual size_t Poll(bps_event* events, size_t capacity) = 0;
  virtual void Release(uint64_t lease) = 0;
  virtual int WaitFd() const = 0;
  virtual int32_t Arm() = 0;

 protected:
  const transports::Host host_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_TRANSPORT_H_
