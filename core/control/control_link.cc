#include "core/control/control_link.h"

#include <poll.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "core/base/auth.h"
#include "core/control/control_socket.h"
#include "core/control/host_identity.h"

namespace byteps {
namespace {

ControlClientOptions Filled(ControlClientOptions client, const ControlConnectionOptions& connection,
                            std::function<std::string()> own_trouble) {
  client.coordinator = HostPort(connection.host, connection.port);
  client.own_trouble = std::move(own_trouble);
  return client;
}

}  // namespace

ControlLink::ControlLink(ControlLinkOptions options, ControlHandler* handler, Time now)
    : token_(options.client.token),
      allow_unauthenticated_(options.allow_unauthenticated),
      now_(now),
      client_(
          Filled(std::move(options.client), options.connection, [this] { return OwnAddressTrouble(local_address_); }),
          handler, now),
      connection_(std::move(options.connection), this, now) {}

Time ControlLink::NextTimer() const { return std::min(connection_.NextTimer(), client_.NextTimer()); }

void ControlLink::Drive(Time now) {
  now_ = now;
  connection_.Drive(now);
  client_.Tick(now);
}

void ControlLink::OnConnected() {
  local_address_ = connection_.local_address();
  const absl::Status allowed = CheckUnauthenticated(token_, allow_unauthenticated_, connection_.peer_address());
  if (!allowed.ok()) {
    client_.OnRefused(now_, allowed);
    connection_.Close();
    return;
  }
  client_.OnConnected(now_);
}

void ControlLink::OnClosed(const absl::Status& why) {
  // While it connects, a refusal that no coordinator could lift is reported at once, not at the end of the wait.
  absl::Status refused;
  if (client_.state() == ControlState::kConnecting) {
    for (const std::string& address : connection_.known_addresses()) {
      // A call of "any address" is answered by a loopback address.
      const bool any = address == "0.0.0.0" || address == "::";
      refused = any ? absl::OkStatus() : CheckUnauthenticated(token_, allow_unauthenticated_, address);
      if (refused.ok()) break;
    }
  }
  if (!refused.ok()) return client_.OnRefused(now_, refused);
  client_.OnClosed(now_, why);
}

void ControlLink::Drain(Time deadline) {
  for (Time now = Now(); connection_.connected() && !connection_.flushed() && now < deadline; now = Now()) {
    struct pollfd poll_fd = {connection_.fd(), connection_.events(), 0};
    ::poll(&poll_fd, 1, PollTimeout(now, deadline));
    connection_.Drive(Now());
  }
}

}  // namespace byteps
