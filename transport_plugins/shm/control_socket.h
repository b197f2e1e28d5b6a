// control_socket.h - the Unix socket between two endpoints: greetings, descriptors, and the end of either.
//
//     UniqueFd listener = ListenAt(address.SocketName(), &reason);
//     UniqueFd caller = CallAt(theirs.SocketName(), &error);              // EAGAIN: try again later
//     SendControl(fd, bytes, {memory_fd, bell_fd});                        // 0 or errno
//     ReceiveControl(fd, &packet);                                        // packets keep their bounds
//
// Nothing blocks.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_CONTROL_SOCKET_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_CONTROL_SOCKET_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "transport_plugins/shm/unique_fd.h"

namespace byteps::shm {

inline constexpr uint32_t kControlMagic = 0x43485342;  // "BSHC"

// The one form of all that goes over the socket; descriptors travel beside it.
struct Control {
  enum Kind : uint32_t {
    kHello = 1,   // first, both ways; descriptors: memory of the sender's channel, its bell
    kReach = 2,   // `error`: what reading the receiver's memory gave
    kProbe = 3,   // try again to read `probe`: something was permitted
    kRegion = 4,  // descriptor: memory of region `region`, `size` bytes
    kGone = 5,    // region `region` does not exist any more
    kNoRoom = 6,  // the sender has no descriptors left for this connection; perhaps the first word
  };
  uint32_t magic = kControlMagic;
  uint32_t kind = 0;
  uint64_t job_key = 0;
  uint64_t from_nonce = 0;
  uint64_t to_nonce = 0;
  uint32_t from_number = 0;  // what the receiver calls the sender
  int32_t error = 0;
  uint64_t probe = 0;  // address of the sender's nonce in its memory
  uint64_t region = 0;
  uint64_t size = 0;
};
static_assert(sizeof(Control) == 64);

struct Packet {
  Control control;
  std::vector<UniqueFd> descriptors;
  bool cut = false;  // there were more descriptors; this process has no room for them
};

UniqueFd ListenAt(const std::string& name, std::string* reason);
// Invalid where no process listens (*error: ECONNREFUSED) or none has time (EAGAIN).
UniqueFd CallAt(const std::string& name, int* error);

int SendControl(int fd, const Control& control, std::initializer_list<int> descriptors);

// 0, EAGAIN, or ECONNRESET for the end (also for what is no packet of this transport).
int ReceiveControl(int fd, Packet* packet);

// Who has called, or was called: as the kernel noted it when the connection was made.
struct Caller {
  pid_t pid = 0;  // 0: in a PID namespace that this process does not see
  uid_t uid = static_cast<uid_t>(-1);
};
Caller CallerOf(int fd);

// A pidfd of that very process, also if it has ended and its number is in use again (SO_PEERPIDFD, Linux 6.5; before,
// the process that has the number now). Invalid: it is not visible, or has ended. *ended: it is known to have ended.
UniqueFd OpenCaller(int fd, const Caller& caller, bool* ended);

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_CONTROL_SOCKET_H_
