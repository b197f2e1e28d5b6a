#include "tests/transport_plugins/libfabric/adverse_wire.h"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "tests/transport_plugins/libfabric/device_wire.h"
#include "transport_plugins/libfabric/datagram_endpoint.h"
#include "transport_plugins/libfabric/datagram_transport.h"

namespace byteps::fabric {
namespace {

// Rounds that a completion may be late.
constexpr uint64_t kMostRounds = 12;

// Stations of one test differ, and a test does the same each time.
std::atomic<uint64_t> g_seed{1};

}  // namespace

int AdverseWire::Receive(void* buffer, size_t size, void* descriptor, fi_context2* context) {
  return Refuses() ? -FI_EAGAIN : wire_.Receive(buffer, size, descriptor, context);
}

int AdverseWire::Send(fi_addr_t to, const void* data, size_t size, void* descriptor, fi_context2* context) {
  return Refuses() ? -FI_EAGAIN : wire_.Send(to, data, size, descriptor, context);
}

int AdverseWire::Write(fi_addr_t to, const void* data, size_t size, void* descriptor, uint32_t immediate,
                       const RemoteMemory& at, fi_context2* context) {
  return Refuses() ? -FI_EAGAIN : wire_.Write(to, data, size, descriptor, immediate, at, context);
}

size_t AdverseWire::Read(WireCompletion* completions, size_t capacity) {
  ++round_;
  WireCompletion fresh[32];
  while (const size_t count = wire_.Read(fresh, std::size(fresh))) {
    for (size_t i = 0; i < count; ++i) held_.push_back({std::move(fresh[i]), round_ + random_() % kMostRounds});
  }
  std::shuffle(held_.begin(), held_.end(), random_);
  size_t given = 0;
  for (size_t i = 0; i < held_.size() && given < capacity;) {
    if (held_[i].round > round_) {
      ++i;
      continue;
    }
    completions[given++] = std::move(held_[i].completion);
    held_[i] = std::move(held_.back());
    held_.pop_back();
  }
  return given;
}

std::unique_ptr<Transport> OpenAdverse(const Provider& provider, const transports::Host& host,
                                       const bps_transport_open_args& args, std::string* reason) {
  std::unique_ptr<DatagramEndpoint> endpoint = DatagramEndpoint::Open(provider, host, args, reason);
  if (endpoint == nullptr) return nullptr;
  auto wire = std::make_unique<AdverseWire>(*endpoint, g_seed++);
  return std::make_unique<DatagramTransport>(host, std::move(endpoint), std::move(wire), args.job_key);
}

std::unique_ptr<Transport> OpenAdverseDevice(const Provider& provider, const transports::Host& host,
                                             const bps_transport_open_args& args, std::string* reason) {
  std::unique_ptr<DatagramEndpoint> endpoint = DatagramEndpoint::Open(provider, host, args, reason);
  if (endpoint == nullptr) return nullptr;
  const uint64_t seed = g_seed++;
  auto wire = std::make_unique<AdverseWire>(std::make_unique<DeviceWire>(endpoint.get(), seed), seed);
  return std::make_unique<DatagramTransport>(host, std::move(endpoint), std::move(wire), args.job_key);
}

}  // namespace byteps::fabric
