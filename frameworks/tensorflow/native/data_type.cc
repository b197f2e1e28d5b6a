#include "frameworks/tensorflow/native/data_type.h"

#include "abi/byteps.h"
#include "frameworks/tensorflow/native/c_api.h"

namespace byteps::tensorflow {

uint32_t DtypeOf(int type) {
  switch (type) {
    case kFloat:
      return BPS_FLOAT32;
    case kDouble:
      return BPS_FLOAT64;
    case kInt32:
      return BPS_INT32;
    case kUint8:
      return BPS_UINT8;
    case kInt16:
      return BPS_INT16;
    case kInt8:
      return BPS_INT8;
    case kInt64:
      return BPS_INT64;
    case kBfloat16:
      return BPS_BFLOAT16;
    case kHalf:
      return BPS_FLOAT16;
    case kBool:
      return BPS_BOOL;
    case kComplex64:
      return BPS_COMPLEX64;
    case kComplex128:
      return BPS_COMPLEX128;
    default:
      return 0;
  }
}

}  // namespace byteps::tensorflow
