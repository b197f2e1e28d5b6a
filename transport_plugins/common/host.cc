#include "transport_plugins/common/host.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace byteps::transports {
namespace {

// A number of seconds, or of the unit behind it.
bool ParseSeconds(const char* text, double* seconds) {
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  if (end == text || !std::isfinite(number) || number < 0) return false;
  while (*end == ' ') ++end;
  struct Unit {
    std::string_view name;
    double seconds;
  };
  constexpr Unit kUnits[] = {{"", 1}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
  for (const Unit& unit : kUnits) {
    if (unit.name != end) continue;
    *seconds = number * unit.seconds;
    return true;
  }
  return false;
}

}  // namespace

void Host::Log(int32_t level, const char* file, int32_t line, const std::string& message) const {
  if (table_->log != nullptr) table_->log(log_, level, file, line, message.c_str());
}

int32_t Host::Fail(bps_failure* failure, int32_t code, const std::string& reason) const {
  return FailLiteral(failure, code, reason.c_str());
}

int32_t Host::FailLiteral(bps_failure* failure, int32_t code, const char* reason) const noexcept {
  return failure == nullptr ? code : table_->fail(failure, code, reason);
}

const char* Host::Value(const char* name) const {
  return table_->config == nullptr ? nullptr : table_->config(config_, name);
}

std::string Host::Config(const char* name) const {
  const char* value = Value(name);
  return value == nullptr ? "" : value;
}

std::chrono::nanoseconds Host::PeerTimeout() const {
  constexpr double kDefault = 30, kMost = 1e6;
  const char* text = Value("BYTEPS_PEER_TIMEOUT");
  double seconds = kDefault;
  if (text != nullptr && !ParseSeconds(text, &seconds)) {
    BPS_TRANSPORT_LOG(*this, WARNING, "BYTEPS_PEER_TIMEOUT=\"" + std::string(text) + "\" is no time; using 30 s");
    seconds = kDefault;
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(std::min(seconds, kMost)));
}

}  // namespace byteps::transports
