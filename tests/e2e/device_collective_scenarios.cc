#include "tests/e2e/device_collective_scenarios.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/device_trainer.h"

namespace byteps {
namespace {

constexpr int64_t kWidth = 3;

// One call, with what its arguments point to.
struct Call {
  bps_collective_args args = BPS_COLLECTIVE_ARGS_INIT;
  bps_streams streams = BPS_STREAMS_INIT;
  std::string name;
  std::vector<int64_t> shape, splits;
  bps_request* request = nullptr;
};

// The tensors of one rank, where it has them: on its GPU, or on the host.
class Side {
 public:
  explicit Side(const Trainer& trainer) : trainer_(trainer) {}

  float* New(size_t count) const {
    if (count == 0) return nullptr;
    return trainer_.on_gpu ? trainer_.gpu.Allocate(count) : trainer_.gpu.Host(count);
  }
  void Write(float* to, const std::vector<float>& values) const {
    if (values.empty()) return;
    trainer_.on_gpu ? trainer_.gpu.Write(to, values) : void(std::memcpy(to, values.data(), 4 * values.size()));
  }
  // Behind what the stream waits for.
  const float* Read(const float* from, size_t count) const {
    float* copy = trainer_.gpu.Host(count + 1);
    if (count == 0) return copy;
    trainer_.on_gpu ? trainer_.gpu.Read(copy, from, count) : void(std::memcpy(copy, from, 4 * count));
    return copy;
  }
  // In the trainer's stream, which is named again when the result is needed.
  void Place(Call* call) const {
    call->args.name = call->name.c_str();
    call->args.shape = call->shape.data();
    call->args.ndim = static_cast<int32_t>(call->shape.size());
    call->args.splits = call->splits.empty() ? nullptr : call->splits.data();
    call->args.num_splits = static_cast<int32_t>(call->splits.size());
    if (call->args.dtype == 0) call->args.dtype = BPS_FLOAT32;
    if (call->args.timeout_ms == 0) call->args.timeout_ms = 60'000;
    if (!trainer_.on_gpu) return;
    if (call->args.input != nullptr) call->args.input_device = BPS_CUDA;
    if (call->args.output != nullptr) call->args.output_device = BPS_CUDA;
    call->streams.input = call->streams.output = trainer_.gpu.stream;
    call->streams.output_later = 1;
    call->args.ext = &call->streams.ext;
  }
  void Start(Call* call) const {
    Place(call);
    Ok(bps_collective(trainer_.session, &call->args, &call->request), call->name.c_str());
  }

 private:
  const Trainer& trainer_;
};

// ---- Every kind ----

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
  Kinds(const Trainer& trainer, int64_t scale)
      : trainer_(trainer), side_(trainer), rank_(trainer.info.rank), size_(trainer.info.size), scale_(scale) {}

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
      if (set) scaled->call.args.set = Everyone();
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
    in_place->call.args.set = Everyone();
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
  bps_process_set* Everyone() {
    if (everyone_ != nullptr) return everyone_;
    std::vector<int32_t> ranks;
    for (int rank = 0; rank < size_; ++rank) ranks.push_back(rank);
    bps_process_set_args args = BPS_PROCESS_SET_ARGS_INIT;
    args.name = "everyone";
    args.ranks = ranks.data();
    args.num_ranks = size_;
    Ok(bps_process_set_create(trainer_.session, &args, &everyone_), "process_set_create");
    return everyone_;
  }

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
  const int rank_, size_;
  const int64_t scale_;
  int round_ = 0;
  size_t next_ = 0;
  std::deque<Task> tasks_;
  bps_process_set* everyone_ = nullptr;
};

}  // namespace

void RunCollectives() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  constexpr int kRounds = 6, kWarm = 3;
  std::vector<Result> results;
  std::deque<Kinds> all;
  for (const int64_t scale : {1, 50, 9000}) all.emplace_back(trainer, scale);
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
  trainer.Leave();
}

// ---- Bits ----

void RunCollectiveBits() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  std::mt19937_64 random(static_cast<uint64_t>(trainer.info.rank));
  bps_process_set* everyone = nullptr;
  std::vector<int32_t> ranks;
  for (int rank = 0; rank < trainer.info.size; ++rank) ranks.push_back(rank);
  bps_process_set_args of_all = BPS_PROCESS_SET_ARGS_INIT;
  of_all.name = "everyone";
  of_all.ranks = ranks.data();
  of_all.num_ranks = trainer.info.size;
  Ok(bps_process_set_create(trainer.session, &of_all, &everyone), "process_set_create");
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

// ---- Messages ----

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

// ---- Errors ----

void RunCollectiveErrors() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const int rank = trainer.info.rank;
  const Side side(trainer);
  float* const memory = gpu.Allocate(1000);
  float* const output = gpu.Allocate(2000);
  float* const pinned = gpu.Host(1000);
  std::vector<float> ordinary(2000);
  const auto ask = [&](int32_t code, const std::string& text, const auto& change) {
    Call call;
    call.name = "c";
    call.args.kind = BPS_ALL_GATHER;
    call.shape = {1000};
    call.args.input = memory;
    call.args.output = output;
    call.args.output_bytes = 8000;
    side.Place(&call);
    change(&call);
    Fails(bps_collective(trainer.session, &call.args, &call.request), code, text, text.c_str());
    CHECK(call.request == nullptr);
  };
  ask(BPS_INVALID_ARGUMENT, "input lies on GPU 0, output on GPU 1",
      [](Call* call) { call->args.output_device_id = 1; });
  ask(BPS_INVALID_ARGUMENT, "input is said to be memory of GPU 0, but lies in ordinary host memory",
      [&](Call* call) { call->args.input = ordinary.data(); });
  ask(BPS_INVALID_ARGUMENT, "output is said to be memory of GPU 0, but lies in ordinary host memory",
      [&](Call* call) { call->args.output = ordinary.data(); });
  ask(BPS_INVALID_ARGUMENT, "is said to be pinned host memory, but lies in memory of GPU 0",
      [](Call* call) { call->args.input_device = BPS_CUDA_HOST; });
  ask(BPS_INVALID_ARGUMENT, "but lies in pinned host memory", [&](Call* call) { call->args.input = pinned; });
  ask(BPS_INVALID_ARGUMENT, "80 bytes beyond the end of its allocation",
      [&](Call* call) { call->args.output_bytes = 8080; });
  // Beyond its allocation, or over the input: as they lie.
  ask(BPS_INVALID_ARGUMENT, "output", [](Call* call) { call->args.output_bytes = UINT64_MAX; });
  ask(BPS_INVALID_ARGUMENT, "output is NULL", [](Call* call) {
    call->args.output = nullptr;
    call->args.output_bytes = 0;
  });
  ask(BPS_INVALID_ARGUMENT, "_id is -1", [](Call* call) { call->args.input_device_id = -1; });
  ask(BPS_INVALID_ARGUMENT, "more than 2^56 bytes", [](Call* call) {
    static const int64_t shape[] = {int64_t{1} << 40, int64_t{1} << 40};
    call->args.shape = shape;
    call->args.ndim = 2;
  });
  bps_device_open_args open = {};
  open.struct_size = sizeof open;
  open.index = 1;
  bps_device* other = nullptr;
  CHECK(gpu.table->open(&open, &other, nullptr) == BPS_OK);
  bps_device_stream theirs = nullptr;
  CHECK(gpu.table->stream_create(other, 0, &theirs, nullptr) == BPS_OK);
  ask(BPS_INVALID_ARGUMENT, "the output's stream is of GPU 1, but the output of GPU 0",
      [&](Call* call) { call->streams.output = theirs; });
  gpu.table->stream_destroy(other, theirs, nullptr);
  gpu.table->close(other);
  gpu.control->capture(gpu.stream, 1);
  ask(BPS_FAILED_PRECONDITION, "is being captured into a CUDA graph", [](Call*) {});
  gpu.control->capture(gpu.stream, 0);
  {
    Call call;
    call.name = "grouped";
    call.args.kind = BPS_ALL_GATHER;
    call.shape = {1000};
    call.args.input = memory;
    side.Place(&call);
    const bps_collective_args* one[] = {&call.args};
    bps_group_args group = BPS_GROUP_ARGS_INIT;
    group.operations = one;
    group.num_operations = 1;
    Fails(bps_group(trainer.session, &group, &call.request), BPS_UNIMPLEMENTED, "bps_collective take that of GPUs",
          "group");
    call.args.input = ordinary.data();
    call.args.input_device = call.args.output_device = BPS_CPU;
    Fails(bps_group(trainer.session, &group, &call.request), BPS_UNIMPLEMENTED, "has bps_streams", "group");
  }
  const pid_t child = fork();
  if (child == 0) {
    Call call;
    call.name = "c";
    call.args.kind = BPS_ALL_GATHER;
    call.shape = {1000};
    call.args.input = memory;
    call.args.output = output;
    call.args.output_bytes = 8000;
    side.Place(&call);
    _exit(bps_status_code(bps_collective(trainer.session, &call.args, nullptr)) == BPS_FAILED_PRECONDITION ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  // Out of pinned memory, for the input and for the result: an error on every rank; then it works.
  constexpr size_t kCount = 50'000;
  float* const large = gpu.Allocate(kCount);
  float* const gathered = gpu.Allocate(kCount * static_cast<size_t>(trainer.info.size));
  gpu.Write(large, Values(rank, 0, 0, kCount));
  for (int round = 0; round < 3; ++round) {
    Call call;
    call.name = "short of memory";
    call.args.kind = BPS_ALL_GATHER;
    call.shape = {kCount};
    call.args.input = large;
    call.args.output = gathered;
    call.args.output_bytes = 4 * kCount * static_cast<size_t>(trainer.info.size);
    side.Place(&call);
    if (rank == 0 && round < 2)
      gpu.control->fail("register_host", static_cast<uint64_t>(round), BPS_RESOURCE_EXHAUSTED);
    Ok(bps_collective(trainer.session, &call.args, &call.request), "collective");
    bps_status* const outcome = bps_wait(call.request, 0);
    if (round == 2) {
      Ok(outcome, "wait");
    } else {
      Fails(outcome, BPS_RESOURCE_EXHAUSTED, rank == 0 ? "pinning host memory" : "rank 0", "wait");
    }
    bps_request_free(call.request);
  }
  // The host has what the library gives where no output is named.
  gpu.Write(memory, Values(rank, 0, 0, 1000));
  Call call;
  call.name = "on the host";
  call.args.kind = BPS_ALL_GATHER;
  call.shape = {1000};
  call.args.input = memory;
  side.Start(&call);
  Ok(bps_wait(call.request, 0), "wait");
  bps_result result = BPS_RESULT_INIT;
  Ok(bps_request_result(call.request, 0, &result), "result");
  CHECK(result.bytes == static_cast<uint64_t>(4000 * trainer.info.size));
  const std::vector<float> first = Values(0, 0, 0, 1000);
  CHECK(std::memcmp(result.data, first.data(), 4000) == 0);
  bps_request_free(call.request);
  gpu.ExpectNoRaces();
  trainer.Leave();
}

// ---- Ends ----

void RunCollectiveEnds(const std::string& how) {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const Side side(trainer);
  const bool first = trainer.info.rank == 0;
  constexpr size_t kCount = 300'000;
  bps_buffer_args of_gpu = BPS_BUFFER_ARGS_INIT;
  of_gpu.size = kCount * sizeof(float);
  of_gpu.device = BPS_CUDA;
  bps_buffer* buffer = nullptr;
  Ok(bps_buffer_alloc(trainer.session, &of_gpu, &buffer), "buffer_alloc");
  auto* const memory = static_cast<float*>(bps_buffer_data(buffer));
  float* const output = gpu.Allocate(kCount * static_cast<size_t>(trainer.info.size));
  static int32_t go = 0;
  if (first && (how == "deadline" || how == "cancel" || how == "close")) {
    CHECK(gpu.control->hold(0, gpu.stream, &go) == BPS_OK);
  }
  gpu.Write(memory, Values(trainer.info.rank, 0, 0, kCount));
  Call call;
  call.name = "w";
  call.args.kind = BPS_ALL_GATHER;
  call.shape = {kCount};
  call.args.input = memory;
  call.args.output = output;
  call.args.output_bytes = kCount * sizeof(float) * static_cast<size_t>(trainer.info.size);
  call.args.timeout_ms = how == "deadline" && first ? 1'000 : 30'000;
  side.Start(&call);
  if (how == "deadline") {
    Fails(bps_wait(call.request, 20'000), BPS_DEADLINE_EXCEEDED,
          first ? "what was in the caller's stream of GPU 0" : "rank 0", "wait");
  } else if (how == "cancel") {
    if (first) Fails(bps_buffer_free(buffer), BPS_FAILED_PRECONDITION, "has not ended", "buffer_free");
    if (first) Ok(bps_cancel(call.request), "cancel");
    Fails(bps_wait(call.request, 20'000), first ? BPS_CANCELLED : BPS_ABORTED, "cancelled", "wait");
  } else if (how == "lost") {
    if (first) gpu.control->lose(0);
    Fails(bps_wait(call.request, 20'000), BPS_DATA_LOSS, first ? "illegal memory access" : "rank 0", "wait");
  } else if (how == "close") {
    // Nobody's session fails before all have submitted.
    bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
    Ok(bps_barrier(trainer.session, &barrier), "barrier");
    // Requests and buffers outlive the session; nothing is read or written behind its end.
    bps_request_free(call.request);
    call.request = nullptr;
    if (first) {
      Ok(bps_close(trainer.session), "close");
      __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
      Ok(bps_buffer_free(buffer), "buffer_free");
      CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
      gpu.ExpectNoRaces();
    } else {
      bps_status_free(bps_shutdown(trainer.session, 20'000));
      Ok(bps_close(trainer.session), "close");
      Ok(bps_buffer_free(buffer), "buffer_free");
    }
    return;
  }
  bps_request_free(call.request);
  __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
  Ok(bps_buffer_free(buffer), "buffer_free");
  if (how == "lost") {
    trainer.Leave();
    return;
  }
  // The session goes on.
  float* const fresh = gpu.Allocate(kCount);
  gpu.Write(fresh, Values(trainer.info.rank, 1, 0, kCount));
  Call again;
  again.name = "w";
  again.args.kind = BPS_ALL_GATHER;
  again.shape = {kCount};
  again.args.input = fresh;
  again.args.output = output;
  again.args.output_bytes = call.args.output_bytes;
  side.Start(&again);
  Ok(bps_wait_on_stream(again.request, gpu.stream, 0), "the next round");
  bps_request_free(again.request);
  const float* const copy = side.Read(output, kCount * static_cast<size_t>(trainer.info.size));
  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  for (int rank = 0; rank < trainer.info.size; ++rank) {
    const std::vector<float> expected = Values(rank, 1, 0, kCount);
    CHECK(std::memcmp(copy + static_cast<size_t>(rank) * kCount, expected.data(), 4 * kCount) == 0);
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

void RunCollectivesUntilKilled() {
  constexpr size_t kCount = 100'000;
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const Side side(trainer);
  float* const input = gpu.Allocate(kCount);
  float* const output = gpu.Allocate(kCount * static_cast<size_t>(trainer.info.size));
  gpu.Write(input, Values(trainer.info.rank, 0, 0, kCount));
  for (int round = 0;; ++round) {
    if (round == 3) {
      std::puts("turning");
      std::fflush(stdout);
    }
    Call call;
    call.name = "w";
    call.args.kind = BPS_ALL_GATHER;
    call.shape = {kCount};
    call.args.input = input;
    call.args.output = output;
    call.args.output_bytes = 4 * kCount * static_cast<size_t>(trainer.info.size);
    side.Place(&call);
    bps_status* error = bps_collective(trainer.session, &call.args, &call.request);
    if (error == nullptr) error = bps_wait(call.request, 60'000);
    bps_request_free(call.request);
    if (error == nullptr) continue;
    Fails(error, BPS_UNAVAILABLE, "rank 1", "a round after the death of rank 1");
    break;
  }
  Ok(bps_close(trainer.session), "close");
  gpu.ExpectNoRaces();
}

}  // namespace byteps
