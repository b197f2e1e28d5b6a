// Results of bps_collective on the memory of GPUs: of every kind and size, and the bits of every data type.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/device_collective_call.h"
#include "tests/e2e/device_collective_scenarios.h"
#include "tests/e2e/device_trainer.h"

namespace byteps {
namespace {

constexpr int64_t kWidth = 3;

// One of the operations of a round: its memory is made once.
struct Task {
  Call call;
  float* input = nullptr;
  float* output = nullptr;
  size_t input_count = 0;
  size_t output_room = 0;
};

struct Result {
  std::string name;
  const float* copy;
  std::vector<float> expected;
};

class Kinds {
 public:
  // `everyone`: a set of all ranks, which outlives this object.
  Kinds(const Trainer& trainer, bps_process_set* everyone, int64_t scale)
      : trainer_(trainer),
        side_(trainer),
        everyone_(everyone),
        rank_(trainer.info.rank),
        size_(trainer.info.size),
        scale_(scale) {}

  // Submits all of a round, then makes the stream wait for each.
  void Round(int round, std::vector<Result>* results) {
    round_ = round;
    next_ = 0;
    std::deque<std::pair<Task*, std::vector<float>>> flying;
    const auto ask = [&](Task* task, std::vector<float> expected) {
      side_.Start(&task->call);
      flying.emplace_back(task, std::move(expected));
    };
    // Rows that differ: one rank has none.
    const auto rows = [&](int rank) { return scale_ * ((rank + 1) % size_); };
    std::vector<float> all;
    for (int rank = 0; rank < size_; ++rank) Append(&all, Input(rank, rows(rank)));
    ask(Get(BPS_ALL_GATHER, rows(rank_), all.size()), all);
    Task* gather = Get(BPS_GATHER, rows(rank_), rank_ == 0 ? all.size() + 50 : 0);
    gather->call.args.root = 0;
    ask(gather, rank_ == 0 ? all : std::vector<float>());

    const int64_t whole = 10 * scale_ + 1;
    std::vector<int64_t> splits(static_cast<size_t>(size_), scale_);
    splits[0] = whole - scale_ * (size_ - 1);
    Task* scattered = Get(BPS_REDUCE_SCATTER, whole, Count(splits[At(rank_)]));
    scattered->call.splits = splits;
    const std::vector<float> sum = Summed(whole);
    ask(scattered, Slice(sum, rank_ == 0 ? 0 : splits[0] + scale_ * (rank_ - 1), splits[At(rank_)]));

    Task* reduced = Get(BPS_REDUCE, whole, rank_ == size_ - 1 ? Count(whole) : 0);
    reduced->call.args.root = size_ - 1;
    ask(reduced, rank_ == size_ - 1 ? Summed(whole) : std::vector<float>());

    const auto piece = [&](int from, int to) { return scale_ * ((from + 2 * to) % 3); };
    int64_t given = 0;
    std::vector<float> got;
    std::vector<int64_t> pieces;
    for (int to = 0; to < size_; ++to) pieces.push_back(piece(rank_, to));
    for (const int64_t each : pieces) given += each;
    for (int from = 0; from < size_; ++from) {
      int64_t total = 0, before = 0;
      for (int to = 0; to < size_; ++to) {
        if (to < rank_) before += piece(from, to);
        total += piece(from, to);
      }
      Append(&got, Slice(Input(from, total), before, piece(from, rank_)));
    }
    Task* exchanged = Get(BPS_ALL_TO_ALL, given, got.size());
    exchanged->call.splits = pieces;
    ask(exchanged, got);

    Task* scatter = Get(BPS_SCATTER, whole, Count(splits[At(rank_)]), rank_ == 1);
    scatter->call.args.root = 1;
    scatter->call.splits = rank_ == 1 ? splits : std::vector<int64_t>();
    ask(scatter, Slice(Input(1, whole), rank_ == 0 ? 0 : splits[0] + scale_ * (rank_ - 1), splits[At(rank_)]));

    Task* broadcast = Get(BPS_BROADCAST, whole, Count(whole), rank_ == 1);
    broadcast->call.args.root = 1;
    ask(broadcast, Input(1, whole));

    ask(Get(BPS_ALL_REDUCE, whole, Count(whole)), Summed(whole));
    for (const bool set : {false, true}) {
      Task* scaled = Get(BPS_ALL_REDUCE, whole, Count(whole));
      scaled->call.args.scaled = 1;
      scaled->call.args.prescale = 0.5;
      scaled->call.args.postscale = 4;
      if (set) scaled->call.args.set = everyone_;
      std::vector<float> expected = Summed(whole);
      for (float& each : expected) each *= 2;
      ask(scaled, std::move(expected));
    }
    // In place, among workers.
    Task* in_place = Get(BPS_ALL_REDUCE, whole, 0);
    in_place->output = in_place->input;
    in_place->call.args.output = in_place->input;
    in_place->call.args.output_bytes = 4 * Count(whole);
    in_place->output_room = Count(whole);
    in_place->call.args.set = everyone_;
    ask(in_place, Summed(whole));

    // Around the ring.
    const int to = (rank_ + 1) % size_, from = (rank_ + size_ - 1) % size_;
    for (int message = 0; size_ > 1 && message < 3; ++message) {
      Task* sent = Get(BPS_SEND, scale_ * message, 0);
      sent->call.args.peer = to;
      sent->call.args.tag = message;
      ask(sent, {});
      Task* received = Get(BPS_RECEIVE, scale_ * message, Count(scale_ * message), false);
      received->call.args.peer = from;
      received->call.args.tag = message;
      // It was the task before this one that the other rank has sent.
      ask(received, Input(from, scale_ * message, next_ - 2));
    }
    for (auto& [task, expected] : flying) {
      Ok(bps_wait_on_stream(task->call.request, trainer_.on_gpu ? trainer_.gpu.stream : nullptr, 0),
         task->call.name.c_str());
      const std::string name = task->call.name + " of round " + std::to_string(round);
      if (task->output_room != 0) results->push_back({name, side_.Read(task->output, expected.size()), expected});
      Ok(bps_wait(task->call.request, 0), name.c_str());
      bps_result result = BPS_RESULT_INIT;
      Ok(bps_request_result(task->call.request, 0, &result), name.c_str());
      if (result.bytes != expected.size() * 4) Die(name + ": " + std::to_string(result.bytes) + " bytes");
      if (result.bytes != 0) CHECK(result.data == task->output);
      bps_request_free(task->call.request);
    }
  }

 private:
  static size_t At(int rank) { return static_cast<size_t>(rank); }
  static size_t Count(int64_t rows) { return static_cast<size_t>(rows * kWidth); }
  static void Append(std::vector<float>* to, const std::vector<float>& more) {
    to->insert(to->end(), more.begin(), more.end());
  }
  static std::vector<float> Slice(const std::vector<float>& of, int64_t row, int64_t rows) {
    const auto first = of.begin() + static_cast<ptrdiff_t>(row * kWidth);
    return {first, first + static_cast<ptrdiff_t>(rows * kWidth)};
  }
  std::vector<float> Input(int rank, int64_t rows, size_t task = 0) const {
    return Values(rank, round_, task, Count(rows));
  }
  std::vector<float> Summed(int64_t rows) const { return Sum(size_, round_, 0, Count(rows)); }

  // The next task of a round: of so many rows, with an output for so many numbers.
  Task* Get(int32_t kind, int64_t rows, size_t room, bool gives = true) {
    const size_t index = next_++;
    const bool message = kind == BPS_SEND || kind == BPS_RECEIVE;
    if (index == tasks_.size()) {
      Task& made = tasks_.emplace_back();
      made.call.name = "s" + std::to_string(scale_) + ".t" + std::to_string(index);
      made.call.args.kind = kind;
      made.call.args.op = BPS_SUM;
      made.call.shape = {rows, kWidth};
      made.input_count = gives ? Count(rows) : 0;
      made.output_room = room;
      made.input = side_.New(made.input_count);
      made.output = side_.New(room);
      made.call.args.input = made.input;
      made.call.args.output = made.output;
      made.call.args.output_bytes = 4 * room;
    }
    Task* task = &tasks_[index];
    if (task->input_count != 0) side_.Write(task->input, Values(rank_, round_, message ? index : 0, Count(rows)));
    return task;
  }

  const Trainer& trainer_;
  const Side side_;
  bps_process_set* const everyone_;
  const int rank_, size_;
  const int64_t scale_;
  int round_ = 0;
  size_t next_ = 0;
  std::deque<Task> tasks_;
};

}  // namespace

void RunCollectives() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  constexpr int kRounds = 6, kWarm = 3;
  std::vector<Result> results;
  std::deque<Kinds> all;
  bps_process_set* const everyone = SetOfAll(trainer);
  for (const int64_t scale : {1, 50, 9000}) all.emplace_back(trainer, everyone, scale);
  fake_gpu_counts warm = {};
  const auto begin = std::chrono::steady_clock::now();
  bool slow = false;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kWarm) warm = gpu.Counts();
    for (Kinds& kinds : all) kinds.Round(round, &results);
    // An area that is not used a second time within 10 s may go to another operation, and be made anew once more.
    if (round == 1) slow = std::chrono::steady_clock::now() - begin > std::chrono::seconds(9);
  }
  const fake_gpu_counts end = gpu.Counts();
  CHECK(end.synchronisations == 0);
  // Never in each round.
  CHECK(slow ? end.registrations < 2 * warm.registrations : end.registrations == warm.registrations);
  CHECK(end.allocations == warm.allocations);
  CHECK(end.streams == warm.streams);
  // Those of two rounds may be under way at once.
  CHECK(end.events <= 2 * warm.events + 40);
  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  for (const Result& result : results) {
    if (std::memcmp(result.copy, result.expected.data(), result.expected.size() * sizeof(float)) != 0) Die(result.name);
  }
  gpu.ExpectNoRaces();
  Ok(bps_process_set_free(everyone), "process_set_free");
  trainer.Leave();
}

void RunCollectiveBits() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  std::mt19937_64 random(static_cast<uint64_t>(trainer.info.rank));
  bps_process_set* const everyone = SetOfAll(trainer);
  struct Pair {
    Call on_gpu, on_cpu;
    size_t bytes = 0;
    void* memory = nullptr;
    std::vector<std::byte> host, elsewhere;
    std::byte* copy = nullptr;
  };
  std::deque<Pair> all;
  for (const uint32_t dtype : {BPS_FLOAT32, BPS_FLOAT64, BPS_FLOAT16, BPS_BFLOAT16, BPS_INT32, BPS_INT16}) {
    for (const int64_t count : {int64_t{5}, int64_t{40'001}}) {
      for (int way = 0; way < 6; ++way) {
        Pair& pair = all.emplace_back();
        const size_t each = ((dtype >> 8) & 0xff) / 8;
        pair.bytes = static_cast<size_t>(count) * each;
        pair.host.resize(pair.bytes);
        for (std::byte& byte : pair.host) byte = static_cast<std::byte>(random());
        // Small positive numbers.
        for (size_t at = each - 1; at < pair.bytes; at += each) pair.host[at] &= std::byte{0x3F};
        pair.memory = gpu.AllocateBytes(pair.bytes);
        pair.copy = gpu.HostBytes(pair.bytes);
        gpu.WriteBytes(pair.memory, pair.host);
        const std::string name =
            "dtype" + std::to_string(dtype) + ".count" + std::to_string(count) + ".way" + std::to_string(way);
        for (Call* call : {&pair.on_gpu, &pair.on_cpu}) {
          call->name = (call == &pair.on_cpu ? "cpu." : "gpu.") + name;
          call->shape = {count};
          call->args.name = call->name.c_str();
          call->args.shape = call->shape.data();
          call->args.ndim = 1;
          call->args.dtype = dtype;
          call->args.kind = BPS_ALL_REDUCE;
          call->args.op = way % 3 == 2 ? BPS_MAX : BPS_SUM;
          call->args.set = way < 3 ? nullptr : everyone;
          if (way % 3 == 1) {
            call->args.scaled = 1;
            call->args.prescale = 0.3;
            call->args.postscale = 1.7;
          }
          call->args.timeout_ms = 60'000;
          call->args.output_bytes = pair.bytes;
        }
        pair.on_gpu.args.input = pair.on_gpu.args.output = pair.memory;
        // Mixed devices, too: the input or the output may be on the host.
        pair.on_gpu.args.input_device = pair.on_gpu.args.output_device = BPS_CUDA;
        if (way == 1 || way == 4) {
          const bool input = count == 5;
          (input ? pair.on_gpu.args.input_device : pair.on_gpu.args.output_device) = BPS_CPU;
          pair.elsewhere = pair.host;
          if (input) pair.on_gpu.args.input = pair.elsewhere.data();
          if (!input) pair.on_gpu.args.output = pair.copy;
        }
        pair.on_gpu.streams.input = pair.on_gpu.streams.output = gpu.stream;
        pair.on_gpu.args.ext = &pair.on_gpu.streams.ext;
        pair.on_cpu.args.input = pair.on_cpu.args.output = pair.host.data();
        for (Call* call : {&pair.on_gpu, &pair.on_cpu}) {
          Ok(bps_collective(trainer.session, &call->args, &call->request), call->name.c_str());
        }
      }
    }
  }
  for (Pair& pair : all) {
    for (Call* call : {&pair.on_gpu, &pair.on_cpu}) {
      Ok(bps_wait(call->request, 0), call->name.c_str());
      bps_request_free(call->request);
    }
    // Its output stream has waited by itself.
    if (pair.on_gpu.args.output == pair.memory) gpu.ReadBytes(pair.copy, pair.memory, pair.bytes);
  }
  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  for (const Pair& pair : all) {
    if (std::memcmp(pair.copy, pair.host.data(), pair.bytes) != 0) Die(pair.on_gpu.name);
  }
  gpu.ExpectNoRaces();
  Ok(bps_process_set_free(everyone), "process_set_free");
  trainer.Leave();
}

}  // namespace byteps
