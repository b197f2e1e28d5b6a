// lossy_wire.h - datagrams of which the first are lost, over a provider that loses none.
//
//     auto wire = std::make_unique<LossyWire>(*endpoint, /*losses=*/2, FI_ENOTCONN);
//
// What a provider does that takes a packet for a connection which it then replaces by another: the packet never leaves,
// and its completion says so, or, where it lay in a socket already, does not.
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_LOSSY_WIRE_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_LOSSY_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>

#include "transport_plugins/libfabric/datagram_wire.h"

namespace byteps::fabric {

class LossyWire : public DatagramWire {
 public:
  // The first `losses` packets are lost, and their completions have `error`: a libfabric code, or 0. Calls go to
  // `wire`, which must outlive this.
  LossyWire(DatagramWire& wire, uint32_t losses, int error) : wire_(wire), losses_(losses), error_(error) {}

  // Sends that were asked for, whatever became of them.
  uint32_t asked() const { return asked_; }
  // Those before the first packet came in.
  uint32_t asked_unheard() const { return asked_unheard_; }
  uint32_t lost() const { return lost_; }

  int Receive(void* buffer, size_t size, void* descriptor, fi_context2* context) override;
  int Send(fi_addr_t to, const void* data, size_t size, void* descriptor, fi_context2* context) override;
  int Write(fi_addr_t to, const void* data, size_t size, void* descriptor, uint32_t immediate, const RemoteMemory& at,
            fi_context2* context) override;
  size_t Read(WireCompletion* completions, size_t capacity) override;
  bool Quiet() const override { return ended_.empty() && wire_.Quiet(); }

 private:
  DatagramWire& wire_;
  const uint32_t losses_;
  const int error_;
  uint32_t asked_ = 0, asked_unheard_ = 0, lost_ = 0;
  bool heard_ = false;
  std::unordered_set<void*> receives_;
  std::deque<WireCompletion> ended_;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_LOSSY_WIRE_H_
