#include "tests/sim/simulated_coordinator.h"

#include "absl/status/status.h"
#include "tests/sim/member_options.h"

namespace byteps {
namespace {

CoordinatorOptions OptionsOf(sim::SimFabric* fabric, const JobOptions& options) {
  CoordinatorOptions own;
  own.job = "job";
  own.token = options.token;
  const size_t hosts = options.hosts.empty() ? options.workers / options.workers_per_host : options.hosts.size();
  own.num_hosts = static_cast<int32_t>(hosts);
  own.num_servers = static_cast<int32_t>(options.servers);
  own.heartbeat = options.heartbeat;
  own.peer_timeout = options.peer_timeout;
  own.linger = options.linger;
  own.random = RandomBytesOf(fabric);
  return own;
}

}  // namespace

SimulatedCoordinator::SimulatedCoordinator(sim::SimFabric* fabric, const JobOptions& options, const Logger* log)
    : Node(fabric, "coordinator", options, [this, fabric] { fabric->Listen(name(), kCoordinatorPort, this); }),
      coordinator_(OptionsOf(fabric, options), this, log, fabric->now()) {}

bool SimulatedCoordinator::Step(Time now) {
  coordinator_.Tick(now);
  return false;
}

void SimulatedCoordinator::OnAccept(sim::StreamId stream, const std::string&) {
  readers_[stream] = std::make_unique<FrameReader>(kMaxHelloBytes);
  coordinator_.OnOpened(now(), stream, "10.0.0.1");
  Wake();
}

void SimulatedCoordinator::OnBytes(sim::StreamId stream, std::string_view bytes) {
  auto reader = readers_.find(stream);
  if (reader == readers_.end()) return;
  reader->second->Append(bytes.data(), bytes.size());
  control::Envelope envelope;
  // The coordinator may close it at any frame.
  while ((reader = readers_.find(stream)) != readers_.end()) {
    const absl::StatusOr<bool> got = reader->second->Next(&envelope);
    if (!got.ok()) {
      readers_.erase(reader);
      fabric()->CloseStream(stream);
      coordinator_.OnClosed(now(), stream, got.status());
      break;
    }
    if (!*got) break;
    coordinator_.OnFrame(now(), stream, envelope);
  }
  Wake();
}

void SimulatedCoordinator::OnClosed(sim::StreamId stream, const std::string& why) {
  if (readers_.erase(stream) == 0) return;
  coordinator_.OnClosed(now(), stream, absl::UnavailableError(why));
  Wake();
}

void SimulatedCoordinator::Send(ConnectionId connection, const control::Envelope& envelope) {
  const absl::StatusOr<std::string> frame = EncodeFrame(envelope);
  if (!frame.ok()) return fabric()->Violation("coordinator: " + frame.status().ToString());
  fabric()->WriteStream(connection, *frame);
}

void SimulatedCoordinator::OnRegistered(ConnectionId connection, const control::Hello&) {
  auto reader = readers_.find(connection);
  if (reader != readers_.end()) reader->second->set_max_frame(kMaxFrameBytes);
}

void SimulatedCoordinator::Close(ConnectionId connection) {
  readers_.erase(connection);
  fabric()->CloseStream(connection);
}

}  // namespace byteps
