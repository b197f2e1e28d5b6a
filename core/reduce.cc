#include "core/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/dtype.h"

namespace byteps {
namespace {

// Elements that are folded at a time: an accumulator of 64-bit elements takes 16 KiB and stays in the first-level cache
// beside two inputs.
constexpr size_t kBlock = 2048;

// Storage type of a tensor's elements -> the type it is folded in.
template <typename T>
struct Accumulator {
  using Type = T;
  static T Widen(T value) { return value; }
  static T Round(T value) { return value; }
};
template <>
struct Accumulator<Float16> {
  using Type = float;
  static float Widen(Float16 value) { return ToFloat(value); }
  static Float16 Round(float value) { return ToFloat16(value); }
};
template <>
struct Accumulator<BFloat16> {
  using Type = float;
  static float Widen(BFloat16 value) { return ToFloat(value); }
  static BFloat16 Round(float value) { return ToBFloat16(value); }
};

template <typename A>
struct Sum {
  static A Apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};
template <typename A>
struct Product {
  static A Apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      // Through 64 bits: uint8 x uint8 would be promoted to a signed int.
      return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};
template <typename A>
struct Min {
  static A Apply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) return (b < a || b != b) && a == a ? b : a;
    return b < a ? b : a;
  }
};
template <typename A>
struct Max {
  static A Apply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) return (b > a || b != b) && a == a ? b : a;
    return b > a ? b : a;
  }
};

template <typename A>
A Divide(A value, uint32_t by) {
  if constexpr (std::is_floating_point_v<A>) {
    return value / static_cast<A>(by);
  } else {
    // In 64 bits the divisor always fits, and no type of ours has a quotient that overflows (by >= 1).
    const int64_t wide = static_cast<int64_t>(value);
    const int64_t divisor = static_cast<int64_t>(by);
    const int64_t quotient = wide / divisor;
    return static_cast<A>(quotient - (wide % divisor < 0 ? 1 : 0));
  }
}

// The loops. T: element, A: accumulator. Pointers may be equal where said, so none is __restrict; the compiler checks
// overlap once per call and vectorises.
template <typename T, typename Op>
struct Kernel {
  using Traits = Accumulator<T>;
  using A = typename Traits::Type;

  static void Load(A* acc, const T* in, size_t n) {
    for (size_t i = 0; i < n; ++i) acc[i] = Traits::Widen(in[i]);
  }
  static void Add(A* acc, const T* in, size_t n) {
    for (size_t i = 0; i < n; ++i) acc[i] = Op::Apply(acc[i], Traits::Widen(in[i]));
  }
  // out = op(a, b) without a stop in memory between.
  static void Add2(A* acc, const T* a, const T* b, size_t n) {
    for (size_t i = 0; i < n; ++i) acc[i] = Op::Apply(Traits::Widen(a[i]), Traits::Widen(b[i]));
  }
  // The rounding between levels.
  static void RoundLevel(A* acc, size_t n) {
    if constexpr (!std::is_same_v<A, T>) {
      for (size_t i = 0; i < n; ++i) acc[i] = Traits::Widen(Traits::Round(acc[i]));
    }
  }
  static void Combine(A* total, const A* group, size_t n) {
    for (size_t i = 0; i < n; ++i) total[i] = Op::Apply(total[i], group[i]);
  }
  // `out` may be `acc`: an element is never wider than its accumulator, and is written after it was read.
  static void Finish(T* out, const A* acc, size_t n, uint32_t divisor) {
    if (divisor > 1) {
      for (size_t i = 0; i < n; ++i) out[i] = Traits::Round(Divide(acc[i], divisor));
    } else if (static_cast<const void*>(out) != static_cast<const void*>(acc)) {
      for (size_t i = 0; i < n; ++i) out[i] = Traits::Round(acc[i]);
    } else if constexpr (!std::is_same_v<A, T>) {
      for (size_t i = 0; i < n; ++i) {
        A value;
        std::memcpy(&value, reinterpret_cast<const std::byte*>(acc) + i * sizeof(A), sizeof value);
        const T rounded = Traits::Round(value);
        std::memcpy(reinterpret_cast<std::byte*>(out) + i * sizeof(T), &rounded, sizeof rounded);
      }
    }
  }

  static void ReduceAll(std::span<const void* const> inputs, std::span<const uint32_t> groups, bool two_levels,
                        uint32_t divisor, void* output, size_t elements) {
    alignas(64) A scratch[kBlock];
    alignas(64) A group_scratch[kBlock];
    T* out = static_cast<T*>(output);
    const auto input = [&](size_t index, size_t at) { return static_cast<const T*>(inputs[index]) + at; };
    for (size_t at = 0; at < elements; at += kBlock) {
      const size_t n = std::min(kBlock, elements - at);
      // Where elements are folded in their own type and nothing reads the output again, the output is the accumulator.
      A* total = scratch;
      if constexpr (std::is_same_v<A, T>) {
        if (!two_levels) total = out + at;
      }
      if (!two_levels) {
        FoldRange(input, 0, inputs.size(), at, total, n);
      } else {
        size_t first = 0;
        for (size_t g = 0; g < groups.size(); ++g) {
          A* acc = g == 0 ? total : group_scratch;
          FoldRange(input, first, groups[g], at, acc, n);
          RoundLevel(acc, n);
          if (g > 0) Combine(total, acc, n);
          first += groups[g];
        }
      }
      Finish(out + at, total, n, divisor);
    }
  }

  template <typename Input>
  static void FoldRange(const Input& input, size_t first, size_t count, size_t at, A* acc, size_t n) {
    if (count == 1) {
      if (static_cast<const void*>(acc) != static_cast<const void*>(input(first, at))) Load(acc, input(first, at), n);
      return;
    }
    Add2(acc, input(first, at), input(first + 1, at), n);
    for (size_t i = 2; i < count; ++i) Add(acc, input(first + i, at), n);
  }
};

// Calls visit with a Kernel<T, Op> for the reduction.
template <typename T, typename Visitor>
void VisitOp(int32_t op, const Visitor& visit) {
  using A = typename Accumulator<T>::Type;
  switch (op) {
    case BPS_MIN:
      return visit(Kernel<T, Min<A>>{});
    case BPS_MAX:
      return visit(Kernel<T, Max<A>>{});
    case BPS_PRODUCT:
      return visit(Kernel<T, Product<A>>{});
    default:
      return visit(Kernel<T, Sum<A>>{});
  }
}

template <typename Visitor>
void Visit(const Reduction& reduction, const Visitor& visit) {
  switch (reduction.dtype) {
    case BPS_INT8:
      return VisitOp<int8_t>(reduction.op, visit);
    case BPS_INT32:
      return VisitOp<int32_t>(reduction.op, visit);
    case BPS_INT64:
      return VisitOp<int64_t>(reduction.op, visit);
    case BPS_UINT8:
      return VisitOp<uint8_t>(reduction.op, visit);
    case BPS_FLOAT16:
      return VisitOp<Float16>(reduction.op, visit);
    case BPS_FLOAT32:
      return VisitOp<float>(reduction.op, visit);
    case BPS_FLOAT64:
      return VisitOp<double>(reduction.op, visit);
    case BPS_BFLOAT16:
      return VisitOp<BFloat16>(reduction.op, visit);
    default:
      return;
  }
}

bool TwoLevels(std::span<const uint32_t> group_sizes) {
  return group_sizes.size() > 1 &&
         std::any_of(group_sizes.begin(), group_sizes.end(), [](uint32_t size) { return size > 1; });
}

uint32_t Divisor(const Reduction& reduction, size_t contributors) {
  return reduction.op == BPS_AVERAGE ? static_cast<uint32_t>(contributors) : 1;
}

size_t AccumulatorSize(uint32_t dtype) {
  return dtype == BPS_FLOAT16 || dtype == BPS_BFLOAT16 ? sizeof(float) : DtypeSize(dtype);
}

size_t Padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

void Reduce(const Reduction& reduction, std::span<const void* const> inputs, std::span<const uint32_t> group_sizes,
            void* output, size_t elements) {
  if (elements == 0 || inputs.empty()) return;
  Visit(reduction, [&](auto kernel) {
    kernel.ReduceAll(inputs, group_sizes, TwoLevels(group_sizes), Divisor(reduction, inputs.size()), output, elements);
  });
}

size_t AccumulationBytes(const Reduction& reduction, std::span<const uint32_t> group_sizes, size_t elements) {
  return Padded(elements * AccumulatorSize(reduction.dtype)) * (TwoLevels(group_sizes) ? 2 : 1);
}

Accumulation::Accumulation(const Reduction& reduction, std::span<const uint32_t> group_sizes, uint32_t contributors,
                           size_t elements, void* memory)
    : reduction_(reduction),
      group_sizes_(group_sizes),
      contributors_(contributors),
      elements_(elements),
      two_levels_(TwoLevels(group_sizes)),
      total_(static_cast<std::byte*>(memory)),
      group_(two_levels_ ? total_ + Padded(elements * AccumulatorSize(reduction.dtype)) : nullptr) {}

void Accumulation::Add(const void* input) {
  const bool first_group = group_index_ == 0;
  const bool opens = two_levels_ ? in_group_ == 0 : added_ == 0;
  std::byte* memory = two_levels_ && !first_group ? group_ : total_;
  ++added_;
  ++in_group_;
  const bool closes = two_levels_ && in_group_ == group_sizes_[group_index_];
  Visit(reduction_, [&]<typename T, typename Op>(Kernel<T, Op> kernel) {
    using A = typename Kernel<T, Op>::A;
    A* acc = reinterpret_cast<A*>(memory);
    const T* in = static_cast<const T*>(input);
    if (opens) {
      kernel.Load(acc, in, elements_);
    } else {
      kernel.Add(acc, in, elements_);
    }
    if (closes) {
      kernel.RoundLevel(acc, elements_);
      if (!first_group) kernel.Combine(reinterpret_cast<A*>(total_), acc, elements_);
    }
  });
  if (closes) {
    in_group_ = 0;
    ++group_index_;
  }
}

void Accumulation::Finish(void* output) {
  const uint32_t divisor = Divisor(reduction_, contributors_);
  Visit(reduction_, [&]<typename T, typename Op>(Kernel<T, Op> kernel) {
    using A = typename Kernel<T, Op>::A;
    kernel.Finish(static_cast<T*>(output), reinterpret_cast<const A*>(total_), elements_, divisor);
  });
}

}  // namespace byteps
