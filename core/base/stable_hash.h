// stable_hash.h - a number of 64 bits that is the same on every machine, for what travels as a number: names, shapes.
//
//     StableHash hash;
//     hash.Add("gradients"); hash.Add(7);
//     hash.value();
//
// Threads: none of its own.
#ifndef BYTEPS_CORE_BASE_STABLE_HASH_H_
#define BYTEPS_CORE_BASE_STABLE_HASH_H_

#include <cstdint>
#include <string_view>

namespace byteps {

class StableHash {
 public:
  void Add(uint64_t value) {
    // SplitMix64's finaliser over a running sum.
    state_ += value + 0x9e3779b97f4a7c15u;
    state_ = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9u;
    state_ = (state_ ^ (state_ >> 27)) * 0x94d049bb133111ebu;
    state_ ^= state_ >> 31;
  }
  void Add(std::string_view text) {
    Add(static_cast<uint64_t>(text.size()));
    // FNV-1a over the bytes, then mixed.
    uint64_t bytes = 0xcbf29ce484222325u;
    for (const char c : text) bytes = (bytes ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    Add(bytes);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_STABLE_HASH_H_
