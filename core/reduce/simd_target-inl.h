// simd_target-inl.h - the instruction sets that the vector kernels are compiled for, and their vectors.
//
// Compiled once per target: the guard opens and shuts with HWY_TARGET_TOGGLE.
#if defined(CORE_REDUCE_SIMD_TARGET_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CORE_REDUCE_SIMD_TARGET_INL_H_
#undef CORE_REDUCE_SIMD_TARGET_INL_H_
#else
#define CORE_REDUCE_SIMD_TARGET_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

// The targets that are worth their bytes: each adds some hundred KiB. Others that Highway has would run the same
// instructions (AVX-512's later extensions), or are of processors too old for training (SSE4).
#undef BYTEPS_REDUCE_TARGET
#if HWY_ARCH_X86
#define BYTEPS_REDUCE_TARGET (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)
#else
#define BYTEPS_REDUCE_TARGET (HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_NEON)
#endif

HWY_BEFORE_NAMESPACE();
namespace byteps {
namespace HWY_NAMESPACE {

#if BYTEPS_REDUCE_TARGET

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using BitsVec = hn::Vec<BitsTag>;
using SignedTag = hn::RebindToSigned<FloatTag>;
using HalvesTag = hn::Rebind<uint16_t, FloatTag>;  // as many 16-bit elements as a vector of floats has
using HalvesVec = hn::Vec<HalvesTag>;

HWY_INLINE BitsVec Bits(FloatVec value) { return hn::BitCast(BitsTag(), value); }
HWY_INLINE FloatVec Float(BitsVec bits) { return hn::BitCast(FloatTag(), bits); }
HWY_INLINE BitsVec Constant(uint32_t bits) { return hn::Set(BitsTag(), bits); }

#endif  // BYTEPS_REDUCE_TARGET

}  // namespace HWY_NAMESPACE
}  // namespace byteps
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
