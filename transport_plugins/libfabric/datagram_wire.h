// datagram_wire.h - what DatagramTransport asks of a provider of reliable datagrams.
//
// DatagramEndpoint is that provider; a test puts a worse one in front of it: late and out of order, with EAGAIN at any
// time, as the documents of EFA allow.
//
// Codes are those of libfabric: 0, -FI_EAGAIN (nothing happened), or what went wrong for good.
// Threads: one at a time.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_WIRE_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_WIRE_H_

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace byteps::fabric {

struct WireCompletion {
  void* context = nullptr;  // not to be trusted where `remote`
  bool remote = false;      // an immediate of a peer's write has come: `data`
  uint64_t data = 0;
  size_t size = 0;  // of a message that has come
  int error = 0;    // a libfabric code; then `detail` says more
  std::string detail;
};

struct RemoteMemory {
  uint64_t address = 0, key = 0;
};

class DatagramWire {
 public:
  virtual ~DatagramWire() = default;

  virtual int Receive(void* buffer, size_t size, void* descriptor, fi_context2* context) = 0;
  virtual int Send(fi_addr_t to, const void* data, size_t size, void* descriptor, fi_context2* context) = 0;
  // Ends with a remote completion of `immediate` (32 bits) there.
  virtual int Write(fi_addr_t to, const void* data, size_t size, void* descriptor, uint32_t immediate,
                    const RemoteMemory& at, fi_context2* context) = 0;
  // Fetches completions, in no order; returns how many.
  virtual size_t Read(WireCompletion* completions, size_t capacity) = 0;
  // Whether nothing is kept back, so that it is safe to sleep.
  virtual bool Quiet() const = 0;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DATAGRAM_WIRE_H_
