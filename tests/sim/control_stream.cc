#include "tests/sim/control_stream.h"

#include "absl/status/status.h"

namespace byteps {

void ControlStream::Open() { stream_ = fabric_->Dial(node_->name(), coordinator_, kCoordinatorPort, this); }

void ControlStream::Send(const control::Envelope& envelope) {
  const absl::StatusOr<std::string> frame = EncodeFrame(envelope);
  if (!frame.ok()) return fabric_->Violation(node_->name() + ": " + frame.status().ToString());
  fabric_->WriteStream(stream_, *frame);
}

void ControlStream::Close() {
  fabric_->CloseStream(stream_);
  stream_ = 0;
}

void ControlStream::OnConnected(sim::StreamId) {
  reader_ = FrameReader(kMaxFrameBytes);
  client_->OnConnected(fabric_->now());
  node_->Wake();
}

void ControlStream::OnBytes(sim::StreamId stream, std::string_view bytes) {
  reader_.Append(bytes.data(), bytes.size());
  control::Envelope envelope;
  while (stream == stream_) {
    const absl::StatusOr<bool> got = reader_.Next(&envelope);
    if (!got.ok()) {
      Close();
      client_->OnClosed(fabric_->now(), got.status());
      return Again();
    }
    if (!*got) break;
    client_->OnFrame(fabric_->now(), envelope);
  }
  node_->Wake();
}

void ControlStream::OnClosed(sim::StreamId, const std::string& why) {
  stream_ = 0;
  client_->OnClosed(fabric_->now(), absl::UnavailableError(why));
  node_->Wake();
  Again();
}

void ControlStream::Again() {
  fabric_->Timer(fabric_->now() + fabric_->random().Between(10, 50) * kMillisecond, [this] {
    if (stream_ == 0 && node_->alive() && client_->WantsConnection()) Open();
  });
}

}  // namespace byteps
