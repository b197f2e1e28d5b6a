// guard.h - no exception may leave a plugin: what it becomes at the function table.
//
//     return Guard([&] { return transport->PostSend(peer, data, size, user); });
//     return GuardWithReason(host, failure, [&](std::string* reason) { return transport->Connect(*args, reason); });
//
// Threads: any. Errors: BPS_RESOURCE_EXHAUSTED for memory that is not there, BPS_INTERNAL for anything else.
#ifndef BYTEPS_TRANSPORT_PLUGINS_COMMON_GUARD_H_
#define BYTEPS_TRANSPORT_PLUGINS_COMMON_GUARD_H_

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "abi/byteps.h"
#include "abi/plugin.h"
#include "transport_plugins/common/host.h"

namespace byteps::transports {

// `function` answers with a code.
template <typename Function>
int32_t Guard(Function function) noexcept {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return BPS_RESOURCE_EXHAUSTED;
  } catch (const std::exception&) {
    return BPS_INTERNAL;
  }
}

// The same for functions that say why they failed: `function` gets a string for the reason.
template <typename Function>
int32_t GuardWithReason(const Host& host, bps_failure* failure, Function function) noexcept {
  try {
    std::string reason;
    const int32_t code = function(&reason);
    return code == BPS_OK ? code : host.Fail(failure, code, reason);
  } catch (const std::bad_alloc&) {
    return host.FailLiteral(failure, BPS_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::exception& error) {
    return host.FailLiteral(failure, BPS_INTERNAL, error.what());
  }
}

}  // namespace byteps::transports

#endif  // BYTEPS_TRANSPORT_PLUGINS_COMMON_GUARD_H_
