// installation.h - the files that belong to this program: the library that trainers load, the server's program, and, in
// a checkout, the plugins that Bazel has built.
//
//     absl::StatusOr<std::string> library = FindLibrary(config);
//     std::cout << LibraryReport(*library);
//
// In an installed package they lie in lib/ and bin/ beside this program's folder, in a checkout in folders of bazel-bin
// that are named like those of the tree. BYTEPS_LIBRARY and BYTEPS_SERVER_BINARY name others.
//
// Threads: free functions.
// Errors:  NOT_FOUND: names the places where it was sought.
#ifndef BYTEPS_TOOLS_INFO_INSTALLATION_H_
#define BYTEPS_TOOLS_INFO_INSTALLATION_H_

#include <string>

#include "absl/status/statusor.h"
#include "core/config/config.h"

namespace byteps {

absl::StatusOr<std::string> FindLibrary(const Config& config);
absl::StatusOr<std::string> FindServer(const Config& config);

// The version that the library says it has, or why it does not load.
std::string LibraryReport(const std::string& path);

// Folders of plugins as BYTEPS_PLUGIN_PATH names them; "" where this program is none of a checkout.
std::string PluginsOfCheckout();

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_INSTALLATION_H_
