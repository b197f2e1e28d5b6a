// reduce.h - the arithmetic of a reduction, element by element. docs/determinism.md has the formulas.
//
// All inputs at hand:
//
//     Reduce({BPS_FLOAT32, BPS_AVERAGE}, inputs, group_sizes, output, elements);
//
// Or a prefix as it arrives, in rank order:
//
//     Accumulation fold({BPS_FLOAT16, BPS_SUM}, group_sizes, elements, memory);   // memory: AccumulationBytes(...)
//     fold.Add(input_of_rank_0); fold.Add(input_of_rank_1); ...
//     fold.Finish(output);
//
// Both give the same bits. One level: a left fold in rank order. Two levels, if there are several groups of which one
// has more than one member: each group's fold is rounded to the data type, and these are folded in their order. 16-bit
// floats are folded in float32. AVERAGE divides the last level's fold by the number of inputs before its rounding: true
// division for floats, towards minus infinity for integers. Integer sums and products wrap. MIN and MAX keep the
// earlier operand of equals and propagate NaN. (Which of several NaN bit patterns a sum has is not specified.)
//
// Threads: plain functions. Inputs and outputs are aligned to their element size; `output` may equal inputs[0], and
// must not overlap any other.
#ifndef BYTEPS_CORE_REDUCE_H_
#define BYTEPS_CORE_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace byteps {

struct Reduction {
  uint32_t dtype;  // a valid one: IsDtype()
  int32_t op;      // BPS_SUM, ...
};

// `group_sizes` are positive and sum to inputs.size(); empty means one group.
void Reduce(const Reduction& reduction, std::span<const void* const> inputs, std::span<const uint32_t> group_sizes,
            void* output, size_t elements);

// Bytes of memory an Accumulation needs: one accumulator, or two where there are two levels.
size_t AccumulationBytes(const Reduction& reduction, std::span<const uint32_t> group_sizes, size_t elements);

// A fold of which only a prefix has come. Does not own its memory (aligned to 8 bytes, AccumulationBytes long) nor
// group_sizes; both must outlive it.
class Accumulation {
 public:
  Accumulation(const Reduction& reduction, std::span<const uint32_t> group_sizes, uint32_t contributors,
               size_t elements, void* memory);

  // Adds the next input in rank order. The input is not used afterwards.
  void Add(const void* input);
  // How many inputs were added.
  uint32_t added() const { return added_; }
  // Writes the result, after exactly `contributors` inputs. `output` may be the memory itself.
  void Finish(void* output);

 private:
  Reduction reduction_;
  std::span<const uint32_t> group_sizes_;
  uint32_t contributors_;
  size_t elements_;
  bool two_levels_;
  std::byte* total_;  // over complete groups, or over everything if there is one level
  std::byte* group_;  // of the group that is open
  uint32_t added_ = 0;
  uint32_t group_index_ = 0;
  uint32_t in_group_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_REDUCE_H_
