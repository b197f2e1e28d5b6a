// control_link.h - a member's control plane on a real connection: ControlClient and ControlConnection joined.
//
//     class Session : ControlHandler {
//       void Send(const control::Envelope& envelope) override { link_.Send(envelope); }
//       ...
//       ControlLink link_;
//     };
//     poll({link.fd(), link.events()}, ..., PollTimeout(now, link.NextTimer()));
//     link.Drive(Now());                          // the handler is called in here
//     link.client().Declare(...); link.client().Barrier(...)
//     link.Drain(After(Now(), kSecond));          // before it is destroyed: queued messages leave
//
// A job without a token is refused unless the coordinator is at a loopback address (core/base/auth.h).
//
// Threads:   one at a time.
// Ownership: the handler must outlive the link.
#ifndef BYTEPS_CORE_CONTROL_CONTROL_LINK_H_
#define BYTEPS_CORE_CONTROL_CONTROL_LINK_H_

#include <string>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/control/control_client.h"
#include "core/control/control_connection.h"

namespace byteps {

struct ControlLinkOptions {
  ControlClientOptions client;  // `coordinator` and `own_trouble` are filled from the connection
  ControlConnectionOptions connection;
  bool allow_unauthenticated = false;
};

class ControlLink final : private ControlConnectionHandler {
 public:
  ControlLink(ControlLinkOptions options, ControlHandler* handler, Time now);

  ControlClient& client() { return client_; }
  const ControlClient& client() const { return client_; }

  int fd() const { return connection_.fd(); }
  short events() const { return connection_.events(); }
  Time NextTimer() const;
  // Progress of connection and client. What has arrived is read before a silence is judged.
  void Drive(Time now);

  // Has the coordinator's name an address, as far as is known?
  bool name_known() const { return !connection_.known_addresses().empty(); }

  void Send(const control::Envelope& envelope) { connection_.Send(envelope); }
  // Blocks until what was sent has been taken by the kernel, or the connection is gone, or `deadline`.
  void Drain(Time deadline);

 private:
  void OnConnected() override;
  void OnFrame(const control::Envelope& envelope) override { client_.OnFrame(now_, envelope); }
  void OnClosed(const absl::Status& why) override;
  bool WantsConnection() override { return client_.WantsConnection(); }

  const std::string token_;
  const bool allow_unauthenticated_;
  Time now_;
  std::string local_address_;  // of this end of the connection, also when it is lost
  ControlClient client_;
  ControlConnection connection_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_CONTROL_CONTROL_LINK_H_
