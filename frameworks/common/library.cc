#include "frameworks/common/library.h"

#include <dlfcn.h>

#include <stdexcept>

namespace byteps::binding {

namespace {

void* Find(void* handle, const std::string& path, const char* name) {
  void* symbol = dlsym(handle, name);
  if (symbol == nullptr) {
    throw std::runtime_error(path + " has no function " + name +
                             "; it is older than this package. Install both from the same release.");
  }
  return symbol;
}

}  // namespace

std::shared_ptr<Library> Library::Load(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw std::runtime_error(reason != nullptr ? reason : path + " could not be opened");
  }

  auto library = std::make_shared<Library>();
  library->path = path;
#define BYTEPS_BINDING_FIND(name) library->name = reinterpret_cast<decltype(&::name)>(Find(handle, path, #name));
  BYTEPS_BINDING_FUNCTIONS(BYTEPS_BINDING_FIND)
#undef BYTEPS_BINDING_FIND

  int32_t major = 0;
  int32_t minor = 0;
  library->bps_version(&major, &minor);
  if (major != BPS_ABI_MAJOR) {
    throw std::runtime_error(path + " speaks version " + std::to_string(major) + "." + std::to_string(minor) +
                             " of the ABI, this package version " + std::to_string(BPS_ABI_MAJOR) + "." +
                             std::to_string(BPS_ABI_MINOR) + ". Install both from the same release.");
  }
  return library;
}

}  // namespace byteps::binding
