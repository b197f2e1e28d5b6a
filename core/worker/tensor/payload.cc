#include "core/worker/tensor/payload.h"

#include "core/reduce/dtype.h"

namespace byteps {

Payload PartOf(const Payload& whole, const Cut& cut, uint32_t part) {
  Payload payload = whole;
  payload.elements = cut.count(part);
  if (whole.bytes == 0) return payload;
  const uint64_t size = DtypeSize(whole.dtype);
  payload.address += cut.first(part) * size;
  payload.bytes = payload.elements * size;
  return payload;
}

}  // namespace byteps
