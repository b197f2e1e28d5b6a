// coordinator_connection.h - a connection as the coordinator sees it, and what the parts of the coordinator share.
#ifndef BYTEPS_SERVER_MEMBERSHIP_COORDINATOR_CONNECTION_H_
#define BYTEPS_SERVER_MEMBERSHIP_COORDINATOR_CONNECTION_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "server/membership/coordinator.h"
#include "server/membership/job_member.h"

namespace byteps {

// Lists of the missing are sent this long after a change, so that a thousand arrivals are not a million messages.
inline constexpr Time kAnnounceDelay = 100 * kMillisecond;
// Of a member that gives up.
inline constexpr size_t kMaxLastWords = 4096;

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

struct Coordinator::Connection {
  ConnectionId id = 0;
  std::string address;
  std::string nonce;
  Time opened = 0;
  Time last_heard = 0;
  std::unique_ptr<JobMember> member;  // nullptr: challenged
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_COORDINATOR_CONNECTION_H_
