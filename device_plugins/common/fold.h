// fold.h - adds arrays of elements on the CPU, for devices that are simulated.
//
//     Fold(to, {a, b, c}, 1000, BPS_FLOAT16, BPS_SUM);       // to[i] = round(a[i] + b[i] + c[i])
//
// The arithmetic is that of docs/determinism.md, one level: a left fold in the order of the sources, 16-bit floats in
// float32 and rounded once, an average divided at the end. `to` may be one of the sources.
//
// Threads: any. Errors: throws Error, BPS_UNIMPLEMENTED, for what the collectives of abi/device.h do not have.
#ifndef BYTEPS_DEVICE_PLUGINS_COMMON_FOLD_H_
#define BYTEPS_DEVICE_PLUGINS_COMMON_FOLD_H_

#include <cstdint>
#include <vector>

namespace byteps::devices {

// Bytes of an element. Throws Error.
uint64_t ElementBytes(uint32_t dtype);
// Throws Error for what Fold does not do.
void CheckFold(uint32_t dtype, int32_t reduction);
void Fold(void* to, const std::vector<const void*>& sources, uint64_t count, uint32_t dtype, int32_t reduction);

}  // namespace byteps::devices

#endif  // BYTEPS_DEVICE_PLUGINS_COMMON_FOLD_H_
