#include "core/worker/tensor/operation.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "core/reduce/dtype.h"

namespace byteps {
namespace {

// The same on every machine and in every version of the wire protocol: not a hash of the standard library.
class Mixer {
 public:
  void Add(uint64_t value) {
    // SplitMix64's finaliser over a running sum.
    state_ += value + 0x9e3779b97f4a7c15u;
    state_ = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9u;
    state_ = (state_ ^ (state_ >> 27)) * 0x94d049bb133111ebu;
    state_ ^= state_ >> 31;
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace

uint64_t Fingerprint(const Submission& asked) {
  Mixer mixer;
  mixer.Add(asked.tensor->dtype());
  mixer.Add(asked.tensor->shape().size());
  for (int64_t extent : asked.tensor->shape()) mixer.Add(static_cast<uint64_t>(extent));
  mixer.Add(static_cast<uint64_t>(asked.kind));
  mixer.Add(static_cast<uint64_t>(asked.reduction));
  mixer.Add(static_cast<uint64_t>(asked.root));
  if (asked.group_size != 0) {
    mixer.Add(asked.group_size);
    mixer.Add(asked.group_index);
  }
  if (asked.scaled) {
    mixer.Add(std::bit_cast<uint64_t>(asked.prescale));
    mixer.Add(std::bit_cast<uint64_t>(asked.postscale));
  }
  return mixer.value();
}

std::string DescribeOperation(const Operation& operation) {
  const Submission& asked = operation.asked;
  const std::string what = asked.kind == wire::Operation::kBroadcast
                               ? absl::StrCat("broadcast from rank ", asked.root)
                               : absl::StrCat("push_pull (", OpName(asked.reduction), ")");
  return absl::StrCat(what, " of ", asked.tensor->Describe(), ", round ", operation.round);
}

}  // namespace byteps
