#include "transport_plugins/libfabric/fabric_library.h"

#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <signal.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "transport_plugins/libfabric/descriptors.h"

namespace byteps::fabric {
namespace {

constexpr const char* kLibrary = "libfabric.so.1";

// Puts the handlers of all signals back when it goes; until then none runs on this thread. One at a time, so that none
// takes for the process's own what libfabric has put there under another.
class SignalKeeper {
 public:
  SignalKeeper() : alone_(Alone()) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask_);
    for (int signal = 1; signal < NSIG; ++signal) known_[signal] = sigaction(signal, nullptr, &actions_[signal]) == 0;
  }
  ~SignalKeeper() {
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction now;
      if (known_[signal] && sigaction(signal, nullptr, &now) == 0 &&
          now.sa_sigaction != actions_[signal].sa_sigaction) {
        sigaction(signal, &actions_[signal], nullptr);
      }
    }
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  SignalKeeper(const SignalKeeper&) = delete;
  SignalKeeper& operator=(const SignalKeeper&) = delete;

 private:
  static std::mutex& Alone() {
    static std::mutex mutex;
    return mutex;
  }

  const std::lock_guard<std::mutex> alone_;
  sigset_t mask_;
  std::array<struct sigaction, NSIG> actions_;
  std::array<bool, NSIG> known_{};
};

struct Library {
  Library();

  std::string reason;  // why it is not there; empty if it is
  decltype(&fi_version) version = nullptr;
  decltype(&fi_getinfo) getinfo = nullptr;
  decltype(&fi_freeinfo) freeinfo = nullptr;
  decltype(&fi_dupinfo) dupinfo = nullptr;
  decltype(&fi_fabric) fabric = nullptr;
  decltype(&fi_tostr_r) tostr_r = nullptr;
  decltype(&fi_strerror) strerror = nullptr;

 private:
  template <typename Function>
  void Find(void* handle, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle, name));
    if (*function == nullptr && reason.empty()) reason = std::string(kLibrary) + " has no " + name;
  }
};

Library::Library() {
  const SignalKeeper keeper;
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* error = dlerror();
    reason = std::string(kLibrary) + " cannot be loaded (" + (error == nullptr ? "no reason given" : error) +
             "); install libfabric (Debian: libfabric1)";
    return;
  }
  Find(handle, "fi_version", &version);
  Find(handle, "fi_getinfo", &getinfo);
  Find(handle, "fi_freeinfo", &freeinfo);
  Find(handle, "fi_dupinfo", &dupinfo);
  Find(handle, "fi_fabric", &fabric);
  Find(handle, "fi_tostr_r", &tostr_r);
  Find(handle, "fi_strerror", &strerror);
}

// Made once, never changed, never unloaded.
const Library& TheLibrary() {
  static const Library* const library = new Library;
  return *library;
}

}  // namespace

bool LoadFabricLibrary(std::string* reason) {
  *reason = TheLibrary().reason;
  return reason->empty();
}

std::string ErrorText(int code) {
  const int error = code < 0 ? -code : code;
  const std::string text = TheLibrary().strerror(error);
  return error == EMFILE ? text + DescriptorAdvice() : text;
}

}  // namespace byteps::fabric

// Declared in libfabric's headers.
extern "C" {

uint32_t fi_version() { return byteps::fabric::TheLibrary().version(); }

int fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints,
               fi_info** info) {
  const byteps::fabric::Library& library = byteps::fabric::TheLibrary();
  // The first call loads and starts providers.
  const byteps::fabric::SignalKeeper keeper;
  return library.getinfo(version, node, service, flags, hints, info);
}

void fi_freeinfo(fi_info* info) { byteps::fabric::TheLibrary().freeinfo(info); }

fi_info* fi_dupinfo(const fi_info* info) { return byteps::fabric::TheLibrary().dupinfo(info); }

int fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  return byteps::fabric::TheLibrary().fabric(attributes, fabric, context);
}

char* fi_tostr_r(char* buffer, size_t size, const void* data, fi_type type) {
  return byteps::fabric::TheLibrary().tostr_r(buffer, size, data, type);
}

const char* fi_strerror(int code) { return byteps::fabric::TheLibrary().strerror(code); }

}  // extern "C"
