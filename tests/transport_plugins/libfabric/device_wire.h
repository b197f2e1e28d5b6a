// device_wire.h - the writes of a device, imitated over a provider whose own cannot be stopped.
//
// What EFA's device promises, and TCP's provider does not: memory is written in any order, without its owner's help,
// and not a byte of it after its registration, or that of the memory it is read from, was closed. Everything local is
// registered, and addresses are virtual. All endpoints are of this process, so that a write is a copy.
//
// A write goes on in small steps while its own side polls, as EFA's progress is made. When all has landed, a message of
// the provider brings the immediate, and wakes who sleeps.
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_DEVICE_WIRE_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_DEVICE_WIRE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "transport_plugins/libfabric/datagram_endpoint.h"
#include "transport_plugins/libfabric/datagram_wire.h"

namespace byteps::fabric {

class DeviceWire : public DatagramWire {
 public:
  // From now on memory is registered with this device. The endpoint must outlive it.
  DeviceWire(DatagramEndpoint* endpoint, uint64_t seed);

  int Receive(void* buffer, size_t size, void* descriptor, fi_context2* context) override;
  int Send(fi_addr_t to, const void* data, size_t size, void* descriptor, fi_context2* context) override;
  int Write(fi_addr_t to, const void* data, size_t size, void* descriptor, uint32_t immediate, const RemoteMemory& at,
            fi_context2* context) override;
  size_t Read(WireCompletion* completions, size_t capacity) override;
  bool Quiet() const override;

 private:
  struct Bell {
    uint64_t mark;
    uint64_t immediate;
  };
  struct Flight {
    fi_context2 scratch;  // of the provider, for the bell; first
    fi_addr_t to;
    const std::byte* data;
    size_t size;
    void* descriptor;
    RemoteMemory at;
    fi_context2* context;
    std::vector<size_t> steps;  // offsets of what has not landed
    Bell bell;
    bool rung = false;
    int error = 0;
  };
  struct Posted {
    void* buffer;
    size_t size;
  };

  void Fly();
  void Step(Flight* flight);

  DatagramEndpoint& endpoint_;
  std::mt19937_64 random_;
  std::list<Flight> flights_;
  std::unordered_map<void*, Posted> posted_;  // receives, by their context
  std::vector<void*> again_;                  // those that a bell has used
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGINS_LIBFABRIC_DEVICE_WIRE_H_
