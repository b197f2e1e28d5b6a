#include "frameworks/tensorflow/native/c_api.h"

#include <dlfcn.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace byteps::tensorflow {
namespace {

struct Found {
  std::unique_ptr<const CApi> api;
  std::string missing;
};

// Whether the callback of an asynchronous kernel is what done_function.h takes it for. The C interface hides its type;
// TensorFlow's own C++ functions name it: tensorflow::Device::ComputeAsync(AsyncOpKernel*, OpKernelContext*,
// std::function<void()>), of the same C++ library as this object. Then TensorFlow calls one of ours.
bool CallsFunctions(void* framework, const CApi& api) {
  constexpr const char* kNamesItsType =
      "_ZN10tensorflow6Device12ComputeAsyncEPNS_13AsyncOpKernelEPNS_15OpKernelContextESt8functionIFvvEE";
  if (dlsym(framework, kNamesItsType) == nullptr) return false;
  bool called = false;
  std::function<void()> function = [&called] { called = true; };
  api.TF_RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&function));
  return called;
}

Found Load() {
  void* framework = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (framework == nullptr) return {nullptr, "libtensorflow_framework.so.2 is not loaded"};
  auto api = std::make_unique<CApi>();
#define BYTEPS_TENSORFLOW_FIND(result, name, arguments)                       \
  api->name = reinterpret_cast<decltype(api->name)>(dlsym(framework, #name)); \
  if (api->name == nullptr) return {nullptr, "it has no function " #name};
  BYTEPS_TENSORFLOW_FUNCTIONS(BYTEPS_TENSORFLOW_FIND)
#undef BYTEPS_TENSORFLOW_FIND
  api->SetIsDistributedCommunication = reinterpret_cast<decltype(api->SetIsDistributedCommunication)>(
      dlsym(framework, "_ZN10tensorflow12OpDefBuilder29SetIsDistributedCommunicationEv"));
  if (!CallsFunctions(framework, *api)) {
    return {nullptr,
            "its asynchronous kernels do not end with a std::function<void()>, as those of all tested ones do"};
  }
  return {std::move(api), ""};
}

// Never destroyed: threads of TensorFlow may outlive main().
const Found& TheFound() {
  static const auto* const kFound = new Found(Load());
  return *kFound;
}

}  // namespace

const CApi* CApi::Find() { return TheFound().api.get(); }

const char* CApi::Missing() { return TheFound().missing.c_str(); }

}  // namespace byteps::tensorflow
