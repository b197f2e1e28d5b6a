// transport_audit.h - holds what a transport plugin says to its contract.
//
//     TransportAudit audit("transport \"x\"");
//     audit.OnPosted(BPS_EVENT_WRITTEN, user);          // the plugin has accepted a write
//     count = audit.Check(events, table->poll(...), capacity);
//
// Checked are the answers that make no sense: more events than there is room for, an event of an unknown
// type, the end of an operation that was not posted or has ended before. The first one breaks the transport: from then
// on its events are not believed, and Check answers with one PEER_DOWN for each connected peer, whose cause names the
// plugin.
//
// Threads: none; belongs to its Transport.
#ifndef BYTEPS_CORE_PLUGIN_TRANSPORT_AUDIT_H_
#define BYTEPS_CORE_PLUGIN_TRANSPORT_AUDIT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "abi/transport.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace byteps {

class TransportAudit {
 public:
  // `title`: for people, "transport \"x\"".
  explicit TransportAudit(std::string title) : title_(std::move(title)) {}

  void OnConnected(bps_peer peer) { peers_.insert(peer); }
  // Accepted: one event with this `user` is to follow. `type`: of that event.
  void OnPosted(uint32_t type, uint64_t user) { ++operations_[{type, user}]; }
  // The peer is being disconnected. True: the plugin is broken, and Check says DISCONNECTED itself.
  bool OnDisconnect(bps_peer peer);

  // What of the plugin's answer to poll is to be believed: how many events there are now in `events`.
  size_t Check(bps_event* events, size_t answered, size_t capacity);

  // `what`: as it follows the plugin's name. The first one counts.
  void Break(std::string what);
  bool broken() const { return !why_.empty(); }
  // "was given up: transport \"x\" ...", or empty.
  const std::string& why() const { return why_; }

 private:
  bool CheckEvent(const bps_event& event);

  const std::string title_;
  std::string why_;
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, uint32_t> operations_;  // in flight, by type and user
  absl::flat_hash_set<bps_peer> peers_;
  std::vector<bps_peer> leaving_;  // of a broken plugin
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_TRANSPORT_AUDIT_H_
