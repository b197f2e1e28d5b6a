// done_function.h - what TensorFlow wants to be called when an asynchronous kernel has ended.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_DONE_FUNCTION_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_DONE_FUNCTION_H_

#include <functional>

#include "frameworks/tensorflow/native/c_api.h"

namespace byteps::tensorflow {

// TensorFlow's callback is a std::function<void()> in the frame of the caller of Compute:
// TF_RunAsyncOpKernelDoneCallback works until Compute returns, and not later. So the function itself is copied out of
// it.
using DoneFunction = std::function<void()>;

inline const DoneFunction& FunctionOf(TF_AsyncOpKernelDoneCallback* done) {
  return *reinterpret_cast<DoneFunction*>(done);
}

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_DONE_FUNCTION_H_
