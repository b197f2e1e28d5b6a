#include "core/plugin/plugin_file.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/open_files.h"
#include "core/base/unique_fd.h"

namespace byteps {
namespace {

constexpr int kNewestMajor = 8;  // how far to look for other versions, to name them

std::string LastError() {
  const char* error = dlerror();
  return error == nullptr ? "unknown error" : error;
}

// "bps_transport_plugin_v" and 1 of "bps_transport_plugin_v1".
std::pair<std::string, int> SplitVersion(const std::string& entry) {
  const size_t digits = entry.find_last_not_of("0123456789") + 1;
  return {entry.substr(0, digits), std::atoi(entry.c_str() + digits)};
}

// The object that `address` is in; nullptr if it is in none.
const link_map* ObjectOf(const void* address) {
  Dl_info info;
  link_map* map = nullptr;
  if (dladdr1(address, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) return nullptr;
  return map;
}

absl::Status WrongMajor(void* handle, const std::string& entry) {
  const auto [stem, wanted] = SplitVersion(entry);
  for (int major = 1; major <= kNewestMajor; ++major) {
    if (major == wanted || dlsym(handle, absl::StrCat(stem, major).c_str()) == nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat("it is written for major version ", major,
                                                      " of the plugin contract, this library for ", wanted,
                                                      ": use a plugin and a library of one release"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("it exports no function ", entry, ": is it a plugin of this kind?"));
}

}  // namespace

std::string PluginFileName(std::string_view kind, std::string_view name) {
  return std::string("libbyteps_").append(kind).append("_").append(name).append(".so");
}

std::string PluginNameOf(std::string_view kind, std::string_view path) {
  const std::string_view file = path.substr(path.rfind('/') + 1);
  const std::string prefix = std::string("libbyteps_").append(kind).append("_");
  constexpr std::string_view kSuffix = ".so";
  if (file.size() <= prefix.size() + kSuffix.size() || file.substr(0, prefix.size()) != prefix ||
      file.substr(file.size() - kSuffix.size()) != kSuffix) {
    return "";
  }
  return std::string(file.substr(prefix.size(), file.size() - prefix.size() - kSuffix.size()));
}

bool FileExists(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0;
}

absl::Status CheckWhole(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return absl::OkStatus();
  ElfW(Ehdr) header;
  if (pread(file.get(), &header, sizeof header, 0) != sizeof header) return absl::OkStatus();
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(ElfW(Phdr))) {
    return absl::OkStatus();
  }
  uint64_t least = 0;
  for (ElfW(Half) index = 0; index < header.e_phnum; ++index) {
    ElfW(Phdr) segment;
    const auto offset = static_cast<off_t>(header.e_phoff + index * sizeof segment);
    if (pread(file.get(), &segment, sizeof segment, offset) != sizeof segment) {
      least = header.e_phoff + uint64_t{header.e_phnum} * sizeof segment;
      break;
    }
    if (segment.p_type == PT_LOAD) least = std::max<uint64_t>(least, segment.p_offset + segment.p_filesz);
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size >= least) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the file is cut off: it has ", size, " bytes of at least ", least, ". Copy it anew"));
}

bool PluginLoaded(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  dlclose(handle);
  return true;
}

absl::StatusOr<void*> LoadPluginEntry(const std::string& path, const std::string& entry) {
  if (absl::Status whole = CheckWhole(path); !whole.ok()) return whole;
  // A path without '/' would be searched for in LD_LIBRARY_PATH; ours always have one.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    // The caller knows the path.
    std::string error = LastError();
    if (error.compare(0, path.size() + 2, path + ": ") == 0) error.erase(0, path.size() + 2);
    // (The loader gives no number.)
    if (error.find(std::strerror(EMFILE)) != std::string::npos) {
      return absl::ResourceExhaustedError(error + OpenFilesAdvice(EMFILE));
    }
    return absl::FailedPreconditionError(error);
  }
  void* symbol = dlsym(handle, entry.c_str());
  if (symbol == nullptr) return WrongMajor(handle, entry);
  // dlsym also searches the dependencies: a file without an entry that links another plugin would pass for that one.
  link_map* own = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &own) != 0) return absl::FailedPreconditionError(LastError());
  const link_map* found = ObjectOf(symbol);
  if (found != own) {
    return absl::FailedPreconditionError(absl::StrCat("its function ", entry, " is not its own, but comes from ",
                                                      found == nullptr ? "elsewhere" : found->l_name));
  }
  return symbol;
}

std::string OwnFolder() {
  const link_map* own = ObjectOf(reinterpret_cast<const void*>(&OwnFolder));
  // The program itself has no name in the list of objects.
  const char* name = own == nullptr || own->l_name[0] == '\0' ? "/proc/self/exe" : own->l_name;
  char resolved[PATH_MAX];
  if (realpath(name, resolved) == nullptr) return "";
  const std::string path(resolved);
  return path.substr(0, path.rfind('/'));
}

}  // namespace byteps
