// Messages from the memory of GPUs: their order.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <string>
#include <vector>

#include "tests/e2e/device_collective_call.h"
#include "tests/e2e/device_collective_scenarios.h"
#include "tests/e2e/device_trainer.h"

namespace byteps {

void RunCollectiveMessages() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const Side side(trainer);
  constexpr size_t kCounts[] = {40'000, 3, 5'000};
  constexpr int kMessages = 3;
  static_assert(std::size(kCounts) == kMessages);
  std::deque<Call> calls;
  std::vector<float*> memory;
  std::vector<bps_device_stream> streams;
  static int32_t go[kMessages] = {};
  // Rank 0 sends: the last message's stream gets there first, the first one's last.
  for (int i = 0; i < kMessages; ++i) {
    Call& call = calls.emplace_back();
    const size_t count = kCounts[i];
    memory.push_back(gpu.Allocate(count));
    bps_device_stream stream = nullptr;
    CHECK(gpu.table->stream_create(gpu.device, 0, &stream, nullptr) == BPS_OK);
    streams.push_back(stream);
    call.name = "message " + std::to_string(i);
    call.args.kind = trainer.info.rank == 0 ? BPS_SEND : BPS_RECEIVE;
    call.args.peer = 1 - trainer.info.rank;
    call.args.tag = 5;
    call.shape = {static_cast<int64_t>(count)};
    if (trainer.info.rank == 0) {
      CHECK(gpu.control->hold(0, stream, &go[i]) == BPS_OK);
      const std::vector<float> values = Values(0, i, 0, count);
      float* fresh = gpu.Host(count);
      std::memcpy(fresh, values.data(), 4 * count);
      CHECK(gpu.table->copy_to_device(gpu.device, memory.back(), fresh, 4 * count, stream, nullptr) == BPS_OK);
      call.args.input = memory.back();
    } else {
      call.args.output = memory.back();
      call.args.output_bytes = 4 * count;
    }
    side.Place(&call);
    call.streams.input = call.streams.output = stream;
    Ok(bps_collective(trainer.session, &call.args, &call.request), call.name.c_str());
  }
  for (int i = kMessages - 1; trainer.info.rank == 0 && i >= 0; --i) {
    if (i == 0) {
      // The later ones are on the host by now, and have been sent: they wait for nothing but the network.
      for (int later = 1; later < kMessages; ++later) {
        Ok(bps_wait(calls[static_cast<size_t>(later)].request, 0), "a later message");
      }
    }
    __atomic_store_n(&go[i], 1, __ATOMIC_RELEASE);
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    Ok(bps_wait_on_stream(calls[i].request, gpu.stream, 0), calls[i].name.c_str());
    if (trainer.info.rank == 1) {
      float* copy = gpu.Host(kCounts[i]);
      gpu.Read(copy, memory[i], kCounts[i]);
      CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
      const std::vector<float> expected = Values(0, static_cast<int>(i), 0, kCounts[i]);
      if (std::memcmp(copy, expected.data(), 4 * kCounts[i]) != 0) Die(calls[i].name + " is another one");
    }
    bps_request_free(calls[i].request);
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

}  // namespace byteps
