// libtensorflow_framework.so.2 as another version could be: it has all functions that the kernels look up, and they do
// nothing. With BPS_OTHER_TYPE the callback of asynchronous kernels has a type of its own, as the names of C++
// functions tell. What calls it is in callback.cc.
#include <functional>

#include "frameworks/tensorflow/native/c_api.h"

#define BYTEPS_SHOWN __attribute__((visibility("default")))

namespace tensorflow {

class AsyncOpKernel;
class OpKernelContext;

#ifdef BPS_OTHER_TYPE
template <typename T>
class Callback;
using Done = Callback<void()>*;
#else
using Done = std::function<void()>;
#endif

class Device {
 public:
  BYTEPS_SHOWN void ComputeAsync(AsyncOpKernel*, OpKernelContext*, Done);
};

void Device::ComputeAsync(AsyncOpKernel*, OpKernelContext*, Done) {}

}  // namespace tensorflow

// Weak: callback.cc has one that does something.
#define BYTEPS_STUB(result, name, arguments)                 \
  extern "C" BYTEPS_SHOWN __attribute__((weak)) void name(); \
  void name() {}
BYTEPS_TENSORFLOW_FUNCTIONS(BYTEPS_STUB)
