// adverse_wire.h - datagrams as the documents of EFA allow them, over a provider that is kinder than that.
//
// Every call may answer EAGAIN; completions are late, each by its own time, so they come in no order, and with them
// messages overtake each other and writes. What makes progress stops without polls.
//
// OpenAdverse is what plugin_entry.cc opens its transports with in tests: see BUILD.
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_ADVERSE_WIRE_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_ADVERSE_WIRE_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "transport_plugins/libfabric/datagram_wire.h"
#include "transport_plugins/libfabric/provider_table.h"
#include "transport_plugins/libfabric/transport.h"

namespace byteps::fabric {

class AdverseWire : public DatagramWire {
 public:
  // Calls go to `wire`, which must outlive this.
  AdverseWire(DatagramWire& wire, uint64_t seed) : wire_(wire), random_(seed) {}
  AdverseWire(std::unique_ptr<DatagramWire> wire, uint64_t seed) : own_(std::move(wire)), wire_(*own_), random_(seed) {}

  int Receive(void* buffer, size_t size, void* descriptor, fi_context2* context) override;
  int Send(fi_addr_t to, const void* data, size_t size, void* descriptor, fi_context2* context) override;
  int Write(fi_addr_t to, const void* data, size_t size, void* descriptor, uint32_t immediate, const RemoteMemory& at,
            fi_context2* context) override;
  size_t Read(WireCompletion* completions, size_t capacity) override;
  bool Quiet() const override { return held_.empty() && wire_.Quiet(); }

 private:
  struct Held {
    WireCompletion completion;
    uint64_t round;  // of Read, in which it comes
  };
  bool Refuses() { return random_() % 4 == 0; }

  const std::unique_ptr<DatagramWire> own_;
  DatagramWire& wire_;
  std::mt19937_64 random_;
  std::vector<Held> held_;
  uint64_t round_ = 0;
};

std::unique_ptr<Transport> OpenAdverse(const Provider& provider, const transports::Host& host,
                                       const bps_transport_open_args& args, std::string* reason);
// Likewise, and the writes are those of a device (device_wire.h).
std::unique_ptr<Transport> OpenAdverseDevice(const Provider& provider, const transports::Host& host,
                                             const bps_transport_open_args& args, std::string* reason);

}  // namespace byteps::fabric

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_ADVERSE_WIRE_H_
