// refusal_log.h - a few lines about connections that were refused, however many there are.
//
//     RefusalLog refusals;
//     refusals.Say(host, now, "refused a connection from 10.0.0.7:40112, which is not of this job: ...");
//
// A port scanner, or a worker of another job that tries again and again, must be seen and must not fill the disk: the
// first kBurst lines are written at once, then one in each kInterval, which says how many were left out.
//
// Threads: none.
#ifndef BYTEPS_TRANSPORT_PLUGINS_COMMON_REFUSAL_LOG_H_
#define BYTEPS_TRANSPORT_PLUGINS_COMMON_REFUSAL_LOG_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "transport_plugins/common/host.h"

namespace byteps::transports {

class RefusalLog {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr uint32_t kBurst = 10;
  static constexpr std::chrono::seconds kInterval{10};

  void Say(const Host& host, Clock::time_point now, const std::string& what) {
    if (lines_ == kBurst) refilled_ = now;
    while (lines_ < kBurst && now - refilled_ >= kInterval) {
      refilled_ += kInterval;
      ++lines_;
    }
    if (lines_ == 0) {
      ++left_out_;
      return;
    }
    --lines_;
    std::string line = what;
    if (left_out_ != 0) line += " (and " + std::to_string(left_out_) + " more since the last line about them)";
    left_out_ = 0;
    BPS_TRANSPORT_LOG(host, WARNING, line);
  }

 private:
  uint32_t lines_ = kBurst;  // that may be written now
  Clock::time_point refilled_{};
  uint64_t left_out_ = 0;
};

}  // namespace byteps::transports

#endif  // BYTEPS_TRANSPORT_PLUGINS_COMMON_REFUSAL_LOG_H_
