// Types of elements, and what becomes of them; part of byteps.hpp.
#ifndef BYTEPS_FRAMEWORKS_CPP_ELEMENT_HPP_
#define BYTEPS_FRAMEWORKS_CPP_ELEMENT_HPP_

#include <complex>
#include <cstdint>

#include "abi/byteps.h"

namespace byteps {

// The number of an element type. Types of other libraries join by a specialisation:
//     template <> struct byteps::DType<half_float::half> { static constexpr uint32_t kValue = BPS_FLOAT16; };
template <typename T>
struct DType;
#define BYTEPS_CPP_DTYPE(type, value)           \
  template <>                                   \
  struct DType<type> {                          \
    static constexpr uint32_t kValue = (value); \
  }
BYTEPS_CPP_DTYPE(int8_t, BPS_INT8);
BYTEPS_CPP_DTYPE(int16_t, BPS_INT16);
BYTEPS_CPP_DTYPE(int32_t, BPS_INT32);
BYTEPS_CPP_DTYPE(int64_t, BPS_INT64);
BYTEPS_CPP_DTYPE(uint8_t, BPS_UINT8);
BYTEPS_CPP_DTYPE(float, BPS_FLOAT32);
BYTEPS_CPP_DTYPE(double, BPS_FLOAT64);
BYTEPS_CPP_DTYPE(bool, BPS_BOOL);
BYTEPS_CPP_DTYPE(std::complex<float>, BPS_COMPLEX64);
BYTEPS_CPP_DTYPE(std::complex<double>, BPS_COMPLEX128);
#undef BYTEPS_CPP_DTYPE

// What a reduction makes of the contributions; see abi/byteps.h.
enum class Op : int32_t {
  kSum = BPS_SUM,
  kAverage = BPS_AVERAGE,
  kMin = BPS_MIN,
  kMax = BPS_MAX,
  kProduct = BPS_PRODUCT,
  kBitAnd = BPS_BIT_AND,
  kBitOr = BPS_BIT_OR,
  kBitXor = BPS_BIT_XOR,
  kAdasum = BPS_ADASUM,  // of Collective::AllReduce alone
};

}  // namespace byteps

#endif  // BYTEPS_FRAMEWORKS_CPP_ELEMENT_HPP_
