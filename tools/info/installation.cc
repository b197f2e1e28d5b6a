#include "tools/info/installation.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/plugin/plugin_file.h"
#include "tools/info/sysfs.h"

namespace byteps {
namespace {

absl::StatusOr<std::string> Find(const char* what, const char* variable, const std::string& named,
                                 const std::vector<std::string>& places) {
  const std::vector<std::string> sought = named.empty() ? places : std::vector<std::string>{named};
  for (const std::string& place : sought) {
    if (access(place.c_str(), R_OK) == 0) return std::filesystem::weakly_canonical(place).string();
  }
  return absl::NotFoundError(absl::StrCat(what, " was not found; sought: ", absl::StrJoin(sought, ", "),
                                          ". Install the package byteps, or name it by ", variable));
}

}  // namespace

absl::StatusOr<std::string> FindLibrary(const Config& config) {
  const std::string own = OwnFolder();
  return Find("libbyteps.so", "BYTEPS_LIBRARY", config.GetString("BYTEPS_LIBRARY"),
              {own + "/../lib/libbyteps.so", own + "/../core/libbyteps.so"});
}

absl::StatusOr<std::string> FindServer(const Config& config) {
  const std::string own = OwnFolder();
  return Find("byteps_server", "BYTEPS_SERVER_BINARY", config.GetString("BYTEPS_SERVER_BINARY"),
              {own + "/byteps_server", own + "/../server/byteps_server"});
}

std::string LibraryReport(const std::string& path) {
  if (const absl::Status whole = CheckWhole(path); !whole.ok()) return absl::StrCat(path, ": ", whole.message());
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return absl::StrCat(path, ": does not load: ", dlerror());
  const auto release = reinterpret_cast<const char* (*)()>(dlsym(library, "bps_version_string"));
  const auto abi = reinterpret_cast<void (*)(int32_t*, int32_t*)>(dlsym(library, "bps_version"));
  if (release == nullptr || abi == nullptr) return absl::StrCat(path, ": not libbyteps.so: it has no bps_version");
  int32_t major = 0, minor = 0;
  abi(&major, &minor);
  return absl::StrCat(path, ": release ", release(), ", C ABI ", major, ".", minor);
}

std::string PluginsOfCheckout() {
  const std::string root = OwnFolder() + "/..";
  std::vector<std::string> folders;
  for (const char* kind : {"transport", "scheduler", "device"}) {
    const std::string room = absl::StrCat(root, "/", kind, "_plugins");
    for (const std::string& name : Entries(room)) {
      for (const std::string& file : Entries(room + "/" + name)) {
        if (PluginNameOf(kind, file).empty()) continue;
        folders.push_back(std::filesystem::weakly_canonical(room + "/" + name).string());
        break;
      }
    }
  }
  return absl::StrJoin(folders, ":");
}

}  // namespace byteps
