// device_cast_scenarios.h - scenarios of device_worker.cc in which a GPU casts or multiplies on the way to the host.
#ifndef BYTEPS_TESTS_E2E_DEVICE_CAST_SCENARIOS_H_
#define BYTEPS_TESTS_E2E_DEVICE_CAST_SCENARIOS_H_

namespace byteps {

// Memory of float32, tensors of 16 bits: the bits of a host that casts by itself, half of the bytes on the bus, beside
// ranks whose memory is what the tensor is; and what callers get wrong.
void RunCasts();
// Factors: the GPU multiplies, and where it cannot the host does, with the same bits.
void RunFactors();

}  // namespace byteps

#endif  // BYTEPS_TESTS_E2E_DEVICE_CAST_SCENARIOS_H_
