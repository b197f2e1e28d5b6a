// Groups whose operations are on the memory of GPUs, some of them on that of the host: they succeed or fail together.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/device_collective_call.h"
#include "tests/e2e/device_collective_scenarios.h"
#include "tests/e2e/device_trainer.h"

namespace byteps {
namespace {

// What a group has, and what is to come of it.
class Group {
 public:
  explicit Group(const Trainer& trainer) : trainer_(trainer), side_(trainer) {}

  // `on_host`: input and output are the host's, on every rank.
  Call* Add(const std::string& name, int32_t kind, size_t count, const std::vector<float>& input, size_t output_count,
            bool on_host = false) {
    Call& call = calls_.emplace_back();
    call.name = name;
    call.args.kind = kind;
    call.shape = {static_cast<int64_t>(count)};
    float* const from = on_host ? trainer_.gpu.Host(count) : side_.New(count);
    float* const to = on_host ? trainer_.gpu.Host(output_count) : side_.New(output_count);
    on_host ? void(std::memcpy(from, input.data(), 4 * count)) : side_.Write(from, input);
    call.args.input = from;
    call.args.output = to;
    call.args.output_bytes = 4 * output_count;
    outputs_.emplace_back(to, on_host);
    side_.Place(&call);
    if (on_host) call.args.input_device = call.args.output_device = BPS_CPU;
    return &call;
  }
  bps_status* Start() {
    std::vector<const bps_collective_args*> all;
    for (const Call& call : calls_) all.push_back(&call.args);
    bps_group_args args = BPS_GROUP_ARGS_INIT;
    args.operations = all.data();
    args.num_operations = static_cast<int32_t>(all.size());
    return bps_group(trainer_.session, &args, &request_);
  }
  bps_request* request() const { return request_; }
  // Of an operation, in the trainer's stream.
  const float* Read(size_t index, size_t count) const {
    const auto& [output, on_host] = outputs_[index];
    return on_host ? output : side_.Read(output, count);
  }

 private:
  const Trainer& trainer_;
  const Side side_;
  std::deque<Call> calls_;
  std::vector<std::pair<float*, bool>> outputs_;
  bps_request* request_ = nullptr;
};

std::vector<float> Times(std::vector<float> values, float factor) {
  for (float& each : values) each *= factor;
  return values;
}

// Rounds of groups whose results the stream waits for, and the host for none of them.
void Rounds(const Trainer& trainer) {
  const Gpu& gpu = trainer.gpu;
  const int rank = trainer.info.rank, size = trainer.info.size;
  constexpr size_t kSmall = 700, kLarge = 90'000;
  struct Result {
    const float* copy;
    std::vector<float> expected;
  };
  std::vector<Result> all;
  const uint64_t before = gpu.Counts().synchronisations;
  for (int round = 0; round < 6; ++round) {
    Group group(trainer);
    std::vector<float> gathered;
    for (int each = 0; each < size; ++each) {
      const std::vector<float> values = Values(each, round, 2, kSmall);
      gathered.insert(gathered.end(), values.begin(), values.end());
    }
    std::vector<std::vector<float>> expected;
    group.Add("reduced", BPS_ALL_REDUCE, kLarge, Values(rank, round, 0, kLarge), kLarge);
    expected.push_back(Sum(size, round, 0, kLarge));
    Call* const scaled = group.Add("scaled", BPS_ALL_REDUCE, kSmall, Values(rank, round, 1, kSmall), kSmall);
    scaled->args.scaled = 1;
    scaled->args.prescale = 0.5;
    scaled->args.postscale = 4;
    expected.push_back(Times(Sum(size, round, 1, kSmall), 2));
    group.Add("gathered", BPS_ALL_GATHER, kSmall, Values(rank, round, 2, kSmall), gathered.size());
    expected.push_back(gathered);
    group.Add("on the host", BPS_ALL_REDUCE, kSmall, Values(rank, round, 3, kSmall), kSmall, true);
    expected.push_back(Sum(size, round, 3, kSmall));
    Ok(group.Start(), "group");
    Ok(bps_wait_on_stream(group.request(), trainer.on_gpu ? gpu.stream : nullptr, 0), "wait_on_stream");
    const int32_t state = bps_request_state(group.request());
    CHECK(state == BPS_REQUEST_DONE || (trainer.on_gpu && state == BPS_REQUEST_ENQUEUED));
    bps_result result = BPS_RESULT_INIT;
    Ok(bps_request_result(group.request(), 2, &result), "request_result");
    CHECK(result.bytes == 4 * gathered.size());
    for (size_t i = 0; i < expected.size(); ++i) all.push_back({group.Read(i, expected[i].size()), expected[i]});
    bps_request_free(group.request());
  }
  CHECK(gpu.Counts().synchronisations == before);
  if (trainer.on_gpu) CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  for (const Result& result : all) {
    CHECK(std::memcmp(result.copy, result.expected.data(), 4 * result.expected.size()) == 0);
  }
}

// A stream of one operation does not get there: the group is not enqueued, though the others are.
void AHeldStream(const Trainer& trainer) {
  const Gpu& gpu = trainer.gpu;
  static int32_t go = 0;
  bps_device_stream held = nullptr;
  CHECK(gpu.table->stream_create(gpu.device, 0, &held, nullptr) == BPS_OK);
  Group group(trainer);
  group.Add("free", BPS_ALL_REDUCE, 100, Values(trainer.info.rank, 0, 0, 100), 100);
  Call* const late = group.Add("held", BPS_ALL_GATHER, 100, Values(trainer.info.rank, 0, 0, 100),
                               100 * static_cast<size_t>(trainer.info.size));
  if (trainer.on_gpu) {
    // What has been put into the trainer's stream is before what is held.
    bps_device_event* written = nullptr;
    CHECK(gpu.table->event_create(gpu.device, &written, nullptr) == BPS_OK);
    CHECK(gpu.table->event_record(gpu.device, written, gpu.stream, nullptr) == BPS_OK);
    CHECK(gpu.table->stream_wait(gpu.device, held, written, nullptr) == BPS_OK);
    gpu.table->event_destroy(gpu.device, written, nullptr);
    CHECK(gpu.control->hold(0, held, &go) == BPS_OK);
    late->streams.input = late->streams.output = held;
  }
  Ok(group.Start(), "group");
  if (trainer.on_gpu) {
    Fails(bps_wait_on_stream(group.request(), gpu.stream, 300), BPS_DEADLINE_EXCEEDED,
          "what was in the caller's stream", "wait_on_stream");
    CHECK(bps_request_state(group.request()) != BPS_REQUEST_ENQUEUED);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
  }
  Ok(bps_wait(group.request(), 0), "wait");
  CHECK(bps_request_state(group.request()) == BPS_REQUEST_DONE);
  bps_request_free(group.request());
  gpu.table->stream_destroy(gpu.device, held, nullptr);
}

// All or nothing.
void OneThatFails(const Trainer& trainer) {
  const Gpu& gpu = trainer.gpu;
  Group group(trainer);
  group.Add("good", BPS_ALL_REDUCE, 1000, Values(trainer.info.rank, 0, 0, 1000), 1000);
  const auto count = static_cast<size_t>(100 + trainer.info.rank);
  group.Add("of other sizes", BPS_ALL_REDUCE, count, Values(trainer.info.rank, 0, 0, count), count);
  Ok(group.Start(), "group");
  Fails(bps_wait_on_stream(group.request(), trainer.on_gpu ? gpu.stream : nullptr, 0), BPS_FAILED_PRECONDITION,
        "of other sizes", "wait_on_stream");
  CHECK(bps_request_state(group.request()) == BPS_REQUEST_FAILED);
  bps_request_free(group.request());
  // One that the call refuses: none is accepted.
  if (!trainer.on_gpu) return;
  Group refused(trainer);
  refused.Add("good", BPS_ALL_REDUCE, 1000, Values(trainer.info.rank, 0, 0, 1000), 1000);
  refused.Add("bad", BPS_ALL_REDUCE, 1000, Values(trainer.info.rank, 0, 0, 1000), 1000)->args.input_device_id = 7;
  Fails(refused.Start(), BPS_INVALID_ARGUMENT, "operation 1 of the group", "group");
}

}  // namespace

void RunCollectiveGroups() {
  Trainer trainer;
  Rounds(trainer);
  AHeldStream(trainer);
  OneThatFails(trainer);
  Rounds(trainer);
  trainer.gpu.ExpectNoRaces();
  trainer.Leave();
}

}  // namespace byteps
