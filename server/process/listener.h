// listener.h - the socket the coordinator listens on.
//
//     absl::StatusOr<UniqueFd> listener = Listen({.host = "10.0.0.1", .port = 9000});
//     absl::StatusOr<UniqueFd> inherited = InheritListener(fd);       // BYTEPS_COORDINATOR_FD
//
// A launcher that opens the port itself and hands the socket down knows the port before the members start, and no other
// program can take it in between.
//
// Errors say which address and which variables they are from, and what to do.
#ifndef BYTEPS_SERVER_PROCESS_LISTENER_H_
#define BYTEPS_SERVER_PROCESS_LISTENER_H_

#include <string>

#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"

namespace byteps {

struct ListenOptions {
  std::string host;            // name or numeric address of this host, IPv4 or IPv6
  int port = 0;                // 0: any free one
  bool all_addresses = false;  // DMLC_USE_KUBERNETES: `host` is a name that leads here, but no address of ours
};

absl::StatusOr<UniqueFd> Listen(const ListenOptions& options);
absl::StatusOr<UniqueFd> InheritListener(int fd);

// "127.0.0.1:9000": where a listener listens.
std::string ListenerAddress(int fd);

}  // namespace byteps

#endif  // BYTEPS_SERVER_PROCESS_LISTENER_H_
