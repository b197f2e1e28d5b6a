// plugin_host.h - the library as a plugin sees it, for tests: variables, the lines that were logged, the last reason.
//
//     PluginHost library;
//     library.variables["BYTEPS_PEER_TIMEOUT"] = "soon";
//     const transports::Host host(library.table(), &library, &library);
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGINS_COMMON_PLUGIN_HOST_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGINS_COMMON_PLUGIN_HOST_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "abi/plugin.h"

struct bps_failure {
  std::string reason;
};

namespace byteps {

struct PluginHost {
  std::map<std::string, std::string> variables;
  std::vector<std::string> lines;

  static const bps_plugin_host* table() {
    static constexpr bps_plugin_host kTable = {
        .struct_size = sizeof(bps_plugin_host),
        .log = [](void* log, int32_t, const char*, int32_t,
                  const char* message) { static_cast<PluginHost*>(log)->lines.emplace_back(message); },
        .fail = [](bps_failure* failure, int32_t code, const char* reason) -> int32_t {
          failure->reason = reason;
          return code;
        },
        .config = [](const void* config, const char* name) -> const char* {
          const auto& known = static_cast<const PluginHost*>(config)->variables;
          const auto found = known.find(name);
          return found == known.end() ? nullptr : found->second.c_str();
        },
    };
    return &kTable;
  }
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGINS_COMMON_PLUGIN_HOST_H_
