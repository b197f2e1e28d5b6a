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
// Or into several outputs at once, as workers do that share memory:
//
//     ReduceToAll({BPS_BFLOAT16, BPS_SUM}, inputs, group_sizes, outputs, elements, Stores::kStreamed);
//
// All give the same bits, on every processor: the instructions are chosen when the program runs (reduce_kernels.h), the
// arithmetic is not. One level: a left fold in rank order. Two levels, if there are several groups of which one
// has more than one member: each group's fold is rounded to the data type, and these are folded in their order. 16-bit
// floats are folded in float32. AVERAGE divides the last level's fold by the number of inputs (or `divisor`) before its
// rounding: true division for floats, towards minus infinity for integers. Integer sums and products wrap. MIN and MAX
// keep the earlier operand of equals and propagate NaN. (Which of several NaN bit patterns a sum has is not specified.)
//
// One pass: each input is read once, each output written once, and no other memory is touched.
//
// Threads: plain functions. Inputs and outputs are aligned to their element size. An output may be one of the inputs,
// whichever; else they must not overlap.
#ifndef BYTEPS_CORE_REDUCE_REDUCE_H_
#define BYTEPS_CORE_REDUCE_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace byteps {

struct ReduceKernels;
struct WideTask;

struct Reduction {
  uint32_t dtype;  // a valid one: IsDtype()
  int32_t op;      // BPS_SUM, ...
  // BPS_AVERAGE: by how many is divided; 0: by the number of inputs. (Inputs may be folds themselves.)
  uint32_t divisor = 0;
};

// How results are stored.
enum class Stores {
  kCached,    // through the cache: they are read soon, or all of it fits
  kStreamed,  // around the cache, a quarter faster where outputs are not inputs, and everything is far larger than the
              // second-level cache (kWorthStreaming); several times slower where it is not
};
// Bytes of a whole tensor, not of the piece that is reduced at a time, from which on streaming pays.
constexpr size_t kWorthStreaming = size_t{16} << 20;

// `group_sizes` are positive and sum to inputs.size(); empty means one group.
void Reduce(const Reduction& reduction, std::span<const void* const> inputs, std::span<const uint32_t> group_sizes,
            void* output, size_t elements);
// The result into each of `outputs`.
void ReduceToAll(const Reduction& reduction, std::span<const void* const> inputs, std::span<const uint32_t> group_sizes,
                 std::span<void* const> outputs, size_t elements, Stores stores = Stores::kCached);
// The same with the vector kernels that a test picks; nullptr: none.
void ReduceWith(const ReduceKernels* vectors, const Reduction& reduction, std::span<const void* const> inputs,
                std::span<const uint32_t> group_sizes, std::span<void* const> outputs, size_t elements, Stores stores);

// Bytes of memory an Accumulation needs: one accumulator, or two where there are two levels.
size_t AccumulationBytes(const Reduction& reduction, std::span<const uint32_t> group_sizes, size_t elements);

// A fold of which only a prefix has come. Does not own its memory (aligned to 8 bytes, AccumulationBytes long) nor
// group_sizes; both must outlive it.
class Accumulation {
 public:
  Accumulation(const Reduction& reduction, std::span<const uint32_t> group_sizes, uint32_t contributors,
               size_t elements, void* memory);
  Accumulation(const Reduction& reduction, std::span<const uint32_t> group_sizes, uint32_t contributors,
               size_t elements, void* memory, const ReduceKernels* vectors);

  // Adds the next input in rank order. The input is not used afterwards.
  void Add(const void* input);
  // How many inputs were added.
  uint32_t added() const { return added_; }
  // Writes the result, after exactly `contributors` inputs. `output` may be the memory itself.
  void Finish(void* output);

 private:
  WideTask Wide(std::byte* acc) const;
  void FoldInto(std::byte* acc, const void* operand) const;

  Reduction reduction_;
  std::span<const uint32_t> group_sizes_;
  uint32_t contributors_;
  size_t elements_;
  const ReduceKernels* vectors_;
  bool two_levels_;
  std::byte* total_;  // over complete groups, or over everything if there is one level
  std::byte* group_;  // of the group that is open
  uint32_t added_ = 0;
  uint32_t group_index_ = 0;
  uint32_t in_group_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_REDUCE_REDUCE_H_
