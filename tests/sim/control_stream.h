// control_stream.h - a member's connection to the coordinator over a stream of the fabric: what ControlLink is on
// sockets.
//
//     ControlStream stream(&fabric, &node, "coordinator", &client);
//     stream.Open();
//     stream.Send(envelope);          // the ControlHandler's
//
// Bytes go through the codec of the real connection. A failed attempt is made again as long as the client wants one.
#ifndef BYTEPS_TESTS_SIM_CONTROL_STREAM_H_
#define BYTEPS_TESTS_SIM_CONTROL_STREAM_H_

#include <memory>
#include <string>
#include <string_view>

#include "core/control/control_client.h"
#include "core/control/control_codec.h"
#include "tests/sim/node.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {

inline constexpr uint16_t kCoordinatorPort = 9000;

class ControlStream : public sim::StreamHandler {
 public:
  ControlStream(sim::SimFabric* fabric, Node* node, std::string coordinator, ControlClient* client)
      : fabric_(fabric), node_(node), coordinator_(std::move(coordinator)), client_(client) {}

  void Open();
  void Send(const control::Envelope& envelope);
  void Close();

 private:
  void OnAccept(sim::StreamId, const std::string&) override {}
  void OnConnected(sim::StreamId stream) override;
  void OnBytes(sim::StreamId stream, std::string_view bytes) override;
  void OnClosed(sim::StreamId stream, const std::string& why) override;
  void Again();

  sim::SimFabric* const fabric_;
  Node* const node_;
  const std::string coordinator_;
  ControlClient* const client_;
  sim::StreamId stream_ = 0;
  FrameReader reader_{kMaxFrameBytes};
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_CONTROL_STREAM_H_
