// convert_arithmetic.h - one element of a conversion, for the CPU and for the kernels of a GPU.
//
//     to[i] = ConvertOne<Plain<float>, Float16>(from[i], 0.5f);       // half of it, as a float16
//
// The types are those of fold_arithmetic.h. The product is one of float32 (of float64, for float64) and what is stored
// is rounded to nearest even: the bits of core/worker/collectives/scale.h and core/reduce/dtype.h. A factor of 1
// changes nothing, NaNs included.
//
// Threads: any.
#ifndef BYTEPS_DEVICE_PLUGINS_COMMON_CONVERT_ARITHMETIC_H_
#define BYTEPS_DEVICE_PLUGINS_COMMON_CONVERT_ARITHMETIC_H_

#include "device_plugins/common/fold_arithmetic.h"

namespace byteps::devices {

template <typename From, typename To>
BPS_FOLD_CODE typename To::Stored ConvertOne(typename From::Stored value, typename From::Wide factor) {
  const typename From::Wide wide = From::Load(value);
  return To::Store(factor == 1 ? wide : wide * factor);
}

}  // namespace byteps::devices

#endif  // BYTEPS_DEVICE_PLUGINS_COMMON_CONVERT_ARITHMETIC_H_
