// A server lane whose workers say anything. It stays, and when their session has ended nothing of it is left.
#include "server/reducer/reducer.h"
#include "tests/fuzz/input.h"
#include "tests/server/reducer/reduction_world.h"

namespace byteps::fuzz {
namespace {

void Run(Input input) {
  ReductionWorldOptions options;
  options.memory = 1 << 20;
  options.slot_bytes = 4096;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(2);
  BPS_FUZZ_CHECK(session != nullptr);
  for (const auto& worker : session->workers) worker->takes_anything = true;
  while (!input.empty()) {
    const uint8_t first = input.Byte();
    ScriptedWorker& worker = session->worker(first >> 7);
    const std::span<const std::byte> body = input.Piece();
    worker.SendRaw(static_cast<wire::RecordType>(first & 0x7f),
                   body.first(std::min(body.size(), worker.endpoint().MaxRecord())));
    world.Run([] { return false; }, kMillisecond / 20);
  }
  world.Run([] { return false; }, 5 * kMillisecond);
  world.reducer().TakeBroken();
  world.reducer().EndSession(world.now(), session->id());
  BPS_FUZZ_CHECK(world.Run([&] { return world.reducer().sessions() == 0; }));
  BPS_FUZZ_CHECK(world.Run([&] { return world.reducer().stats().pool.blocks == 0; }));
}

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  byteps::fuzz::Run(byteps::fuzz::Input(data, size));
  return 0;
}
