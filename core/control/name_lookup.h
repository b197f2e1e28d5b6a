// name_lookup.h - the addresses of a host by its name, asked on a thread of its own: a resolver may block for long.
//
//     NameLookup lookup("node7", 9000);
//     poll({lookup.fd(), POLLIN}, ...);                 // or: lookup.Wait(After(Now(), 5 * kSecond))
//     if (lookup.done()) use lookup.addresses(), or lookup.status()
//
// A numeric address is answered by the constructor. A lookup that is not waited for any more goes on until the resolver
// answers, and its answer is lost.
//
// Threads: one at a time; the thread of the lookup touches nothing that the object's owner sees before done().
#ifndef BYTEPS_CORE_CONTROL_NAME_LOOKUP_H_
#define BYTEPS_CORE_CONTROL_NAME_LOOKUP_H_

#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/time.h"

namespace byteps {

struct SocketAddress {
  struct sockaddr_storage bytes = {};
  socklen_t size = 0;
  std::string text;  // numeric, without the port

  int family() const { return bytes.ss_family; }
  const struct sockaddr* get() const { return reinterpret_cast<const struct sockaddr*>(&bytes); }
};

class NameLookup {
 public:
  NameLookup(const std::string& host, int port);
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

  // Readable once there is an answer; -1: there is one already, or no descriptor was left.
  int fd() const;
  bool done() const;
  // Blocks until there is an answer; false: none came before `deadline`.
  bool Wait(Time deadline) const;

  // When done: the addresses in the resolver's order, or why there are none (UNAVAILABLE, the resolver's own words).
  const absl::Status& status() const;
  const std::vector<SocketAddress>& addresses() const;

 private:
  struct Answer;

  std::shared_ptr<Answer> answer_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_CONTROL_NAME_LOOKUP_H_
