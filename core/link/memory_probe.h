// memory_probe.h - can another process copy from and to our memory, and we from and to its? It is tried, not guessed.
//
// Who wants to know whether its memory is reached:              Who is asked:
//
//     probe.Open(own_number);                                       probe.OnProbe(now, peer, who, body);
//     probe.Ask(peer, who);                  // PROBE            probe.Answer(now);            // REACH, when it knows
//     MemoryProbe::ReadReach(body)           // REACH            probe.NextTimer(now);         // when to call it again
//
// Eight bytes are read, and written back as they are. What the system refuses at first is tried for a while: it may yet
// permit it (Yama: the other side grants access when it is told of the refusal).
//
// Threads: none; driven by the thread that drives the endpoint. Destroyed before it.
#ifndef BYTEPS_CORE_LINK_MEMORY_PROBE_H_
#define BYTEPS_CORE_LINK_MEMORY_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/link/endpoint.h"
#include "core/plugin/region.h"
#include "core/wire/wire.h"

namespace byteps {

class MemoryProbe {
 public:
  // `instead`, for the log: what happens to tensors that cannot be reached, "they are copied into shared memory".
  MemoryProbe(Endpoint* endpoint, std::string instead, Logger* log);

  // Registers the eight bytes that the others read.
  absl::Status Open(uint64_t value);
  // No memory of ours is shown any more.
  void Close() { region_ = Region(); }
  absl::Status Ask(PeerId peer, const std::string& who);
  // What a REACH says; nothing if no member of this release sends such a thing.
  static std::optional<bool> ReadReach(std::span<const std::byte> body);

  // False: no member of this release sends such a thing.
  bool OnProbe(Time now, PeerId peer, std::string who, std::span<const std::byte> body);
  // True if any peer was answered.
  bool Answer(Time now);
  Time NextTimer(Time now) const;
  // It is not answered any more.
  void Forget(PeerId peer);
  // Takes back that its memory is reached.
  void Retract(PeerId peer);

 private:
  struct Question {
    PeerId peer;
    std::string who;
    wire::ProbeBody body;
    Time until;
  };

  bool Try(const Question& question);

  Endpoint* const endpoint_;
  const std::string instead_;
  Logger* const log_;
  uint64_t value_ = 0;  // what probes read
  Region region_;       // it
  std::vector<Question> questions_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_LINK_MEMORY_PROBE_H_
