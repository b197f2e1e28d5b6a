#include "frameworks/mxnet/native/c_api.h"

#include <dlfcn.h>

#include <stdexcept>

namespace byteps::mxnet {
namespace {

CApi& Api() {
  static CApi api;
  return api;
}

template <typename F>
void Find(void* library, const std::string& path, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  if (*function == nullptr) {
    throw std::runtime_error(path + " has no function " + name + "; byteps.mxnet works with MXNet 1.9");
  }
}

}  // namespace

void BindCApi(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  if (library == nullptr) throw std::runtime_error("MXNet's library " + path + " is not loaded");
  CApi& api = Api();
  Find(library, path, "MXGetLastError", &api.MXGetLastError);
  Find(library, path, "MXShallowCopyNDArray", &api.MXShallowCopyNDArray);
  Find(library, path, "MXNDArrayFree", &api.MXNDArrayFree);
  Find(library, path, "MXNDArrayGetData", &api.MXNDArrayGetData);
  Find(library, path, "MXNDArrayGetDType", &api.MXNDArrayGetDType);
  Find(library, path, "MXNDArrayGetShapeEx64", &api.MXNDArrayGetShapeEx64);
  Find(library, path, "MXEnginePushAsyncND", &api.MXEnginePushAsyncND);
}

const CApi& TheCApi() { return Api(); }

}  // namespace byteps::mxnet
