#include "core/dtype.h"

namespace byteps {

size_t DtypeSize(uint32_t dtype) { return IsDtype(dtype) ? ((dtype >> 8) & 0xff) / 8 : 0; }

bool IsDtype(uint32_t dtype) {
  switch (dtype) {
    case BPS_INT8:
    case BPS_INT32:
    case BPS_INT64:
    case BPS_UINT8:
    case BPS_FLOAT16:
    case BPS_FLOAT32:
    case BPS_FLOAT64:
    case BPS_BFLOAT16:
      return true;
    default:
      return false;
  }
}

const char* DtypeName(uint32_t dtype) {
  switch (dtype) {
    case BPS_INT8:
      return "int8";
    case BPS_INT32:
      return "int32";
    case BPS_INT64:
      return "int64";
    case BPS_UINT8:
      return "uint8";
    case BPS_FLOAT16:
      return "float16";
    case BPS_FLOAT32:
      return "float32";
    case BPS_FLOAT64:
      return "float64";
    case BPS_BFLOAT16:
      return "bfloat16";
    default:
      return "unknown";
  }
}

const char* OpName(int32_t op) {
  switch (op) {
    case BPS_SUM:
      return "sum";
    case BPS_AVERAGE:
      return "average";
    case BPS_MIN:
      return "min";
    case BPS_MAX:
      return "max";
    case BPS_PRODUCT:
      return "product";
    default:
      return "unknown";
  }
}

}  // namespace byteps
