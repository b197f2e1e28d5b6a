#include "transport_plugins/sim/options.h"

#include <cstdlib>

namespace byteps::sim {

LinkOptions AdverseLink(Random& random) {
  LinkOptions link;
  link.latency = random.Between(0, 50 * kMicrosecond);
  link.jitter = random.Chance(0.5) ? random.Between(0, 200 * kMicrosecond) : 0;
  link.reorder = random.Chance(0.7) ? random.Between(0, 500 * kMicrosecond) : 0;
  if (random.Chance(0.5)) link.bytes_per_second = 1'000'000u << random.Below(14);
  return link;
}

EndpointOptions AdverseEndpoint(Random& random) {
  EndpointOptions endpoint;
  endpoint.flags = 0;
  for (uint32_t flag :
       {BPS_TRANSPORT_LOCAL_ANY, BPS_TRANSPORT_READ, BPS_TRANSPORT_CHEAP_REG, BPS_TRANSPORT_REG_ADDRESSES}) {
    if (random.Chance(0.5)) endpoint.flags |= flag;
  }
  endpoint.immediate_bits = random.Chance(0.5) ? 24 : 32;
  endpoint.receive_pool = static_cast<uint32_t>(random.Between(16, 32));
  endpoint.tx_depth = random.Chance(0.5) ? static_cast<uint32_t>(random.Between(1, 8)) : 64;
  endpoint.key_size = random.Chance(0.5) ? BPS_TRANSPORT_MAX_KEY : 16;
  endpoint.again = random.Chance(0.5) ? 0.3 : 0;
  endpoint.first_send = random.Chance(0.3) ? random.Between(0, 200 * kMillisecond) : 0;
  endpoint.written = static_cast<WrittenOrder>(random.Below(3));
  endpoint.immediate_names_peer = random.Chance(0.5);
  endpoint.down_needs_traffic = random.Chance(0.5);
  endpoint.disconnect_is_heard = random.Chance(0.5);
  endpoint.fence = random.Between(0, kMillisecond);
  return endpoint;
}

uint64_t SeedOr(uint64_t seed) {
  const char* text = std::getenv("BYTEPS_SIM_SEED");
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : seed;
}

}  // namespace byteps::sim
