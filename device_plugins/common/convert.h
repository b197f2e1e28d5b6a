// convert.h - multiplies elements and changes their data type on the CPU, for devices that are simulated.
//
//     Convert(to, BPS_FLOAT16, from, BPS_FLOAT32, 1000, 0.5);       // to[i] = float16(0.5 x from[i])
//
// `to` may be `from` where the data types are equal.
//
// Threads: any. Errors: throws Error, BPS_UNIMPLEMENTED, for what `convert` of abi/device.h does not have.
#ifndef BYTEPS_DEVICE_PLUGINS_COMMON_CONVERT_H_
#define BYTEPS_DEVICE_PLUGINS_COMMON_CONVERT_H_

#include <cstdint>

namespace byteps::devices {

// Throws Error for what Convert does not do.
void CheckConvert(uint32_t to_dtype, uint32_t from_dtype);
void Convert(void* to, uint32_t to_dtype, const void* from, uint32_t from_dtype, uint64_t count, double factor);

}  // namespace byteps::devices

#endif  // BYTEPS_DEVICE_PLUGINS_COMMON_CONVERT_H_
