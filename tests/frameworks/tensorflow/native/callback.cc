// How TensorFlow calls the callback of an asynchronous kernel.
#include <functional>

extern "C" __attribute__((visibility("default"))) void TF_RunAsyncOpKernelDoneCallback(void* done);

void TF_RunAsyncOpKernelDoneCallback(void* done) {
#ifdef BPS_OTHER_TYPE
  static_cast<void>(done);
  __builtin_trap();  // what it took the callback for is not there
#else
  (*static_cast<std::function<void()>*>(done))();
#endif
}
