#include "frameworks/mxnet/native/array.h"

#include <stdexcept>
#include <string>

#include "abi/byteps.h"

namespace byteps::mxnet {
namespace {

void Check(int status) {
  if (status != 0) throw std::runtime_error(TheCApi().MXGetLastError());
}

// mshadow::TypeFlag as a data type of abi/byteps.h.
uint32_t DataType(int flag) {
  switch (flag) {
    case 0:
      return BPS_FLOAT32;
    case 1:
      return BPS_FLOAT64;
    case 2:
      return BPS_FLOAT16;
    case 3:
      return BPS_UINT8;
    case 4:
      return BPS_INT32;
    case 5:
      return BPS_INT8;
    case 6:
      return BPS_INT64;
    case 7:
      return BPS_BOOL;
    case 8:
      return BPS_INT16;
    case 12:
      return BPS_BFLOAT16;
    default:
      throw std::runtime_error("an array of MXNet's data type " + std::to_string(flag) + " cannot be sent");
  }
}

}  // namespace

Array::Array(NDArrayHandle handle) {
  const CApi& api = TheCApi();
  int flag = 0;
  Check(api.MXNDArrayGetDType(handle, &flag));
  dtype_ = DataType(flag);
  int ndim = 0;
  const int64_t* sizes = nullptr;
  Check(api.MXNDArrayGetShapeEx64(handle, &ndim, &sizes));
  if (ndim < 0) throw std::runtime_error("an array whose shape is not known yet cannot be sent");
  shape_.assign(sizes, sizes + ndim);
  Check(api.MXShallowCopyNDArray(handle, &handle_));
}

Array::~Array() { TheCApi().MXNDArrayFree(handle_); }

void* Array::Data() const {
  void* data = nullptr;
  Check(TheCApi().MXNDArrayGetData(handle_, &data));
  return data;
}

}  // namespace byteps::mxnet
