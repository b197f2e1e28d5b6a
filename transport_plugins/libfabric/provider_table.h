// provider_table.h - the libfabric providers this transport is built for, and all in which they differ.
//
// One row per plugin (libbyteps_transport_<name>.so). No other file asks which provider it runs on: a difference is a
// field here. A new provider is a row and a bps_cc_plugin in BUILD.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PROVIDER_TABLE_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PROVIDER_TABLE_H_

#include <cstdint>
#include <string_view>

namespace byteps::fabric {

struct Provider {
  const char* name;         // of the plugin
  const char* description;  // one line, for people
  const char* fabric_name;  // what libfabric calls it; asked for by exactly this name
  const char* missing;      // what to do when libfabric does not offer it

  // -- Quirks --

  // Closing a registration only refuses writes that have not begun: the rest of one that is half received still lands.
  // Writers then announce each write, so that the target knows what is under way (see Peer::Announced).
  bool write_outlives_registration;
  // Registration costs less than a copy of 64 KiB (BPS_TRANSPORT_CHEAP_REG).
  bool cheap_registration;
  // Addresses are those of network interfaces: bind one of them.
  bool ip_addressed;
};

// nullptr if there is no such row.
const Provider* FindProvider(std::string_view name);

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_PROVIDER_TABLE_H_
