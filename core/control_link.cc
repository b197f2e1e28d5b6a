#include "core/control_link.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "core/auth.h"

namespace byteps {
namespace {

ControlClientOptions WithCoordinator(ControlClientOptions client, const ControlConnectionOptions& connection) {
  client.coordinator = HostPort(connection.host, connection.port);
  return client;
}

}  // namespace

ControlLink::ControlLink(ControlLinkOptions options, ControlHandler* handler, Time now)
    : token_(options.client.token),
      allow_unauthenticated_(options.allow_unauthenticated),
      now_(now),
      client_(WithCoordinator(std::move(options.client), options.connection), handler, now),
      connection_(std::move(options.connection), this, now) {}

Time ControlLink::NextTimer() const { return std::min(connection_.NextTimer(), client_.NextTimer()); }

void ControlLink::Drive(Time now) {
  now_ = now;
  connection_.Drive(now);
  client_.Tick(now);
}

void ControlLink::OnConnected() {
  const absl::Status allowed = CheckUnauthenticated(token_, allow_unauthenticated_, connection_.peer_address());
  if (!allowed.ok()) {
    client_.OnRefused(now_, allowed);
    connection_.Close();
    return;
  }
  client_.OnConnected(now_);
}

void ControlLink::Drain(Time deadline) {
  for (Time now = Now(); connection_.connected() && !connection_.flushed() && now < deadline; now = Now()) {
    struct pollfd poll_fd = {connection_.fd(), connection_.events(), 0};
    ::poll(&poll_fd, 1, PollTimeout(now, deadline));
    connection_.Drive(Now());
  }
}

}  // namespace byteps
