// host.h - the services of the library that loaded this plugin.
//
//     std::string value = Config(host, config, "BYTEPS_NCCL_HOME");
//     return Answer(host, failure, [&] { ... throw Error(...); });     // no exception leaves the plugin
//
// Threads: any.
#ifndef BYTEPS_DEVICE_PLUGINS_COMMON_HOST_H_
#define BYTEPS_DEVICE_PLUGINS_COMMON_HOST_H_

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "abi/plugin.h"
#include "device_plugins/common/error.h"

namespace byteps::devices {

// The value of a configuration variable, "" if it is not set.
inline std::string Config(const bps_plugin_host* host, const void* config, const char* name) {
  const char* value = host == nullptr || host->config == nullptr ? nullptr : host->config(config, name);
  return value == nullptr ? "" : value;
}

inline int32_t Fail(const bps_plugin_host* host, bps_failure* failure, int32_t code, const char* reason) noexcept {
  return host == nullptr || failure == nullptr ? code : host->fail(failure, code, reason);
}

// Runs `function`; BPS_OK, or the code of what it threw.
template <typename Function>
int32_t Answer(const bps_plugin_host* host, bps_failure* failure, Function function) noexcept {
  try {
    function();
    return BPS_OK;
  } catch (const Error& error) {
    return Fail(host, failure, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return Fail(host, failure, BPS_RESOURCE_EXHAUSTED, "the host has no memory left");
  } catch (const std::exception& error) {
    return Fail(host, failure, BPS_INTERNAL, error.what());
  }
}

}  // namespace byteps::devices

#endif  // BYTEPS_DEVICE_PLUGINS_COMMON_HOST_H_
