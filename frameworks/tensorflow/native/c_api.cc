#include "frameworks/tensorflow/native/c_api.h"

#include <dlfcn.h>

#include <memory>

namespace byteps::tensorflow {
namespace {

std::unique_ptr<const CApi> Load() {
  void* framework = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (framework == nullptr) return nullptr;
  auto api = std::make_unique<CApi>();
#define BYTEPS_TENSORFLOW_FIND(result, name, arguments)                       \
  api->name = reinterpret_cast<decltype(api->name)>(dlsym(framework, #name)); \
  if (api->name == nullptr) return nullptr;
  BYTEPS_TENSORFLOW_FUNCTIONS(BYTEPS_TENSORFLOW_FIND)
#undef BYTEPS_TENSORFLOW_FIND
  api->SetIsDistributedCommunication = reinterpret_cast<decltype(api->SetIsDistributedCommunication)>(
      dlsym(framework, "_ZN10tensorflow12OpDefBuilder29SetIsDistributedCommunicationEv"));
  return api;
}

}  // namespace

const CApi* CApi::Find() {
  static const CApi* const api = Load().release();
  return api;
}

}  // namespace byteps::tensorflow
