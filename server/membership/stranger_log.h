// stranger_log.h - a few lines about those that knock at the coordinator's port and are turned away.
//
//     StrangerLog strangers(log);
//     strangers.Say(now, address, "what came is no BytePS control message ...");
//     strangers.Flush();                                  // at the end: how many were not told
//
// A port scanner, a browser, or a worker of another job that tries again and again must be seen, and must not fill the
// disk: the first kBurst lines are written at once, then one in kInterval, which says how many were left out.
//
// Threads:   none.
// Ownership: the log must outlive it.
#ifndef BYTEPS_SERVER_MEMBERSHIP_STRANGER_LOG_H_
#define BYTEPS_SERVER_MEMBERSHIP_STRANGER_LOG_H_

#include <cstdint>
#include <string>

#include "core/base/log.h"
#include "core/base/time.h"

namespace byteps {

class StrangerLog {
 public:
  static constexpr uint32_t kBurst = 10;
  static constexpr Time kInterval = 10 * kSecond;

  explicit StrangerLog(const Logger* log) : log_(log) {}

  void Say(Time now, const std::string& address, const std::string& what);
  void Flush();

 private:
  const Logger* const log_;
  uint32_t lines_ = kBurst;  // that may be written now
  Time refilled_ = 0;
  uint64_t left_out_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_STRANGER_LOG_H_
