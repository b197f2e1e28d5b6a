// The control plane: frames cut as they come, and what is in them said to the coordinator, by a stranger and by
// members, and to members in the coordinator's name.
#include <string>

#include "core/control/control_client.h"
#include "core/control/control_codec.h"
#include "server/membership/coordinator.h"
#include "tests/fuzz/input.h"
#include "tests/server/membership/control_job.h"

namespace byteps::fuzz {
namespace {

void Run(Input input) {
  CoordinatorOptions options;
  options.job = "job";
  ControlJob job(options);
  ControlMember& worker = job.AddWorker({});
  ControlMember& server = job.AddServer({});
  job.Settle();
  ControlMember stranger(&job, ControlJob::WorkerHello({.host = 1, .hosts = 2}), "", job.now());
  job.Connect(stranger);
  while (!input.empty()) {
    const uint8_t who = input.Byte();
    const std::span<const std::byte> bytes = input.Piece();
    FrameReader reader(who % 2 == 0 ? kMaxHelloBytes : kMaxFrameBytes);
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    const size_t half = bytes.size() / 2;
    reader.Append(text, half);
    control::Envelope envelope;
    absl::StatusOr<bool> whole = reader.Next(&envelope);
    if (whole.ok() && !*whole) {
      reader.Append(text + half, bytes.size() - half);
      whole = reader.Next(&envelope);
    }
    // Or without a frame: the fuzzer need not learn it.
    if (!whole.ok() || !*whole) {
      if (!envelope.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) continue;
    }
    EnvelopeName(envelope);
    EncodeFrame(envelope).IgnoreError();
    ControlMember* const members[] = {&stranger, &worker, &server};
    ControlMember& member = *members[(who >> 1) % 3];
    if (member.connection == 0) continue;
    if (who >= 128) {
      job.Send(member.connection, envelope);
    } else {
      job.SendToCoordinator(member.connection, envelope);
    }
    job.Settle();
    if (who % 16 == 0) job.Advance(kSecond);
  }
  job.Advance(10 * kSecond);
}

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  byteps::fuzz::Run(byteps::fuzz::Input(data, size));
  return 0;
}
