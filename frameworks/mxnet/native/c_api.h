// c_api.h - the functions of MXNet's C interface that the shim calls, found in the libmxnet.so that Python has loaded.
//
// Own prototypes: nothing of MXNet is needed to build this. They are those of MXNet 1.9, whose last release is 1.9.1.
//
// Threads: immutable once bound.
#ifndef BYTEPS_FRAMEWORKS_MXNET_NATIVE_C_API_H_
#define BYTEPS_FRAMEWORKS_MXNET_NATIVE_C_API_H_

#include <cstdint>
#include <string>

namespace byteps::mxnet {

using NDArrayHandle = void*;

// Of an asynchronous operation: (context of the run, callback on completion, its parameter).
using EngineAsyncFunction = void (*)(void*, void*, void*);

// mxnet::Context of host memory.
struct Context {
  int32_t device_type;
  int32_t device_id;
};

struct CApi {
  const char* (*MXGetLastError)();
  int (*MXShallowCopyNDArray)(NDArrayHandle source, NDArrayHandle* copy);
  int (*MXNDArrayFree)(NDArrayHandle array);
  int (*MXNDArrayGetData)(NDArrayHandle array, void** data);
  int (*MXNDArrayGetDType)(NDArrayHandle array, int* dtype);
  int (*MXNDArrayGetShapeEx64)(NDArrayHandle array, int* ndim, const int64_t** shape);
  int (*MXEnginePushAsyncND)(EngineAsyncFunction function, void* parameter, void (*deleter)(void*),
                             const Context* context, NDArrayHandle* read, int num_read, NDArrayHandle* written,
                             int num_written, const int* property, int priority, const char* name, bool wait);
};

// Finds the functions in the library at `path`, which is loaded already. Throws std::runtime_error.
void BindCApi(const std::string& path);

// Those that were bound last.
const CApi& TheCApi();

}  // namespace byteps::mxnet

#endif  // BYTEPS_FRAMEWORKS_MXNET_NATIVE_C_API_H_
