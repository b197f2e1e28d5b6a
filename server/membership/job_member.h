// job_member.h - a role that the coordinator knows, and the connection it is reached by.
//
// Threads: none. Ownership: by its connection; sessions and lists of servers point to it.
#ifndef BYTEPS_SERVER_MEMBERSHIP_JOB_MEMBER_H_
#define BYTEPS_SERVER_MEMBERSHIP_JOB_MEMBER_H_

#include <cstdint>
#include <string>

#include "core/base/time.h"
#include "core/control/control.pb.h"

namespace byteps {

using ConnectionId = uint64_t;
struct JobSession;

struct JobMember {
  uint32_t id = 0;
  control::Hello hello;
  ConnectionId connection = 0;
  JobSession* session = nullptr;  // workers
  int32_t rank = -1;              // -1: not known yet
  bool leaving = false;           // has said goodbye
  Time goodbye_deadline = kNever;

  bool worker() const { return hello.role() == control::WORKER; }
  // `worker rank 1 (host "b", 10.0.0.2, pid 42)`; without a rank as DescribeHello.
  std::string Describe() const;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_JOB_MEMBER_H_
