// reduce_kernels.h - the loops under core/reduce/reduce.h, once per instruction set; reduce.h puts them together.
//
//     const ReduceKernels* fast = BestKernels();                // of this processor
//     size_t done = fast->fold(task);                           // a prefix of the elements
//     task.begin += done;
//     ScalarKernels().fold(task);                               // the rest
//
// All give the same bits. The scalar ones do any number of elements, and are the definition; vector kernels do whole
// steps of vectors and leave the rest. What a set of kernels cannot do, it leaves altogether (0 elements done).
//
// Threads: plain functions.
#ifndef BYTEPS_CORE_REDUCE_REDUCE_KERNELS_H_
#define BYTEPS_CORE_REDUCE_REDUCE_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace byteps {

// output[k][i] = round(fold(inputs[0][i], inputs[1][i], ...) / divisor)
struct FoldTask {
  uint32_t dtype = 0;
  int32_t op = 0;
  uint32_t divisor = 1;
  bool streamed = false;                // stores go around the cache; outputs are then aligned to 64 bytes
  std::span<const void* const> inputs;  // each may be one of the outputs
  std::span<const uint32_t> groups;     // two levels; empty: one
  std::span<void* const> outputs;       // at least one
  size_t at_once = 8;                   // inputs read side by side: ReduceKernels::kFew or kMany; the bits are the same
  size_t begin = 0;                     // first element
  size_t end = 0;                       // behind the last one
};

// Between 16-bit floats and the float32 they are folded in.
struct WideTask {
  enum class Step {
    kWiden,       // wide = narrow
    kAdd,         // wide = op(wide, narrow)
    kRoundLevel,  // wide = round(wide)
    kRound,       // narrow = round(wide / divisor); narrow may begin where wide does
  };
  Step step = Step::kWiden;
  uint32_t dtype = 0;
  int32_t op = 0;
  uint32_t divisor = 1;
  float* wide = nullptr;
  const void* narrow_in = nullptr;
  void* narrow_out = nullptr;
  size_t begin = 0;
  size_t end = 0;
};

// How many inputs are read side by side, kFew or kMany, is the processor's: measured are an Intel one with AVX-512,
// where two at a time are a fifth faster, and AMD ones with AVX2 and with AVX-512, where eight are by a fifth to a half
// (docs/performance/notes/2026-11-24-reduction-kernels.md).
struct ReduceKernels {
  static constexpr size_t kFew = 2;
  static constexpr size_t kMany = 8;
  const char* name;  // "AVX2"
  size_t at_once;    // what FoldTask::at_once is best
  // Both do elements [begin, x) and return x.
  size_t (*fold)(const FoldTask& task);
  size_t (*wide)(const WideTask& task);
};

const ReduceKernels& ScalarKernels();
// Vector kernels that this processor can run, the best one first; may be empty.
std::span<const ReduceKernels> VectorKernels();
// The first of them, or nullptr.
const ReduceKernels* BestKernels();

}  // namespace byteps

#endif  // BYTEPS_CORE_REDUCE_REDUCE_KERNELS_H_
