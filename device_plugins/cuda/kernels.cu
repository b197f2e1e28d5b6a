// kernels.cu - what the plugin computes on a GPU. Folds: arrays are added in the order in which they are named, the bits
// of docs/determinism.md. Conversions: elements are multiplied, and change their data type. Compiled with --config=cuda
// into a fatbin, which the plugin loads by the driver.
#include "device_plugins/common/convert_arithmetic.h"
#include "device_plugins/common/fold_arithmetic.h"
#include "device_plugins/cuda/kernels.h"

namespace byteps::cuda {
namespace {

template <typename Type, int32_t reduction>
__device__ void Fold(const FoldArguments& arguments) {
  using Stored = typename Type::Stored;
  using Wide = typename Type::Wide;
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < arguments.count; i += step) {
    Wide sum = Type::Load(static_cast<const Stored*>(arguments.from[0])[i]);
    for (uint32_t source = 1; source < arguments.sources; ++source) {
      const Wide next = Type::Load(static_cast<const Stored*>(arguments.from[source])[i]);
      sum = devices::Join<Wide>(sum, next, reduction);
    }
    if constexpr (reduction == BPS_AVERAGE) sum = sum / static_cast<Wide>(arguments.sources);
    static_cast<Stored*>(arguments.to)[i] = Type::Store(sum);
  }
}

template <typename Type>
__device__ void FoldAny(const FoldArguments& arguments) {
  switch (arguments.reduction) {
    case BPS_SUM:
      return Fold<Type, BPS_SUM>(arguments);
    case BPS_PRODUCT:
      return Fold<Type, BPS_PRODUCT>(arguments);
    case BPS_MIN:
      return Fold<Type, BPS_MIN>(arguments);
    case BPS_MAX:
      return Fold<Type, BPS_MAX>(arguments);
    case BPS_AVERAGE:
      if constexpr (!devices::IsInteger<typename Type::Wide>::value) return Fold<Type, BPS_AVERAGE>(arguments);
  }
}

// Memory of the host is read and written over the bus as the elements are needed: neighbours by neighbouring threads.
template <typename From, typename To>
__device__ void Convert(const ConvertArguments& arguments) {
  const auto factor = static_cast<typename From::Wide>(arguments.factor);
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < arguments.count; i += step) {
    const typename From::Stored value = static_cast<const typename From::Stored*>(arguments.from)[i];
    static_cast<typename To::Stored*>(arguments.to)[i] = devices::ConvertOne<From, To>(value, factor);
  }
}

}  // namespace

// One for each data type, by the names of Device::Fold.
#define BPS_FOLD_KERNEL(name, ...) \
  extern "C" __global__ void name(const FoldArguments arguments) { FoldAny<__VA_ARGS__>(arguments); }
BPS_FOLD_KERNEL(bps_fold_float32, devices::Plain<float>)
BPS_FOLD_KERNEL(bps_fold_float64, devices::Plain<double>)
BPS_FOLD_KERNEL(bps_fold_float16, devices::Float16)
BPS_FOLD_KERNEL(bps_fold_bfloat16, devices::Bfloat16)
BPS_FOLD_KERNEL(bps_fold_int8, devices::Plain<int8_t>)
BPS_FOLD_KERNEL(bps_fold_uint8, devices::Plain<uint8_t>)
BPS_FOLD_KERNEL(bps_fold_int32, devices::Plain<int32_t>)
BPS_FOLD_KERNEL(bps_fold_int64, devices::Plain<int64_t>)

// One for each pair, by the names of Device::Convert.
#define BPS_CONVERT_KERNEL(name, ...) \
  extern "C" __global__ void name(const ConvertArguments arguments) { Convert<__VA_ARGS__>(arguments); }
BPS_CONVERT_KERNEL(bps_convert_float32_float32, devices::Plain<float>, devices::Plain<float>)
BPS_CONVERT_KERNEL(bps_convert_float64_float64, devices::Plain<double>, devices::Plain<double>)
BPS_CONVERT_KERNEL(bps_convert_float16_float16, devices::Float16, devices::Float16)
BPS_CONVERT_KERNEL(bps_convert_bfloat16_bfloat16, devices::Bfloat16, devices::Bfloat16)
BPS_CONVERT_KERNEL(bps_convert_float32_float16, devices::Plain<float>, devices::Float16)
BPS_CONVERT_KERNEL(bps_convert_float32_bfloat16, devices::Plain<float>, devices::Bfloat16)
BPS_CONVERT_KERNEL(bps_convert_float16_float32, devices::Float16, devices::Plain<float>)
BPS_CONVERT_KERNEL(bps_convert_bfloat16_float32, devices::Bfloat16, devices::Plain<float>)

}  // namespace byteps::cuda
