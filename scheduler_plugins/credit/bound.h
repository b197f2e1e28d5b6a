// bound.h - what BYTEPS_SCHEDULING_CREDIT asks for.
//
//     std::optional<Bound> bound = Bound::Parse("16M", &reason);     // 16777216 bytes
//     bound->Bytes(largest)                                          // in bytes, where a partition has `largest`
//
// A plain number counts partitions, as in BytePS; with a unit (B, K, M, G, T, powers of 1024) it counts bytes; 0 is no
// bound. Unset: the plugin finds out by itself.
#ifndef BYTEPS_SCHEDULER_PLUGINS_CREDIT_BOUND_H_
#define BYTEPS_SCHEDULER_PLUGINS_CREDIT_BOUND_H_

#include <cstdint>
#include <optional>
#include <string>

namespace byteps::credit {

struct Bound {
  enum class Kind { kTuned, kUnbounded, kPartitions, kBytes };
  Kind kind = Kind::kTuned;
  uint64_t number = 0;

  // `text` may be nullptr: unset. Nothing, and one sentence, if it cannot be used.
  static std::optional<Bound> Parse(const char* text, std::string* reason);

  // The credit where the largest partition has so many bytes; not of kTuned. kUnbounded: UINT64_MAX.
  uint64_t Bytes(uint64_t largest) const;
};

}  // namespace byteps::credit

#endif  // BYTEPS_SCHEDULER_PLUGINS_CREDIT_BOUND_H_
