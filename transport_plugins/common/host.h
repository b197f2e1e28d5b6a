// host.h - the services of the library that loaded this plugin, as one instance sees them.
//
//     BPS_TRANSPORT_LOG(host, INFO, "opened " + name);
//     return host.Fail(failure, BPS_UNAVAILABLE, "no interface named eth7");
//
// Threads: any.
#ifndef BYTEPS_TRANSPORT_PLUGINS_COMMON_HOST_H_
#define BYTEPS_TRANSPORT_PLUGINS_COMMON_HOST_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "abi/plugin.h"

namespace byteps::transports {

class Host {
 public:
  Host(const bps_plugin_host* table, const void* config, void* log) : table_(table), config_(config), log_(log) {}

  void Log(int32_t level, const char* file, int32_t line, const std::string& message) const;
  int32_t Fail(bps_failure* failure, int32_t code, const std::string& reason) const;

  // Cannot throw.
  int32_t FailLiteral(bps_failure* failure, int32_t code, const char* reason) const noexcept;

  // The value of a configuration variable, "" if it is not set.
  std::string Config(const char* name) const;

  // BYTEPS_PEER_TIMEOUT in seconds (30 if it is not set): how long a peer may leave what it was sent untouched. 0: for
  // ever.
  std::chrono::nanoseconds PeerTimeout() const;

 private:
  // nullptr if it is not set.
  const char* Value(const char* name) const;

  const bps_plugin_host* table_;
  const void* config_;
  void* log_;
};

#define BPS_TRANSPORT_LOG(host, level, message) (host).Log(BPS_LOG_##level, __FILE__, __LINE__, message)

}  // namespace byteps::transports

#endif  // BYTEPS_TRANSPORT_PLUGINS_COMMON_HOST_H_
