#include "core/reduce/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/reduce/dtype.h"
#include "core/reduce/reduce_kernels.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

constexpr uint32_t kDtypes[] = {BPS_INT8,    BPS_UINT8,   BPS_INT16,    BPS_INT32,     BPS_INT64,      BPS_FLOAT16,
                                BPS_FLOAT32, BPS_FLOAT64, BPS_BFLOAT16, BPS_COMPLEX64, BPS_COMPLEX128, BPS_BOOL};
constexpr int32_t kOps[] = {BPS_SUM, BPS_AVERAGE, BPS_MIN, BPS_MAX, BPS_PRODUCT, BPS_BIT_AND, BPS_BIT_OR, BPS_BIT_XOR};

std::vector<int32_t> OpsOf(uint32_t dtype) {
  std::vector<int32_t> ops;
  for (const int32_t op : kOps) {
    if (CheckReduction(dtype, op).ok()) ops.push_back(op);
  }
  return ops;
}

using Bytes = std::vector<std::byte>;

// ---- The formulas of docs/determinism.md, one element at a time, as plainly as they can be written ----

template <typename T>
struct Plain {
  using A = T;
  static A Widen(T value) { return value; }
  static T Round(A value) { return value; }
};
template <>
struct Plain<Float16> {
  using A = float;
  static A Widen(Float16 value) { return ToFloat(value); }
  static Float16 Round(A value) { return ToFloat16(value); }
};
template <>
struct Plain<BFloat16> {
  using A = float;
  static A Widen(BFloat16 value) { return ToFloat(value); }
  static BFloat16 Round(A value) { return ToBFloat16(value); }
};

template <typename A>
A ApplyReal(int32_t op, A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    if (op == BPS_BIT_AND) return static_cast<A>(a & b);
    if (op == BPS_BIT_OR) return static_cast<A>(a | b);
    if (op == BPS_BIT_XOR) return static_cast<A>(a ^ b);
  }
  const auto nan = [](A x) { return x != x; };
  switch (op) {
    case BPS_MIN:
      return nan(a) ? a : nan(b) ? b : b < a ? b : a;
    case BPS_MAX:
      return nan(a) ? a : nan(b) ? b : b > a ? b : a;
    case BPS_PRODUCT:
      if constexpr (std::is_integral_v<A>) return static_cast<A>(static_cast<__int128>(a) * b);
      return a * b;
    default:
      if constexpr (std::is_integral_v<A>) return static_cast<A>(static_cast<__int128>(a) + b);
      return a + b;
  }
}

struct Bool {
  uint8_t byte;
};

template <typename A>
A Apply(int32_t op, A a, A b) {
  if constexpr (std::is_same_v<A, Bool>) {
    const bool x = a.byte != 0, y = b.byte != 0;
    const bool both = op == BPS_MIN || op == BPS_PRODUCT || op == BPS_BIT_AND;
    return {static_cast<uint8_t>(op == BPS_BIT_XOR ? x != y : both ? x && y : x || y)};
  } else if constexpr (std::is_same_v<A, std::complex<float>> || std::is_same_v<A, std::complex<double>>) {
    if (op != BPS_PRODUCT) return {a.real() + b.real(), a.imag() + b.imag()};
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else {
    return ApplyReal(op, a, b);
  }
}

template <typename A>
A DivideBy(A value, uint32_t by) {
  if constexpr (std::is_integral_v<A>) {
    // Towards minus infinity.
    const __int128 wide = value;
    __int128 quotient = wide / by;
    if (quotient * by > wide) --quotient;
    return static_cast<A>(quotient);
  } else {
    return value / static_cast<A>(by);
  }
}

Bool DivideBy(Bool value, uint32_t) { return value; }
template <typename F>
std::complex<F> DivideBy(std::complex<F> value, uint32_t by) {
  return {value.real() / static_cast<F>(by), value.imag() / static_cast<F>(by)};
}

template <typename T>
T Formula(int32_t op, const std::vector<T>& inputs, const std::vector<uint32_t>& groups) {
  using P = Plain<T>;
  using A = typename P::A;
  const auto fold = [&](size_t first, size_t count) {
    A acc = P::Widen(inputs[first]);
    for (size_t i = 1; i < count; ++i) acc = Apply<A>(op, acc, P::Widen(inputs[first + i]));
    return acc;
  };
  const bool two_levels = groups.size() > 1 && std::any_of(groups.begin(), groups.end(), [](auto n) { return n > 1; });
  A result;
  if (!two_levels) {
    result = fold(0, inputs.size());
  } else {
    size_t first = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      const A of_group = P::Widen(P::Round(fold(first, groups[g])));
      result = g == 0 ? of_group : Apply<A>(op, result, of_group);
      first += groups[g];
    }
  }
  if (op == BPS_AVERAGE) result = DivideBy(result, static_cast<uint32_t>(inputs.size()));
  return P::Round(result);
}

template <typename Visitor>
void WithType(uint32_t dtype, const Visitor& visit) {
  switch (dtype) {
    case BPS_INT8:
      return visit(int8_t{});
    case BPS_UINT8:
      return visit(uint8_t{});
    case BPS_INT16:
      return visit(int16_t{});
    case BPS_INT32:
      return visit(int32_t{});
    case BPS_INT64:
      return visit(int64_t{});
    case BPS_FLOAT16:
      return visit(Float16{});
    case BPS_FLOAT32:
      return visit(float{});
    case BPS_FLOAT64:
      return visit(double{});
    case BPS_BFLOAT16:
      return visit(BFloat16{});
    case BPS_COMPLEX64:
      return visit(std::complex<float>{});
    case BPS_COMPLEX128:
      return visit(std::complex<double>{});
    case BPS_BOOL:
      return visit(Bool{});
    default:
      FAIL();
  }
}

Bytes Expected(uint32_t dtype, int32_t op, const std::vector<Bytes>& inputs, const std::vector<uint32_t>& groups) {
  Bytes output(inputs[0].size());
  WithType(dtype, [&]<typename T>(T) {
    std::vector<T> element(inputs.size());
    for (size_t at = 0; at < output.size(); at += sizeof(T)) {
      for (size_t i = 0; i < inputs.size(); ++i) std::memcpy(&element[i], &inputs[i][at], sizeof(T));
      const T result = Formula<T>(op, element, groups);
      std::memcpy(&output[at], &result, sizeof(T));
    }
  });
  return output;
}

// Which of several NaN bit patterns a sum has is not specified: all become one.
Bytes WithoutNanBits(uint32_t dtype, Bytes bytes) {
  if (dtype == BPS_BOOL) return bytes;
  if (dtype == BPS_COMPLEX64) dtype = BPS_FLOAT32;
  if (dtype == BPS_COMPLEX128) dtype = BPS_FLOAT64;
  WithType(dtype, [&]<typename T>(T) {
    if constexpr (!std::is_integral_v<T> && !std::is_same_v<T, Bool>) {
      for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
        T value;
        std::memcpy(&value, &bytes[at], sizeof(T));
        const auto wide = Plain<T>::Widen(value);
        if (wide != wide) std::memset(&bytes[at], 0xff, sizeof(T));
      }
    }
  });
  return bytes;
}

// ---- Inputs ----

// Bits at random: every exponent, subnormals, infinities, NaNs. Or numbers as gradients are, whose sums round.
Bytes RandomInput(uint32_t dtype, size_t elements, std::mt19937_64& random) {
  Bytes bytes(elements * DtypeSize(dtype));
  if (dtype == BPS_BOOL) {
    for (std::byte& each : bytes) each = static_cast<std::byte>(random() % 2);
    return bytes;
  }
  if (dtype == BPS_COMPLEX64) return RandomInput(BPS_FLOAT32, 2 * elements, random);
  if (dtype == BPS_COMPLEX128) return RandomInput(BPS_FLOAT64, 2 * elements, random);
  WithType(dtype, [&]<typename T>(T) {
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < elements; ++i) {
      T value;
      const uint64_t bits = random();
      std::memcpy(static_cast<void*>(&value), &bits, std::min(sizeof(T), sizeof bits));
      if constexpr (std::is_floating_point_v<typename Plain<T>::A>) {
        if (i % 4 != 0) value = Plain<T>::Round(static_cast<typename Plain<T>::A>(normal(random)));
        if (i % 97 == 0) {
          const typename Plain<T>::A specials[] = {0,
                                                   -0.0f,
                                                   std::numeric_limits<float>::infinity(),
                                                   -std::numeric_limits<float>::infinity(),
                                                   std::numeric_limits<float>::quiet_NaN(),
                                                   std::numeric_limits<float>::denorm_min()};
          value = Plain<T>::Round(specials[bits % std::size(specials)]);
        }
      } else if (std::is_integral_v<T> && i % 31 == 0) {
        value = bits % 2 == 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
      }
      std::memcpy(&bytes[i * sizeof(T)], &value, sizeof(T));
    }
  });
  return bytes;
}

std::vector<std::vector<uint32_t>> Layouts(uint32_t contributors) {
  std::vector<std::vector<uint32_t>> layouts = {{}, {contributors}, std::vector<uint32_t>(contributors, 1)};
  if (contributors >= 2) layouts.push_back({contributors - 1, 1});
  if (contributors >= 3) layouts.push_back({1, contributors - 1});
  if (contributors == 5) layouts.insert(layouts.end(), {{2, 3}, {2, 1, 2}, {1, 3, 1}, {1, 1, 3}});
  if (contributors == 8) layouts.insert(layouts.end(), {{4, 4}, {2, 2, 2, 2}, {1, 5, 2}});
  return layouts;
}

std::string Describe(uint32_t dtype, int32_t op, const std::vector<uint32_t>& groups, size_t contributors,
                     size_t elements) {
  std::string text = std::string(DtypeName(dtype)) + " " + OpName(op) + " of " + std::to_string(contributors) + " x " +
                     std::to_string(elements) + " groups";
  for (uint32_t size : groups) text += " " + std::to_string(size);
  return text;
}

// Every set of kernels that this processor can run, in both ways of reading; nullptr: the scalar ones.
std::vector<const ReduceKernels*> AllKernels() {
  static const auto both = [] {
    std::vector<ReduceKernels> ways;
    for (ReduceKernels kernels : VectorKernels()) {
      for (const size_t at_once : {ReduceKernels::kFew, ReduceKernels::kMany}) {
        kernels.at_once = at_once;
        ways.push_back(kernels);
      }
    }
    return ways;
  }();
  std::vector<const ReduceKernels*> all = {nullptr};
  for (const ReduceKernels& kernels : both) all.push_back(&kernels);
  return all;
}

const char* NameOf(const ReduceKernels* kernels) { return kernels != nullptr ? kernels->name : ScalarKernels().name; }

// Memory that starts `shift` elements behind an address aligned to 64 bytes, between guards.
class Placed {
 public:
  Placed(uint32_t dtype, const Bytes& content, size_t shift)
      : size_(content.size()), memory_(content.size() + 256, std::byte{0xa5}) {
    const auto base = reinterpret_cast<uintptr_t>(memory_.data());
    offset_ = (64 - base % 64) % 64 + 64 + shift * DtypeSize(dtype);
    std::copy(content.begin(), content.end(), memory_.begin() + static_cast<ptrdiff_t>(offset_));
  }
  std::byte* data() { return memory_.data() + offset_; }
  Bytes content() const {
    return Bytes(memory_.begin() + static_cast<ptrdiff_t>(offset_),
                 memory_.begin() + static_cast<ptrdiff_t>(offset_ + size_));
  }
  bool GuardsIntact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (i == offset_) i += size_;
      if (i < memory_.size() && memory_[i] != std::byte{0xa5}) return false;
    }
    return true;
  }

 private:
  size_t size_;
  size_t offset_;
  Bytes memory_;
};

class ReduceTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(ReduceTest, FollowsTheFormula) {
  const uint32_t dtype = GetParam();
  std::mt19937_64 random(7);
  for (const uint32_t contributors : {1u, 2u, 3u, 5u, 8u, 9u, 18u}) {
    for (const size_t elements : {0u, 1u, 3u, 17u, 255u, 2047u, 2048u, 2049u, 5003u}) {
      std::vector<Bytes> inputs;
      for (uint32_t i = 0; i < contributors; ++i) inputs.push_back(RandomInput(dtype, elements, random));
      for (const int32_t op : OpsOf(dtype)) {
        for (const std::vector<uint32_t>& groups : Layouts(contributors)) {
          const std::string what = Describe(dtype, op, groups, contributors, elements);
          const Bytes expected = WithoutNanBits(dtype, Expected(dtype, op, inputs, groups));

          for (const ReduceKernels* kernels : AllKernels()) {
            const std::string with = what + ", " + NameOf(kernels);
            const Reduction reduction = {dtype, op};
            std::vector<Placed> placed;
            std::vector<const void*> pointers;
            for (uint32_t i = 0; i < contributors; ++i) placed.emplace_back(dtype, inputs[i], i % 3);
            for (Placed& input : placed) pointers.push_back(input.data());
            Placed output(dtype, Bytes(inputs[0].size()), 1);
            const auto reduce = [&](std::vector<void*> outputs, Stores stores) {
              ReduceWith(kernels, reduction, pointers, groups, outputs, elements, stores);
            };
            reduce({output.data()}, Stores::kCached);
            ASSERT_EQ(WithoutNanBits(dtype, output.content()), expected) << with;
            ASSERT_TRUE(output.GuardsIntact()) << with;
            for (uint32_t i = 0; i < contributors; ++i) ASSERT_EQ(placed[i].content(), inputs[i]) << with;

            // Two more outputs, around the cache where they lie alike.
            Placed second(dtype, Bytes(inputs[0].size()), 1);
            Placed third(dtype, Bytes(inputs[0].size()), elements % 2);
            reduce({second.data(), third.data()}, Stores::kStreamed);
            ASSERT_EQ(WithoutNanBits(dtype, second.content()), expected) << with << ", second output";
            ASSERT_EQ(WithoutNanBits(dtype, third.content()), expected) << with << ", third output";
            ASSERT_TRUE(second.GuardsIntact() && third.GuardsIntact()) << with;

            // In place, over one input; then over all of them.
            const uint32_t over = static_cast<uint32_t>(elements) % contributors;
            reduce({placed[over].data()}, Stores::kCached);
            ASSERT_EQ(WithoutNanBits(dtype, placed[over].content()), expected) << with << ", over input " << over;
            for (uint32_t i = 0; i < contributors; ++i) {
              ASSERT_TRUE(placed[i].GuardsIntact()) << with << ", over input " << over;
              if (i == over) continue;
              ASSERT_EQ(placed[i].content(), inputs[i]) << with << ", over input " << over;
            }
            std::copy(inputs[over].begin(), inputs[over].end(), placed[over].data());
            std::vector<void*> everywhere;
            for (Placed& input : placed) everywhere.push_back(input.data());
            reduce(everywhere, Stores::kStreamed);
            for (Placed& result : placed) {
              ASSERT_EQ(WithoutNanBits(dtype, result.content()), expected) << with << ", over all inputs";
              ASSERT_TRUE(result.GuardsIntact()) << with << ", over all inputs";
            }
          }
        }
      }
    }
  }
}

TEST_P(ReduceTest, AccumulationGivesTheSameBits) {
  const uint32_t dtype = GetParam();
  std::mt19937_64 random(8);
  for (const uint32_t contributors : {1u, 2u, 5u, 8u}) {
    for (const size_t elements : {0u, 1u, 17u, 2049u}) {
      std::vector<Bytes> inputs;
      for (uint32_t i = 0; i < contributors; ++i) inputs.push_back(RandomInput(dtype, elements, random));
      for (const int32_t op : OpsOf(dtype)) {
        for (const std::vector<uint32_t>& groups : Layouts(contributors)) {
          const std::string what = Describe(dtype, op, groups, contributors, elements);
          std::vector<const void*> pointers;
          for (const Bytes& input : inputs) pointers.push_back(input.data());
          Bytes expected(inputs[0].size());
          Reduce({dtype, op}, pointers, groups, expected.data(), elements);
          expected = WithoutNanBits(dtype, expected);

          for (const ReduceKernels* kernels : AllKernels()) {
            const std::string with = what + ", " + NameOf(kernels);
            const size_t bytes = AccumulationBytes({dtype, op}, groups, elements);
            Placed memory(BPS_INT8, Bytes(bytes, std::byte{0x77}), 0);
            const auto fill = [&](Accumulation* fold) {
              for (uint32_t i = 0; i < contributors; ++i) {
                EXPECT_EQ(fold->added(), i);
                Bytes passing = inputs[i];  // gone when the next one comes
                fold->Add(passing.data());
              }
              EXPECT_EQ(fold->added(), contributors);
            };
            Accumulation apart({dtype, op}, groups, contributors, elements, memory.data(), kernels);
            fill(&apart);
            Placed output(dtype, Bytes(inputs[0].size()), 1);
            apart.Finish(output.data());
            ASSERT_EQ(WithoutNanBits(dtype, output.content()), expected) << with;
            ASSERT_TRUE(output.GuardsIntact()) << with;

            Accumulation in_place({dtype, op}, groups, contributors, elements, memory.data(), kernels);
            fill(&in_place);
            in_place.Finish(memory.data());
            const Bytes result(memory.data(), memory.data() + expected.size());
            ASSERT_EQ(WithoutNanBits(dtype, result), expected) << with << ", into its own memory";
            ASSERT_TRUE(memory.GuardsIntact()) << with;
          }
        }
      }
    }
  }
}

// Every length around the steps of every vector unit, every alignment of the output and of the inputs against it.
TEST_P(ReduceTest, EveryLengthAndAlignment) {
  const uint32_t dtype = GetParam();
  std::mt19937_64 random(9);
  const size_t most = 1100;
  std::vector<Bytes> inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(RandomInput(dtype, most, random));
  const size_t size = DtypeSize(dtype);
  for (const int32_t op : {BPS_SUM, BPS_AVERAGE, BPS_MAX, BPS_BIT_XOR}) {
    if (!CheckReduction(dtype, op).ok()) continue;
    const Bytes expected = WithoutNanBits(dtype, Expected(dtype, op, inputs, {}));
    for (const ReduceKernels* kernels : AllKernels()) {
      for (size_t elements = 0; elements < most; elements += elements < 300 ? 1 : 37) {
        const size_t shift = elements % (64 / size);
        const Bytes wanted(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(elements * size));
        std::vector<Placed> placed;
        std::vector<const void*> pointers;
        for (size_t i = 0; i < inputs.size(); ++i) {
          const Bytes& input = inputs[i];
          placed.emplace_back(dtype, Bytes(input.begin(), input.begin() + static_cast<ptrdiff_t>(elements * size)),
                              (shift * (i + 2) + i) % (64 / size));
        }
        for (Placed& input : placed) pointers.push_back(input.data());
        Placed output(dtype, Bytes(elements * size), shift);
        void* const to = output.data();
        ReduceWith(kernels, {dtype, op}, pointers, {}, {&to, 1}, elements,
                   elements % 2 == 0 ? Stores::kCached : Stores::kStreamed);
        ASSERT_EQ(WithoutNanBits(dtype, output.content()), wanted)
            << Describe(dtype, op, {}, 3, elements) << ", " << NameOf(kernels);
        ASSERT_TRUE(output.GuardsIntact()) << Describe(dtype, op, {}, 3, elements) << ", " << NameOf(kernels);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ReduceTest, ::testing::ValuesIn(kDtypes),
                         [](const auto& param_info) { return std::string(DtypeName(param_info.param)); });

// ---- The conversions of 16-bit floats, bit by bit, NaNs included ----

class ConversionTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(ConversionTest, WidensAsTheScalarCode) {
  std::vector<uint16_t> narrow(1 << 16);
  for (size_t i = 0; i < narrow.size(); ++i) narrow[i] = static_cast<uint16_t>(i);
  WideTask task;
  task.dtype = GetParam();
  task.narrow_in = narrow.data();
  task.end = narrow.size();
  std::vector<float> expected(narrow.size());
  task.wide = expected.data();
  ASSERT_EQ(ScalarKernels().wide(task), narrow.size());
  for (const ReduceKernels& kernels : VectorKernels()) {
    std::vector<float> wide(narrow.size());
    task.wide = wide.data();
    ASSERT_EQ(kernels.wide(task), narrow.size());
    for (size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(expected[i])) << i << ", " << kernels.name;
    }
  }
}

TEST_P(ConversionTest, RoundsAsTheScalarCode) {
  // Each sign, exponent and leading bits of the mantissa, with what is cut off: little, half, a little less or more.
  std::vector<float> wide;
  std::mt19937 random(10);
  for (uint32_t upper = 0; upper < 1 << 16; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x3001u, 0x7fffu, 0x8000u,
                                 0x8001u, 0xffffu, static_cast<uint32_t>(random() & 0xffff)}) {
      wide.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  wide.resize(wide.size() / 64 * 64);
  WideTask task;
  task.dtype = GetParam();
  task.step = WideTask::Step::kRound;
  task.wide = wide.data();
  task.end = wide.size();
  std::vector<uint16_t> expected(wide.size());
  task.narrow_out = expected.data();
  ASSERT_EQ(ScalarKernels().wide(task), wide.size());
  for (const ReduceKernels& kernels : VectorKernels()) {
    std::vector<uint16_t> narrow(wide.size());
    task.narrow_out = narrow.data();
    ASSERT_EQ(kernels.wide(task), wide.size());
    for (size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(narrow[i], expected[i]) << std::hex << std::bit_cast<uint32_t>(wide[i]) << ", " << kernels.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ConversionTest, ::testing::Values(BPS_FLOAT16, BPS_BFLOAT16),
                         [](const auto& param_info) { return std::string(DtypeName(param_info.param)); });

// ---- The processor ----

TEST(ReduceKernelsTest, VectorsWhereThereAreSome) {
  std::string names;
  for (const ReduceKernels& kernels : VectorKernels()) names += std::string(" ") + kernels.name;
  RecordProperty("kernels", names);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    ASSERT_NE(BestKernels(), nullptr);
    EXPECT_STREQ(VectorKernels().back().name, "AVX2") << names;
    EXPECT_EQ(VectorKernels().size(), __builtin_cpu_supports("avx512bw") ? 2u : 1u) << names;
    const bool few = __builtin_cpu_supports("avx512bw") && !__builtin_cpu_is("amd");
    EXPECT_EQ(BestKernels()->at_once, few ? ReduceKernels::kFew : ReduceKernels::kMany);
  }
#elif defined(__aarch64__)
  ASSERT_NE(BestKernels(), nullptr);
#endif
}

// ---- The formulas themselves, by numbers that a person can check ----

template <typename T>
std::vector<T> Fold(uint32_t dtype, int32_t op, const std::vector<std::vector<T>>& inputs,
                    const std::vector<uint32_t>& groups = {}) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<T> output(inputs[0].size());
  Reduce({dtype, op}, pointers, groups, output.data(), output.size());
  return output;
}

TEST(ReduceFormulaTest, SumsFromTheLeft) {
  // From the left the ones are lost one by one; added up first they would count.
  const std::vector<std::vector<float>> inputs = {{0x1p24f}, {1}, {1}, {1}, {1}};
  EXPECT_EQ(Fold(BPS_FLOAT32, BPS_SUM, inputs)[0], 0x1p24f);
  // In groups (1), (4): the second group's sum is exact.
  EXPECT_EQ(Fold(BPS_FLOAT32, BPS_SUM, inputs, {1, 4})[0], 0x1p24f + 4);
}

TEST(ReduceFormulaTest, SixteenBitFloatsRoundOncePerLevel) {
  const auto h = [](float value) { return ToFloat16(value); };
  // 2048 + 1 is no float16, but the fold knows it.
  const std::vector<std::vector<Float16>> inputs = {{h(2048)}, {h(1)}, {h(1)}, {h(1)}};
  EXPECT_EQ(ToFloat(Fold(BPS_FLOAT16, BPS_SUM, inputs)[0]), 2052.0f);          // 2051, to even
  EXPECT_EQ(ToFloat(Fold(BPS_FLOAT16, BPS_SUM, inputs, {2, 2})[0]), 2050.0f);  // 2049 -> 2048, + 2
}

TEST(ReduceFormulaTest, AverageDivides) {
  // By true division, not by a product with the reciprocal: 5 x (1.0f / 5) is no problem, but 7 / 3 is.
  const float third = Fold<float>(BPS_FLOAT32, BPS_AVERAGE, {{5}, {1}, {1}})[0];
  EXPECT_EQ(third, 7.0f / 3.0f);
  const std::vector<int32_t> floors = Fold<int32_t>(BPS_INT32, BPS_AVERAGE, {{-7, 7, -8, 0}, {0, 0, 0, 0}});
  EXPECT_EQ(floors, (std::vector<int32_t>{-4, 3, -4, 0}));
  // Wrapped first, divided then.
  EXPECT_EQ(Fold<int8_t>(BPS_INT8, BPS_AVERAGE, {{127}, {1}})[0], -64);
  EXPECT_EQ(Fold<uint8_t>(BPS_UINT8, BPS_AVERAGE, {{255}, {1}})[0], 0);
}

TEST(ReduceFormulaTest, IntegersWrap) {
  EXPECT_EQ(Fold<int32_t>(BPS_INT32, BPS_SUM, {{INT32_MAX}, {1}})[0], INT32_MIN);
  EXPECT_EQ(Fold<int64_t>(BPS_INT64, BPS_SUM, {{INT64_MIN}, {-1}})[0], INT64_MAX);
  EXPECT_EQ(Fold<uint8_t>(BPS_UINT8, BPS_PRODUCT, {{200}, {200}})[0], static_cast<uint8_t>(40000));
  EXPECT_EQ(Fold<int64_t>(BPS_INT64, BPS_PRODUCT, {{INT64_MAX}, {INT64_MAX}})[0], 1);
}

TEST(ReduceFormulaTest, MinAndMaxPropagateNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int32_t op : {BPS_MIN, BPS_MAX}) {
    for (const auto& inputs :
         std::vector<std::vector<std::vector<float>>>{{{nan}, {1}, {2}}, {{1}, {nan}, {2}}, {{1}, {2}, {nan}}}) {
      EXPECT_TRUE(std::isnan(Fold(BPS_FLOAT32, op, inputs)[0])) << OpName(op);
    }
    // The earlier of equals.
    EXPECT_TRUE(std::signbit(Fold<float>(BPS_FLOAT32, op, {{-0.0f}, {0.0f}})[0])) << OpName(op);
    EXPECT_FALSE(std::signbit(Fold<float>(BPS_FLOAT32, op, {{0.0f}, {-0.0f}})[0])) << OpName(op);
  }
}

}  // namespace
}  // namespace byteps
