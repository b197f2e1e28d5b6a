#include "transport_plugins/shm/control_socket.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace byteps::shm {
namespace {

constexpr int kType = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kBacklog = 1024;
constexpr size_t kMaxDescriptors = 2;
constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, which Debian 12's headers do not have yet

socklen_t Fill(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
}

}  // namespace

UniqueFd ListenAt(const std::string& name, std::string* reason) {
  UniqueFd fd(::socket(AF_UNIX, kType, 0));
  sockaddr_un address;
  const socklen_t size = Fill(name, &address);
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    *reason = std::string("no Unix socket: ") + std::strerror(errno);
    return UniqueFd();
  }
  return fd;
}

UniqueFd CallAt(const std::string& name, int* error) {
  UniqueFd fd(::socket(AF_UNIX, kType, 0));
  sockaddr_un address;
  const socklen_t size = Fill(name, &address);
  if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    *error = errno;
    return UniqueFd();
  }
  *error = 0;
  return fd;
}

int SendControl(int fd, const Control& control, std::initializer_list<int> descriptors) {
  iovec part{const_cast<Control*>(&control), sizeof control};
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors.size() != 0) {
    message.msg_control = space;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.begin(), descriptors.size() * sizeof(int));
  }
  while (::sendmsg(fd, &message, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS ? EAGAIN : errno;
  }
  return 0;
}

int ReceiveControl(int fd, Packet* packet) {
  packet->descriptors.clear();
  iovec part{&packet->control, sizeof packet->control};
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  ssize_t size = 0;
  do {
    size = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return errno == EWOULDBLOCK ? EAGAIN : errno;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
      packet->descriptors.emplace_back(descriptor);
    }
  }
  packet->cut = (message.msg_flags & MSG_CTRUNC) != 0;
  const bool whole = size == static_cast<ssize_t>(sizeof(Control)) && packet->control.magic == kControlMagic &&
                     (message.msg_flags & MSG_TRUNC) == 0;
  return whole ? 0 : ECONNRESET;
}

Caller CallerOf(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  Caller caller;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) caller = {credentials.pid, credentials.uid};
  return caller;
}

UniqueFd OpenCaller(int fd, const Caller& caller, bool* ended) {
  *ended = false;
  if (caller.pid <= 0) return UniqueFd();
  int process = -1;
  socklen_t size = sizeof process;
  if (::getsockopt(fd, SOL_SOCKET, kPeerPidfd, &process, &size) == 0) return UniqueFd(process);
  // So says a kernel that knows the question of a process that is gone.
  *ended = errno == EINVAL || errno == ESRCH;
  return *ended ? UniqueFd() : UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, caller.pid, 0)));
}

}  // namespace byteps::shm
