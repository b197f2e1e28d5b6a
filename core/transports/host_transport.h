// host_transport.h - which transport carries what stays within a host.
//
// Core knows no plugin by name where it can ask one: whether workers reduce among themselves over a transport, map each
// other's memory or copy from it is a matter of its capabilities (LocalStage::Usable, BPS_TRANSPORT_COPY, MAP_REMOTE).
// Which plugin is asked first is another question. Only plugins that are wanted are loaded (their code runs then, and
// its libraries come with it), so the wanted one has a name before it can say anything: as the network's candidates
// (transport_choice.cc) and the scheduler's default (plugin_registry.cc) have. Another plugin takes its place under the
// same name, in a folder of BYTEPS_PLUGIN_PATH; BYTEPS_SHM=0 does without.
#ifndef BYTEPS_CORE_TRANSPORTS_HOST_TRANSPORT_H_
#define BYTEPS_CORE_TRANSPORTS_HOST_TRANSPORT_H_

namespace byteps {

inline constexpr char kHostTransport[] = "shm";

}  // namespace byteps

#endif  // BYTEPS_CORE_TRANSPORTS_HOST_TRANSPORT_H_
