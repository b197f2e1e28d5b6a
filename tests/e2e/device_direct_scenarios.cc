#include "tests/e2e/device_direct_scenarios.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/device_trainer.h"

namespace byteps {
namespace {

// Rounds of push_pull whose host waits for none of them, in place and out of place by turns; then the values.
void TrainOn(const Trainer& trainer, const std::vector<size_t>& counts, int rounds, const std::string& prefix) {
  const Gpu& gpu = trainer.gpu;
  struct Result {
    const float* copy;
    std::vector<float> expected;
  };
  std::vector<float*> inputs, outputs;
  std::vector<Result> results;
  for (const size_t count : counts) {
    inputs.push_back(gpu.Allocate(count));
    outputs.push_back(outputs.size() % 2 == 0 ? inputs.back() : gpu.Allocate(count));
  }
  for (int round = 0; round < rounds; ++round) {
    std::vector<bps_request*> requests;
    for (size_t t = 0; t < counts.size(); ++t) {
      gpu.Write(inputs[t], Values(trainer.info.rank, round, t, counts[t]));
      bps_streams streams = BPS_STREAMS_INIT;
      bps_push_pull_args args = trainer.PushPull(prefix + std::to_string(t), counts[t], inputs[t], &streams);
      args.output = outputs[t];
      bps_request* request = nullptr;
      Ok(bps_push_pull(trainer.session, &args, &request), "push_pull");
      requests.push_back(request);
    }
    for (size_t t = 0; t < counts.size(); ++t) {
      float* copy = gpu.Host(counts[t]);
      Ok(bps_wait_on_stream(requests[t], gpu.stream, 0), "wait_on_stream");
      gpu.Read(copy, outputs[t], counts[t]);
      results.push_back({copy, Sum(trainer.info.size, round, t, counts[t])});
      bps_request_free(requests[t]);
    }
  }
  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  for (const Result& result : results) {
    CHECK(std::memcmp(result.copy, result.expected.data(), result.expected.size() * sizeof(float)) == 0);
  }
}

void Broadcast(const Trainer& trainer, size_t count) {
  const Gpu& gpu = trainer.gpu;
  float *input = gpu.Allocate(count), *output = gpu.Allocate(count);
  gpu.Write(input, Values(trainer.info.rank, 0, 0, count));
  bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  bps_streams streams = BPS_STREAMS_INIT;
  streams.input = streams.output = gpu.stream;
  args.tensor = trainer.Declare("b", count);
  args.input = input;
  args.output = output;
  args.input_device = args.output_device = BPS_CUDA;
  args.ext = &streams.ext;
  bps_request* request = nullptr;
  Ok(bps_broadcast(trainer.session, &args, &request), "broadcast");
  Ok(bps_wait(request, 0), "wait");
  bps_request_free(request);
  float* copy = gpu.Host(count);
  gpu.Read(copy, output, count);
  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  CHECK(std::memcmp(copy, Values(0, 0, 0, count).data(), count * sizeof(float)) == 0);
}

}  // namespace

void RunDirect() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const bool card = std::string(std::getenv("E2E_DIRECT")) == "card";
  const bool group = std::getenv("E2E_GROUP") != nullptr;
  const std::vector<size_t> counts = {20'000, 65'536 * 3 + 5, 200'000, 700'001};
  constexpr int kRounds = 6;
  uint64_t bytes = 0;
  for (const size_t count : counts) bytes += count * sizeof(float);
  // The first time registers, and makes events and streams.
  TrainOn(trainer, counts, 2, "w");
  const fake_gpu_counts begin = gpu.Counts();
  TrainOn(trainer, counts, kRounds, "w");
  const fake_gpu_counts end = gpu.Counts();
  const uint64_t own = kRounds * bytes;  // what the trainer itself copies, either way
  const uint64_t to_host = end.bytes_to_host - begin.bytes_to_host - own;
  const uint64_t to_device = end.bytes_to_device - begin.bytes_to_device - own;
  CHECK(end.streams == begin.streams);
  CHECK(end.synchronisations - begin.synchronisations == 1);  // that of TrainOn
  if (card) {
    CHECK(to_host == 0);
    // What is so small that a server answers it in a record; among the GPUs of a host a row may leave such parts.
    CHECK(to_device <= kRounds * counts.size() * 65'536);
    CHECK(end.remote_reads > begin.remote_reads);
    CHECK(end.flushes - begin.flushes >= kRounds * counts.size() || group);
    CHECK(end.flushes > begin.flushes);
  } else {
    CHECK(end.remote_reads == 0);
    CHECK(to_host > 0 && to_device > 0);
  }
  Broadcast(trainer, 70'000);
  // Memory that is given back and taken again, at the same address or another one: no old registration is used.
  for (int turn = 0; turn < 4; ++turn) {
    float* memory = gpu.Allocate(50'000 + 4096 * static_cast<size_t>(turn));
    bps_streams streams = BPS_STREAMS_INIT;
    bps_request* request = nullptr;
    gpu.Write(memory, Values(trainer.info.rank, turn, 0, 50'000));
    Ok(Submit(trainer, "again", BPS_FLOAT32, 50'000, BPS_SUM, memory, &streams, &request), "push_pull");
    Ok(bps_wait(request, 0), "wait");
    bps_request_free(request);
    float* copy = gpu.Host(50'000);
    gpu.Read(copy, memory, 50'000);
    CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
    CHECK(std::memcmp(copy, Sum(trainer.info.size, turn, 0, 50'000).data(), 200'000) == 0);
    CHECK(gpu.table->release(gpu.device, memory, nullptr) == BPS_OK);
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

}  // namespace byteps
