#include "transport_plugins/libfabric/host.h"

#include <cmath>
#include <cstdlib>

namespace byteps::fabric {

void Host::Log(int32_t level, const char* file, int32_t line, const std::string& message) const {
  if (table_->log != nullptr) table_->log(log_, level, file, line, message.c_str());
}

int32_t Host::Fail(bps_failure* failure, int32_t code, const std::string& reason) const {
  return FailLiteral(failure, code, reason.c_str());
}

int32_t Host::FailLiteral(bps_failure* failure, int32_t code, const char* reason) const noexcept {
  return failure == nullptr ? code : table_->fail(failure, code, reason);
}

std::chrono::nanoseconds Host::PeerTimeout() const {
  constexpr double kDefault = 30;
  double seconds = kDefault;
  if (const char* text = table_->config == nullptr ? nullptr : table_->config(config_, "BYTEPS_PEER_TIMEOUT")) {
    char* end = nullptr;
    seconds = std::strtod(text, &end);
    if (end == text || *end != '\0' || !std::isfinite(seconds) || seconds < 0 || seconds > 1e6) {
      BPS_FABRIC_LOG(*this, WARNING,
                     std::string("BYTEPS_PEER_TIMEOUT=\"") + text + "\" is no number of seconds; using 30");
      seconds = kDefault;
    }
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace byteps::fabric
