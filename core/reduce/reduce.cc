#include "core/reduce/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/reduce/dtype.h"
#include "core/reduce/reduce_kernels.h"

namespace byteps {
namespace {

// Streaming stores fill whole lines of the cache; and stores that do not cross lines are faster in any case.
constexpr size_t kLine = 64;
// Below it is not worth the trouble.
constexpr size_t kWorthAligning = 1024;
// Elements of integers that are summed and then divided while they are in the first-level cache.
constexpr size_t kDivideBlock = 2048;

bool TwoLevels(std::span<const uint32_t> group_sizes) {
  return group_sizes.size() > 1 &&
         std::any_of(group_sizes.begin(), group_sizes.end(), [](uint32_t size) { return size > 1; });
}

uint32_t Divisor(const Reduction& reduction, size_t contributors) {
  if (reduction.op != BPS_AVERAGE) return 1;
  return reduction.divisor != 0 ? reduction.divisor : static_cast<uint32_t>(contributors);
}

bool IsSixteenBitFloat(uint32_t dtype) { return dtype == BPS_FLOAT16 || dtype == BPS_BFLOAT16; }

bool IsInteger(uint32_t dtype) {
  return dtype == BPS_INT8 || dtype == BPS_UINT8 || dtype == BPS_INT16 || dtype == BPS_INT32 || dtype == BPS_INT64;
}

// A reduction that gives the same bits as another one, of types that have kernels.
struct Lowered {
  Reduction reduction;
  size_t parts = 1;  // elements of it per element
};

Lowered Lower(Reduction reduction) {
  if (reduction.dtype == BPS_BOOL) {
    const bool any = reduction.op == BPS_SUM || reduction.op == BPS_MAX || reduction.op == BPS_BIT_OR;
    if (reduction.op != BPS_BIT_XOR) reduction.op = any ? BPS_MAX : BPS_MIN;
    reduction.dtype = BPS_UINT8;
    return {reduction};
  }
  if (reduction.op >= BPS_BIT_AND) {
    const size_t size = DtypeSize(reduction.dtype);
    reduction.dtype = BPS_UINT8;
    return {reduction, size};
  }
  const bool complex = reduction.dtype == BPS_COMPLEX64 || reduction.dtype == BPS_COMPLEX128;
  if (!complex || reduction.op == BPS_PRODUCT) return {reduction};
  reduction.dtype = reduction.dtype == BPS_COMPLEX64 ? BPS_FLOAT32 : BPS_FLOAT64;
  return {reduction, 2};
}

// The type that elements are folded in.
uint32_t AccumulatorDtype(uint32_t dtype) { return IsSixteenBitFloat(dtype) ? BPS_FLOAT32 : dtype; }

size_t Padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

uintptr_t Misalignment(const void* at) { return reinterpret_cast<uintptr_t>(at) % kLine; }

void RunFold(const ReduceKernels* vectors, FoldTask task) {
  if (vectors != nullptr) {
    const size_t size = DtypeSize(task.dtype);
    const size_t end = task.end;
    std::byte* const first = static_cast<std::byte*>(task.outputs[0]) + task.begin * size;
    if ((end - task.begin) * size >= kWorthAligning && Misalignment(first) != 0) {
      task.end = task.begin + (kLine - Misalignment(first)) / size;
      task.begin = ScalarKernels().fold(task);
      task.end = end;
    }
    for (void* output : task.outputs) {
      task.streamed = task.streamed && Misalignment(static_cast<std::byte*>(output) + task.begin * size) == 0;
    }
    task.at_once = vectors->at_once;
    task.begin = vectors->fold(task);
  }
  if (task.begin < task.end) ScalarKernels().fold(task);
}

void RunWide(const ReduceKernels* vectors, WideTask task) {
  if (vectors != nullptr) task.begin = vectors->wide(task);
  if (task.begin < task.end) ScalarKernels().wide(task);
}

// Integers have no vector division: sums first, block by block, divided where they are.
void RunIntegerAverage(const ReduceKernels* vectors, const FoldTask& task) {
  const size_t size = DtypeSize(task.dtype);
  FoldTask sum = task;
  sum.divisor = 1;
  sum.streamed = false;
  sum.outputs = task.outputs.first(1);
  const std::array<const void*, 1> sums = {task.outputs[0]};
  FoldTask quotient = sum;
  quotient.divisor = task.divisor;
  quotient.groups = {};
  quotient.inputs = sums;
  for (size_t at = task.begin; at < task.end; at += kDivideBlock) {
    sum.begin = quotient.begin = at;
    sum.end = quotient.end = std::min(task.end, at + kDivideBlock);
    RunFold(vectors, sum);
    ScalarKernels().fold(quotient);
    for (void* other : task.outputs.subspan(1)) {
      std::memcpy(static_cast<std::byte*>(other) + at * size, static_cast<std::byte*>(task.outputs[0]) + at * size,
                  (sum.end - at) * size);
    }
  }
}

}  // namespace

void ReduceWith(const ReduceKernels* vectors, const Reduction& reduction, std::span<const void* const> inputs,
                std::span<const uint32_t> group_sizes, std::span<void* const> outputs, size_t elements, Stores stores) {
  if (elements == 0 || inputs.empty() || outputs.empty()) return;
  const Lowered lowered = Lower(reduction);
  FoldTask task;
  task.dtype = lowered.reduction.dtype;
  task.op = lowered.reduction.op;
  task.divisor = Divisor(reduction, inputs.size());
  task.streamed = stores == Stores::kStreamed;
  task.inputs = inputs;
  if (TwoLevels(group_sizes)) task.groups = group_sizes;
  task.outputs = outputs;
  task.end = elements * lowered.parts;
  if (task.divisor != 1 && IsInteger(task.dtype)) {
    RunIntegerAverage(vectors, task);
  } else {
    RunFold(vectors, task);
  }
}

void Reduce(const Reduction& reduction, std::span<const void* const> inputs, std::span<const uint32_t> group_sizes,
            void* output, size_t elements) {
  ReduceWith(BestKernels(), reduction, inputs, group_sizes, {&output, 1}, elements, Stores::kCached);
}

void ReduceToAll(const Reduction& reduction, std::span<const void* const> inputs, std::span<const uint32_t> group_sizes,
                 std::span<void* const> outputs, size_t elements, Stores stores) {
  ReduceWith(BestKernels(), reduction, inputs, group_sizes, outputs, elements, stores);
}

size_t AccumulationBytes(const Reduction& reduction, std::span<const uint32_t> group_sizes, size_t elements) {
  return Padded(elements * DtypeSize(AccumulatorDtype(reduction.dtype))) * (TwoLevels(group_sizes) ? 2 : 1);
}

Accumulation::Accumulation(const Reduction& reduction, std::span<const uint32_t> group_sizes, uint32_t contributors,
                           size_t elements, void* memory, const ReduceKernels* vectors)
    : reduction_(Lower(reduction).reduction),
      group_sizes_(group_sizes),
      contributors_(contributors),
      elements_(elements * Lower(reduction).parts),
      vectors_(vectors),
      two_levels_(TwoLevels(group_sizes)),
      total_(static_cast<std::byte*>(memory)),
      group_(two_levels_ ? total_ + Padded(elements * DtypeSize(AccumulatorDtype(reduction.dtype))) : nullptr) {}

Accumulation::Accumulation(const Reduction& reduction, std::span<const uint32_t> group_sizes, uint32_t contributors,
                           size_t elements, void* memory)
    : Accumulation(reduction, group_sizes, contributors, elements, memory, BestKernels()) {}

void Accumulation::Add(const void* input) {
  const bool first_group = group_index_ == 0;
  const bool opens = two_levels_ ? in_group_ == 0 : added_ == 0;
  std::byte* acc = two_levels_ && !first_group ? group_ : total_;
  ++added_;
  ++in_group_;
  const bool closes = two_levels_ && in_group_ == group_sizes_[group_index_];

  if (IsSixteenBitFloat(reduction_.dtype)) {
    WideTask task = Wide(acc);
    task.narrow_in = input;
    task.step = opens ? WideTask::Step::kWiden : WideTask::Step::kAdd;
    RunWide(vectors_, task);
    if (closes) {
      task.step = WideTask::Step::kRoundLevel;
      RunWide(vectors_, task);
    }
  } else if (!opens) {
    FoldInto(acc, input);
  } else if (elements_ != 0) {
    std::memcpy(acc, input, elements_ * DtypeSize(reduction_.dtype));
  }
  if (closes) {
    if (!first_group) FoldInto(total_, group_);
    in_group_ = 0;
    ++group_index_;
  }
}

void Accumulation::Finish(void* output) {
  if (elements_ == 0) return;
  const uint32_t divisor = Divisor(reduction_, contributors_);
  if (IsSixteenBitFloat(reduction_.dtype)) {
    WideTask task = Wide(total_);
    task.step = WideTask::Step::kRound;
    task.divisor = divisor;
    task.narrow_out = output;
    RunWide(vectors_, task);
  } else if (divisor != 1 || output != total_) {
    const std::array<const void*, 1> inputs = {total_};
    FoldTask task;
    task.dtype = reduction_.dtype;
    task.divisor = divisor;
    task.inputs = inputs;
    task.outputs = {&output, 1};
    task.end = elements_;
    if (divisor != 1 && IsInteger(task.dtype)) {
      ScalarKernels().fold(task);
    } else {
      RunFold(vectors_, task);
    }
  }
}

WideTask Accumulation::Wide(std::byte* acc) const {
  WideTask task;
  task.dtype = reduction_.dtype;
  task.op = reduction_.op;
  task.wide = reinterpret_cast<float*>(acc);
  task.end = elements_;
  return task;
}

void Accumulation::FoldInto(std::byte* acc, const void* operand) const {
  const std::array<const void*, 2> inputs = {acc, operand};
  void* output = acc;
  FoldTask task;
  task.dtype = AccumulatorDtype(reduction_.dtype);
  task.op = reduction_.op;
  task.inputs = inputs;
  task.outputs = {&output, 1};
  task.end = elements_;
  RunFold(vectors_, task);
}

}  // namespace byteps
