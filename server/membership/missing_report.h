// missing_report.h - whom a start waits for, for the members that wait and for the error at its end.
//
//     std::vector<std::string> missing = MissingMembers(session, servers);        // "server 1 of 2", "(... is gone)"
//     absl::Status why = StartTimeoutError(report);
//
// Threads: any; free functions.
#ifndef BYTEPS_SERVER_MEMBERSHIP_MISSING_REPORT_H_
#define BYTEPS_SERVER_MEMBERSHIP_MISSING_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "server/membership/job_session.h"

namespace byteps {

struct ServersPresent {
  int32_t expected = 0;
  size_t present = 0;
  std::deque<std::string> gone;  // who was lost and how; no other has come since
  std::string no_room;           // why a caller could not be let in; empty: none was turned away for want of room
};

// `session`: nullptr: none gathers.
std::vector<std::string> MissingMembers(const JobSession* session, const ServersPresent& servers);

struct StartReport {
  Time waited = 0;
  bool gathering = false;            // a session does
  bool several_hosts = false;        // expected by the coordinator
  std::vector<std::string> missing;  // as MissingMembers
  std::vector<std::string> members;  // that are there
  std::deque<std::string> refused;   // why others were refused
  std::string failed_start;          // why the last start failed; empty: none did
};

// DEADLINE_EXCEEDED, with all of it and what to look at.
absl::Status StartTimeoutError(const StartReport& report);

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_MISSING_REPORT_H_
