// plugin_file.h - one plugin on disk: its name, and its entry point.
//
//     PluginFileName("transport", "tcp")                  // "libbyteps_transport_tcp.so"
//     absl::StatusOr<void*> entry = LoadPluginEntry(path, "bps_transport_plugin_v1");
//
// The file is opened with RTLD_NOW (what is missing fails here, with a text), RTLD_LOCAL (its symbols meet no others)
// and RTLD_NODELETE (statuses, thread-locals and exit handlers may point into it: nothing is ever unloaded).
//
// Threads: free functions without state.
#ifndef BYTEPS_CORE_PLUGIN_PLUGIN_FILE_H_
#define BYTEPS_CORE_PLUGIN_PLUGIN_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace byteps {

std::string PluginFileName(std::string_view kind, std::string_view name);

// The <name> in libbyteps_<kind>_<name>.so at the end of `path`; "" if it is not of this form.
std::string PluginNameOf(std::string_view kind, std::string_view path);

bool FileExists(const std::string& path);

// Is the shared object all there? The loader maps what a file's header promises and touches it: of one that was cut
// off, by a full disk or a copy that is still under way, the process would end by SIGBUS. What is no shared object of
// this machine's kind is left to the loader, which has an error for it. Errors: FAILED_PRECONDITION, without the path.
absl::Status CheckWhole(const std::string& path);

// Is it in this process already, so that none of its code runs when it is loaded again?
bool PluginLoaded(const std::string& path);

// The entry point of the file, which must be defined in the file itself. Its name ends in the major version; where the
// file has another one, the error says which. Errors: FAILED_PRECONDITION, without the path.
absl::StatusOr<void*> LoadPluginEntry(const std::string& path, const std::string& entry);

// The folder of the file that holds this very code: libbyteps.so, or the program it is linked into.
std::string OwnFolder();

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_PLUGIN_FILE_H_
