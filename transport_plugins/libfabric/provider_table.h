// provider_table.h - the libfabric providers this transport is built for, and all in which they differ.
//
// One row per plugin (libbyteps_transport_<name>.so). No other file asks which provider it runs on: a difference is a
// field here. A new provider is a row and a bps_cc_plugin in BUILD.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PROVIDER_TABLE_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PROVIDER_TABLE_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace byteps::fabric {

// Messages of one peer that its owner may have unreleased.
inline constexpr uint32_t kReceivePool = 64;

// What carries a write.
enum class Writes {
  kRemote,       // the provider's remote writes
  kMessages,     // messages: its writes cannot be stopped
  kByTheDevice,  // remote writes where the device does them itself, else messages
};

struct Provider {
  const char* name;         // of the plugin
  const char* description;  // one line, for people
  const char* fabric_name;  // what libfabric calls it; asked for by exactly this name
  const char* missing;      // what to do when libfabric does not offer it
  bool connected;           // a connection (FI_EP_MSG) to each peer; else one endpoint (FI_EP_RDM) for all
  Writes writes;
  bool lanes;  // a thread does not fill the network: several may share the work (lane_count.h)

  // -- Sizes, for each peer --

  uint32_t depth;           // operations under way at most
  uint32_t spare_receives;  // receives beyond the owner's pool: for announcements, for writes that take one
  constexpr uint32_t receives() const { return kReceivePool + spare_receives; }

  // -- Quirks --

  // Closing a registration only refuses writes that have not begun: the rest of one that is half received still lands.
  // Writers then announce each write, so that the target knows what is under way (see Peer::Announced).
  bool write_outlives_registration;
  // Registration costs less than a copy of 64 KiB (BPS_TRANSPORT_CHEAP_REG).
  bool cheap_registration;
  // Addresses are those of network interfaces: bind one of them.
  bool ip_addressed;
  // What its device is called, which is one of /sys/class/infiniband: without one there, nothing else need be asked.
  // nullptr: needs no device.
  const char* device;
  // A completion costs system calls, and sends of one connection end in order: most are sent without one (peer.h).
  bool silent_sends;
  // The completion queue is a piece of hardware: who overruns it loses completions, so peers are counted.
  bool bounded_queue;
  // An immediate takes a posted receive of its peer (FI_RX_CQ_DATA), and so tells whose it is.
  bool immediate_takes_receive;
  // Registered memory is locked: RLIMIT_MEMLOCK counts, and a registration is not of addresses
  // (BPS_TRANSPORT_REG_ADDRESSES).
  bool locks_memory;
  // Its devices may read and write the memory of GPUs (FI_HMEM): it is asked whether these do.
  bool device_memory;
  // Connections are TCP sockets, which any process may open: its port is guarded (door.h).
  bool open_to_strangers;
  // Variables of the environment that the provider reads: set if they are not, before it is asked for the first time.
  struct Variable {
    const char* name;
    const char* value;
  };
  std::array<Variable, 2> environment;
};

// nullptr if there is no such row.
const Provider* FindProvider(std::string_view name);

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PROVIDER_TABLE_H_
