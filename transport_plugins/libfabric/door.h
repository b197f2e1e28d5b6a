// door.h - the listening socket of an endpoint: a caller is handed to libfabric when it has said all of its request.
//
//     std::string why;
//     auto door = Door::Replace(address, &why);       // after fi_passive_ep, before fi_listen
//     door->Listen();                                 // after fi_listen
//     door->Progress(now, of_this_job, &refused);     // accepts, reads, refuses, closes; hands a request over
//     door->Admit(data);                              // when FI_CONNREQ tells of it: its socket is the caller's now
//
// What is wrong with libfabric's own: it accepts every caller and waits without limit for a request (as many
// descriptors as the caller likes to open); 1.17 keeps a connection that the other side has closed, wakes for it again
// and again, and blocks its thread in recv(2) where a request is announced and does not come. So its passive endpoint
// gets another listening socket, a Unix socket that no other process can reach, and the door keeps the one of the
// network. A caller's request (32 bytes of libfabric's header, then ours) is read here, with a deadline, and checked. A
// request of this job is played to libfabric through that Unix socket; when its FI_CONNREQ comes, the caller's socket
// takes the place of the Unix connection that libfabric has accepted (dup3 onto its number). From then on there is no
// difference to a connection that libfabric has accepted by itself, and nothing of this is in the way of data.
//
// This rests on: a passive endpoint has its socket from fi_passive_ep on and listens in fi_listen; it names sockets by
// number; between FI_CONNREQ and fi_endpoint it does not wait on the socket of a request. So do 1.17 and 2.x.
//
// Limits: kMost callers that have not said their request, each for kPatience; then the oldest of the host that has most
// of them goes. The kernel shows callers that have sent nothing only after kDeferred, so a caller of this job, which
// speaks at once, is rarely among them.
//
// Threads: one at a time.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DOOR_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DOOR_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport_plugins/common/unique_fd.h"

namespace byteps::fabric {

class Door {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMost = 128;
  static constexpr std::chrono::seconds kPatience{10};
  static constexpr std::chrono::seconds kDeferred{2};

  // Is this what a caller of this job says (what fi_connect was given)?
  using Check = std::function<bool(std::span<const std::byte> data)>;
  // Who was refused ("10.0.0.7:40112"), and why.
  using Refused = std::function<void(const std::string& who, const std::string& why)>;

  // `address`: as fi_getname of the passive endpoint gives it. nullptr, and the reason, if that cannot be done here;
  // libfabric's socket is then as it was.
  static std::unique_ptr<Door> Replace(const std::string& address, std::string* reason);
  // 0 or an errno.
  int Listen();

  // Readable when Progress has something to do.
  int fd() const { return epoll_.get(); }
  // When Progress has something to do although fd() is not readable; time_point::max(): never.
  Clock::time_point NextDeadline() const;

  void Progress(Clock::time_point now, const Check& check, const Refused& refused);
  // A request that libfabric has not told of yet: read its event queue.
  bool handing() const { return handed_.has_value(); }
  // FI_CONNREQ has come with this data. False: there is no such caller (any more).
  bool Admit(std::span<const std::byte> data);
  // Hands the next request over, if there is one.
  void HandOver(Clock::time_point now);

 private:
  // libfabric's header of a request, in front of what fi_connect was given.
  static constexpr size_t kHead = 32, kMostData = 256;

  struct Caller {
    transports::UniqueFd socket;
    std::string host, who;
    Clock::time_point since;
    size_t got = 0;
    std::array<std::byte, kHead + kMostData> bytes{};

    size_t data_size() const;
    bool complete() const { return got >= kHead && got == kHead + data_size(); }
    std::span<const std::byte> data() const { return {bytes.data() + kHead, data_size()}; }
  };
  struct Handed {
    Caller caller;
    transports::UniqueFd inner;  // our end of the connection that libfabric accepts
    std::string name;            // of that end
    Clock::time_point since;
  };

  Door() = default;
  bool Watch(int fd, uint64_t number);
  bool ListenInside(std::string* reason);
  void Accept(Clock::time_point now, const Check& check, const Refused& refused);
  void Read(uint64_t number, const Check& check, const Refused& refused);
  void MakeRoom(const Refused& refused);
  void Expire(Clock::time_point now, const Refused& refused);
  bool CallInside(Handed* handed);

  transports::UniqueFd epoll_, listener_, inside_, spare_;
  std::vector<char> inner_address_;  // sockaddr_un of inside_
  std::string inner_path_;
  size_t most_ = kMost;
  uint64_t next_ = 1;                   // 0: the listener
  std::map<uint64_t, Caller> callers_;  // by number: the oldest first
  std::deque<Caller> ready_;
  std::optional<Handed> handed_;
  Clock::time_point retry_{};         // of what could not be handed over
  Clock::time_point paused_until_{};  // the listener is not watched: no descriptors
  bool paused_ = false;
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DOOR_H_
