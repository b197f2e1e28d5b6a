#include "device_plugins/cuda/nccl.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

namespace byteps::cuda {
namespace {

constexpr char kLibrary[] = "libnccl.so.2";
// The original's default of BYTEPS_NCCL_HOME.
constexpr char kUsualHome[] = "/usr/local/nccl";

// nvidia/nccl/lib below one of the folders that this plugin lies in: site-packages, where both were installed by pip.
std::string InSitePackages() {
  Dl_info own;
  if (::dladdr(reinterpret_cast<const void*>(&FindNccl), &own) == 0 || own.dli_fname == nullptr) return "";
  std::string folder = own.dli_fname;
  for (size_t slash = folder.rfind('/'); slash != std::string::npos && slash != 0; slash = folder.rfind('/')) {
    folder.erase(slash);
    const std::string path = folder + "/nvidia/nccl/lib/" + kLibrary;
    if (::access(path.c_str(), R_OK) == 0) return path;
  }
  return "";
}

bool SameFile(const std::string& a, const std::string& b) {
  struct stat one = {}, other = {};
  return ::stat(a.c_str(), &one) == 0 && ::stat(b.c_str(), &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

std::string LastError() {
  const char* text = ::dlerror();
  return text == nullptr ? "unknown error" : text;
}

}  // namespace

std::string NcclVersion(int number) {
  // Since 2.9 the minor version has two digits.
  const int base = number >= 10000 ? 10000 : 1000;
  return std::to_string(number / base) + "." + std::to_string(number % base / 100) + "." + std::to_string(number % 100);
}

Nccl FindNccl(const std::string& home) {
  Nccl found;
  std::string tried;
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  const bool was_loaded = library != nullptr;
  const std::vector<std::string> paths = {home.empty() ? "" : home + "/lib/" + kLibrary, InSitePackages(),
                                          std::string(kUsualHome) + "/lib/" + kLibrary, kLibrary};
  for (size_t i = 0; library == nullptr && i < paths.size(); ++i) {
    if (paths[i].empty()) continue;
    library = ::dlopen(paths[i].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) tried += (tried.empty() ? "" : "; ") + LastError();
  }
  if (library == nullptr) {
    found.why_not = tried;
    return found;
  }
  auto* get_version = reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  Dl_info where;
  int number = 0;
  if (get_version == nullptr || get_version(&number) != 0 ||
      ::dladdr(reinterpret_cast<const void*>(get_version), &where) == 0) {
    found.why_not = std::string(kLibrary) + " does not tell its version";
    return found;
  }
  const std::string text = "NCCL " + NcclVersion(number) + ", " + where.dli_fname;
  if (was_loaded && !home.empty() && !SameFile(paths[0], where.dli_fname)) {
    found.why_not =
        "this process has loaded " + text + " already, not that of BYTEPS_NCCL_HOME=" + home +
        ", and two do not live in one process: unset BYTEPS_NCCL_HOME, or load its NCCL first (LD_PRELOAD=" + paths[0] +
        ")";
    return found;
  }
  found.version = number;
  found.library = library;
  found.text = text;
  return found;
}

}  // namespace byteps::cuda
