// options.h - the knobs of the simulated fabric. Every default is a well-behaved network; `Adverse` draws a bad one.
//
//     FabricOptions options;
//     options.seed = 7;
//     options.link.latency = 20'000;
//     options.endpoint = Adverse(random);
//
// Times are nanoseconds of the virtual clock.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SIM_OPTIONS_H_
#define BYTEPS_TRANSPORT_PLUGINS_SIM_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "abi/transport.h"
#include "transport_plugins/sim/random.h"

namespace byteps::sim {

using Time = int64_t;

inline constexpr Time kMicrosecond = 1'000;
inline constexpr Time kMillisecond = 1'000'000;
inline constexpr Time kSecond = 1'000'000'000;

// One direction between two nodes.
struct LinkOptions {
  Time latency = 5 * kMicrosecond;
  Time jitter = 0;   // each transfer takes up to this much longer
  Time reorder = 0;  // writes take up to this much longer, each on its own: they overtake writes and messages
  uint64_t bytes_per_second = 0;  // 0: unlimited
};

// When the writer hears WRITTEN, compared to the IMMEDIATE at the target.
enum class WrittenOrder { kBefore, kAfter, kEither };

struct EndpointOptions {
  // -- What caps() says --
  uint32_t flags = BPS_TRANSPORT_LOCAL_ANY | BPS_TRANSPORT_READ;
  uint32_t immediate_bits = 32;
  uint32_t max_message = 16384;
  uint32_t receive_pool = 16;
  uint32_t tx_depth = 64;
  uint32_t key_size = 24;  // 16 .. BPS_TRANSPORT_MAX_KEY
  uint64_t max_transfer = uint64_t{1} << 30;
  uint32_t alignment = 1;
  std::string provider = "sim";

  // -- How it behaves --
  double again = 0;     // probability that a post is answered with AGAIN for no reason
  double apart = 0.5;   // probability that a message and a write have to be posted one by one
  Time first_send = 0;  // posts to a peer are answered with AGAIN until this long after the first one
  WrittenOrder written = WrittenOrder::kBefore;
  bool immediate_names_peer = true;  // false: IMMEDIATE carries BPS_PEER_UNKNOWN
  uint64_t bytes_per_second = 0;     // of the whole endpoint, each way; 0: unlimited
  std::string nic;  // endpoints of one name share that rate, and do without it among themselves; "": its own
  uint64_t socket_bytes =
      0;                // so many of a connection lie in a buffer, and count as sent, until they leave: TCP's kernel
  Time overhead = 500;  // each operation costs at least this, however small
  bool down_needs_traffic = false;  // a dead peer is noticed only by who has something under way to it
  bool disconnect_is_heard = true;  // the other side of a disconnect sees PEER_DOWN
  Time fence = 10 * kMicrosecond;   // from disconnect() to DISCONNECTED

  Time map_delay = 0;         // memory can be mapped so long after the first try; until then AGAIN
  bool copy_refused = false;  // only memory from allocate() can be mapped and copied, as where a system forbids it

  // Called with each span of time in which one transfer has the rate for itself, out of this node or into it.
  std::function<void(const std::string& node, bool out, Time begin, Time end)> carries;

  // Called whenever the endpoint should be polled: an event waits, or what was answered with AGAIN may go. Runs inside
  // the fabric: may only take note.
  std::function<void()> wake;
};

struct FabricOptions {
  uint64_t seed = 1;
  LinkOptions link;                // of all pairs of nodes, until SetLink
  EndpointOptions endpoint;        // what Open uses unless told otherwise
  Time down_delay = kMillisecond;  // from the death of a node until its peers notice, plus up to the same again
  bool split_streams = true;       // bytes of a stream arrive in other pieces than they were written
  bool trace = false;              // tell every step on stderr; also by BYTEPS_SIM_TRACE=1
  // Called when an endpoint breaks the contract. Default: says what, when and which seed on stderr, and aborts.
  std::function<void(const std::string& what)> violation;
};

// A link and an endpoint as bad as the contract allows, drawn at random: what runs on these runs anywhere.
LinkOptions AdverseLink(Random& random);
EndpointOptions AdverseEndpoint(Random& random);

// A seed per test run: BYTEPS_SIM_SEED if set (to replay one run), else `seed`.
uint64_t SeedOr(uint64_t seed);

}  // namespace byteps::sim

#endif  // BYTEPS_TRANSPORT_PLUGINS_SIM_OPTIONS_H_
