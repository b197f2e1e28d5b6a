// The scalar kernels of reduce_kernels.h: the formulas of docs/determinism.md as loops. What vectors leave over is done
// here, and all of it on processors without the instructions for more.

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/reduce/dtype.h"
#include "core/reduce/reduce_kernels.h"

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

struct BitAnd {
  template <typename A>
  static A Apply(A a, A b) {
    return static_cast<A>(a & b);
  }
};
struct BitOr {
  template <typename A>
  static A Apply(A a, A b) {
    return static_cast<A>(a | b);
  }
};
struct BitXor {
  template <typename A>
  static A Apply(A a, A b) {
    return static_cast<A>(a ^ b);
  }
};

// Of products alone: sums are those of the parts. By the formula, without the library's detour for infinities.
template <typename F>
struct Complex {
  F real, imaginary;
};
struct ComplexProduct {
  template <typename F>
  static Complex<F> Apply(Complex<F> a, Complex<F> b) {
    return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
  }
};

template <typename A>
A Divide(A value, uint32_t by) {
  if constexpr (std::is_floating_point_v<A>) {
    return value / static_cast<A>(by);
  } else if constexpr (!std::is_integral_v<A>) {
    return value;  // products only
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

  static void Widen(A* acc, const T* in, size_t n) {
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
  static void Round(T* out, const A* acc, size_t n, uint32_t divisor) {
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

  static void Fold(const FoldTask& task) {
    alignas(64) A scratch[kBlock];
    alignas(64) A group_scratch[kBlock];
    T* out = static_cast<T*>(task.outputs[0]);
    // Where elements are folded in their own type, and the output is not read again, it is the accumulator.
    bool into_output = std::is_same_v<A, T> && task.groups.empty();
    for (size_t i = 1; i < task.inputs.size(); ++i) into_output = into_output && task.inputs[i] != task.outputs[0];
    const auto input = [&](size_t index, size_t at) { return static_cast<const T*>(task.inputs[index]) + at; };
    for (size_t at = task.begin; at < task.end; at += kBlock) {
      const size_t n = std::min(kBlock, task.end - at);
      A* total = scratch;
      if constexpr (std::is_same_v<A, T>) {
        if (into_output) total = out + at;
      }
      if (task.groups.empty()) {
        FoldRange(input, 0, task.inputs.size(), at, total, n);
      } else {
        size_t first = 0;
        for (size_t g = 0; g < task.groups.size(); ++g) {
          A* acc = g == 0 ? total : group_scratch;
          FoldRange(input, first, task.groups[g], at, acc, n);
          RoundLevel(acc, n);
          if (g > 0) Combine(total, acc, n);
          first += task.groups[g];
        }
      }
      Round(out + at, total, n, task.divisor);
      for (void* other : task.outputs.subspan(1)) std::memcpy(static_cast<T*>(other) + at, out + at, n * sizeof(T));
    }
  }

  template <typename Input>
  static void FoldRange(const Input& input, size_t first, size_t count, size_t at, A* acc, size_t n) {
    if (count == 1) {
      if (static_cast<const void*>(acc) != static_cast<const void*>(input(first, at))) Widen(acc, input(first, at), n);
      return;
    }
    Add2(acc, input(first, at), input(first + 1, at), n);
    for (size_t i = 2; i < count; ++i) Add(acc, input(first + i, at), n);
  }

  static void Wide(const WideTask& task) {
    if constexpr (std::is_same_v<A, float> && !std::is_same_v<T, float>) {
      const size_t n = task.end - task.begin;
      float* wide = task.wide + task.begin;
      switch (task.step) {
        case WideTask::Step::kWiden:
          return Widen(wide, static_cast<const T*>(task.narrow_in) + task.begin, n);
        case WideTask::Step::kAdd:
          return Add(wide, static_cast<const T*>(task.narrow_in) + task.begin, n);
        case WideTask::Step::kRoundLevel:
          return RoundLevel(wide, n);
        case WideTask::Step::kRound:
          return Round(static_cast<T*>(task.narrow_out) + task.begin, wide, n, task.divisor);
      }
    }
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
    case BPS_BIT_AND:
    case BPS_BIT_OR:
    case BPS_BIT_XOR:
      if constexpr (std::is_integral_v<A>) {
        if (op == BPS_BIT_AND) return visit(Kernel<T, BitAnd>{});
        if (op == BPS_BIT_OR) return visit(Kernel<T, BitOr>{});
        return visit(Kernel<T, BitXor>{});
      }
      return;
    default:
      return visit(Kernel<T, Sum<A>>{});
  }
}

template <typename Visitor>
void Visit(uint32_t dtype, int32_t op, const Visitor& visit) {
  switch (dtype) {
    case BPS_INT8:
      return VisitOp<int8_t>(op, visit);
    case BPS_INT16:
      return VisitOp<int16_t>(op, visit);
    case BPS_INT32:
      return VisitOp<int32_t>(op, visit);
    case BPS_INT64:
      return VisitOp<int64_t>(op, visit);
    case BPS_UINT8:
      return VisitOp<uint8_t>(op, visit);
    case BPS_FLOAT16:
      return VisitOp<Float16>(op, visit);
    case BPS_FLOAT32:
      return VisitOp<float>(op, visit);
    case BPS_FLOAT64:
      return VisitOp<double>(op, visit);
    case BPS_BFLOAT16:
      return VisitOp<BFloat16>(op, visit);
    case BPS_COMPLEX64:
      return visit(Kernel<Complex<float>, ComplexProduct>{});
    case BPS_COMPLEX128:
      return visit(Kernel<Complex<double>, ComplexProduct>{});
    default:
      return;
  }
}

size_t Fold(const FoldTask& task) {
  Visit(task.dtype, task.op, [&](auto kernel) { kernel.Fold(task); });
  return task.end;
}

size_t Wide(const WideTask& task) {
  Visit(task.dtype, task.op, [&](auto kernel) { kernel.Wide(task); });
  return task.end;
}

}  // namespace

const ReduceKernels& ScalarKernels() {
  static constexpr ReduceKernels kKernels = {"scalar", ReduceKernels::kMany, Fold, Wide};
  return kKernels;
}

}  // namespace byteps
