// neighbours.h - the workers of a host that reduce among themselves: who they are, and whether they reach our memory.
//
//     Neighbours neighbours(&endpoint, log);
//     neighbours.Join(now, epoch, self, first_rank, size);
//     neighbours.OnReady(index);                  // linked: asks it to read eight bytes of ours
//     if (neighbours.ready()) ...                 // all have reported whether they could
//     if (neighbours.staged()) ...                // one of them could not: our tensors must be shown as copies
//
// They are numbered in rank order, this worker included; a worker's number at the endpoint of another is that plus 1.
//
// Threads: none; driven by the thread that drives the local stage.
#ifndef BYTEPS_CORE_WORKER_LOCAL_NEIGHBOURS_H_
#define BYTEPS_CORE_WORKER_LOCAL_NEIGHBOURS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "core/link/endpoint.h"
#include "core/link/memory_probe.h"

namespace byteps {

class Neighbours {
 public:
  Neighbours(Endpoint* endpoint, Logger* log);

  // Those of ranks [first, first + size), `self` among them. Connects to the others.
  absl::Status Join(Time now, const control::Epoch& epoch, const control::Member& self, uint32_t first, uint32_t size);
  // No memory of ours is shown any more.
  void Stop() { probe_.Close(); }

  size_t size() const { return members_.size(); }
  size_t own() const { return own_; }
  uint32_t rank(size_t index) const { return members_[index].rank; }
  // Its number in the job.
  uint32_t member(size_t index) const { return members_[index].member; }
  uint32_t own_rank() const { return members_[own_].rank; }
  // "rank 1 (worker, host a, 10.0.0.1, pid 42)"
  const std::string& description(size_t index) const { return members_[index].description; }
  // The place of a rank of the job among them; nothing if it runs elsewhere.
  std::optional<size_t> Find(int64_t rank) const;

  static PeerId PeerOf(size_t index) { return static_cast<PeerId>(index + 1); }
  static size_t IndexOf(PeerId peer) { return peer - 1; }

  absl::Status OnReady(size_t index);
  // False: no member of this release sends such a thing.
  bool OnProbe(Time now, size_t index, std::span<const std::byte> body);
  bool OnReach(size_t index, std::span<const std::byte> body);
  // Looks whether we reach the memory of those that asked. True if any was answered.
  bool Answer(Time now) { return probe_.Answer(now); }
  // When to call it again.
  Time NextTimer(Time now) const { return probe_.NextTimer(now); }

  bool ready() const { return reached_ == members_.size(); }
  // Which of them have not reported yet.
  std::string Missing() const;
  bool staged() const { return staged_; }

  void Lose(size_t index, const absl::Status& why);
  // The first that is lost; nothing if none is.
  std::optional<size_t> FirstLost() const;
  const absl::Status& lost(size_t index) const { return members_[index].lost; }

  // One line per member: for logs and tests.
  std::string Describe() const;
  // Those of these indices, for people: "rank 1 (...), rank 3 (...)".
  template <typename Which>
  std::string Describe(const Which& which) const {
    std::string text;
    for (size_t index = 0; index < members_.size(); ++index) {
      if (which(index)) text += (text.empty() ? "" : ", ") + members_[index].description;
    }
    return text;
  }

 private:
  struct Member {
    uint32_t rank = 0;
    uint32_t member = 0;
    std::string description;
    bool ready = false;    // linked
    bool reached = false;  // and it has said whether it can reach our memory
    absl::Status lost;     // why it cannot be reached any more
  };

  Endpoint* const endpoint_;
  MemoryProbe probe_;
  std::vector<Member> members_;
  size_t own_ = 0;
  size_t reached_ = 0;
  bool staged_ = false;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_LOCAL_NEIGHBOURS_H_
