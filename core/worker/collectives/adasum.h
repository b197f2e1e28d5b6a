// adasum.h - the arithmetic of Adasum: how two gradients are added whose directions may agree or not.
//
//     adasum::Widen(BPS_FLOAT16, from, wide, elements);
//     adasum::Dots dots = adasum::PartialDots(a, b, elements);       // of a slice; those of all slices are added up
//     adasum::Combine(dots, a, b, elements);                         // a becomes the combination
//     adasum::Narrow(BPS_FLOAT16, wide, to, elements);
//
// The combination of a and b is (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b: the sum where they are orthogonal, the
// mean where they are equal. A vector of zeros adds nothing and takes nothing away. More than two are combined in pairs
// of neighbours (0 with 1, 2 with 3, ...), the pairs in pairs, and so on; one that is left over waits for the next
// level. All is done in float64, and rounded once at the end.
//
// Threads: plain functions.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_ADASUM_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_ADASUM_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace byteps::adasum {

struct Dots {
  double aa = 0, bb = 0, ab = 0;
};

// Only real floating-point numbers have an Adasum: INVALID_ARGUMENT.
absl::Status CheckType(uint32_t dtype);
void Widen(uint32_t dtype, const void* from, double* to, size_t elements);
Dots PartialDots(const double* a, const double* b, size_t elements);
void Combine(const Dots& dots, double* a, const double* b, size_t elements);
void Narrow(uint32_t dtype, const double* from, void* to, size_t elements);

}  // namespace byteps::adasum

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_ADASUM_H_
