// key_hash.h - the hashes by which BytePS placed keys on servers, for jobs that ask for them (BYTEPS_KEY_HASH_FN).
//
//     const KeyHash hash = {.function = KeyHash::Function::kDjb2};
//     uint32_t server = hash.Server(KeyHash::Key(tensor, part), servers);
//
// They take the key of a partition, the tensor's number in the order of declaration << 16 | the partition's number, and
// know nothing of sizes: shares are as even as chance makes them. "mixed" first decides, by djb2 modulo `bound`,
// whether a key goes to a dedicated server or to a colocated one, in the proportion that BytePS computed for them.
//
// Threads: a value.
#ifndef BYTEPS_SERVER_MEMBERSHIP_KEY_HASH_H_
#define BYTEPS_SERVER_MEMBERSHIP_KEY_HASH_H_

#include <cstdint>
#include <vector>

#include "core/config/config.h"

namespace byteps {

struct KeyHash {
  enum class Function : uint8_t { kNone, kNaive, kBuiltIn, kDjb2, kSdbm, kMixed };

  Function function = Function::kNone;
  uint64_t coefficient = 1;     // BYTEPS_BUILT_IN_HASH_COEF, of built_in
  uint64_t bound = 101;         // BYTEPS_MIXED_MODE_BOUND, of mixed
  std::vector<bool> dedicated;  // of each server, for mixed; empty: not known, and mixed is djb2

  static uint64_t Key(uint64_t tensor, uint64_t part) { return (tensor << 16) + part; }

  // Of a function other than kNone; below `servers`, which is at least 1.
  uint32_t Server(uint64_t key, uint32_t servers) const;
};

// The word for it in BYTEPS_KEY_HASH_FN.
const char* KeyHashName(KeyHash::Function function);

// What the configuration asks for.
KeyHash ReadKeyHash(const Config& config);

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_KEY_HASH_H_
