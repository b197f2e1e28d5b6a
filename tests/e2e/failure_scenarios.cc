// What goes wrong, and what a trainer is told.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "tests/e2e/scenarios.h"
#include "tests/e2e/trainer.h"

namespace byteps::e2e {
namespace {

// A tensor of the storm: its memory is ordinary or the library's own, its result in place or elsewhere.
class StormTensor {
 public:
  StormTensor() = default;
  ~StormTensor() {
    if (buffer_ != nullptr) Ok(bps_buffer_free(buffer_), "bps_buffer_free");
  }
  StormTensor(const StormTensor&) = delete;
  StormTensor& operator=(const StormTensor&) = delete;

  Error Make(bps_session* session, size_t number, std::mt19937_64* random) {
    // Of a few bytes as well as of many partitions.
    elements = size_t{1} << (*random)() % 21;
    elements += (*random)() % elements;
    const bool in_place = (*random)() % 2 == 0, own = (*random)() % 2 == 0;
    bps_buffer_args buffer = BPS_BUFFER_ARGS_INIT;
    buffer.size = 2 * elements * sizeof(float);
    if (own) {
      if (const Error error = Take(bps_buffer_alloc(session, &buffer, &buffer_)); error.code != BPS_OK) return error;
    } else {
      ordinary_.resize(2 * elements);
    }
    input = own ? static_cast<float*>(bps_buffer_data(buffer_)) : ordinary_.data();
    output = in_place ? input : input + elements;
    const std::string name = "storm." + std::to_string(number);
    const auto shape = static_cast<int64_t>(elements);
    bps_declare_args args = BPS_DECLARE_ARGS_INIT;
    args.name = name.c_str();
    args.dtype = BPS_FLOAT32;
    args.shape = &shape;
    args.ndim = 1;
    return Take(bps_declare(session, &args, &tensor));
  }

  // Starts a sum into the output.
  Error Start(bps_session* session) {
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = tensor;
    args.input = input;
    args.output = output;
    args.op = BPS_SUM;
    return Take(bps_push_pull(session, &args, &request));
  }
  bool IsAll(float value) const {
    return std::count(output, output + elements, value) == static_cast<ptrdiff_t>(elements);
  }

  size_t elements = 0;
  bps_tensor* tensor = nullptr;
  float *input = nullptr, *output = nullptr;
  bps_request* request = nullptr;

 private:
  std::vector<float> ordinary_;
  bps_buffer* buffer_ = nullptr;
};

}  // namespace

int Loop(int64_t elements, bool in_buffer) {
  bps_session* session = Open();
  const bps_info info = Info(session);
  std::vector<float> ordinary(in_buffer ? 0 : static_cast<size_t>(elements), 1);
  const OwnBuffer buffer(session, in_buffer ? static_cast<size_t>(elements) * sizeof(float) : 0);
  float* const values = in_buffer ? reinterpret_cast<float*>(buffer.data()) : ordinary.data();
  std::fill_n(values, elements, 1.0f);
  bps_tensor* tensor = Declare(session, "loop", BPS_FLOAT32, elements);
  for (int round = 0;; ++round) {
    // The error may be met by the call itself as well as by the wait.
    bps_push_pull_args call = BPS_PUSH_PULL_ARGS_INIT;
    call.tensor = tensor;
    call.input = call.output = values;
    call.op = BPS_AVERAGE;
    bps_request* request = nullptr;
    bps_status* refused = bps_push_pull(session, &call, &request);
    const Error error = refused == nullptr ? Wait(request) : Take(refused);
    if (round == 3) Say("working");
    if (error.code == BPS_OK) continue;
    std::printf("error %d: %s\n", error.code, error.message.c_str());
    const auto began = Clock::now();
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = tensor;
    args.input = args.output = values;
    const Error later = Take(bps_push_pull(session, &args, nullptr));
    CHECK(later.message == error.message);
    bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
    CHECK(Take(bps_barrier(session, &barrier)).message == error.message);
    CHECK(Info(session).failed == 1);
    CHECK(info.failed == 0);
    Take(bps_shutdown(session, 0));
    bps_close(session);
    CHECK(Clock::now() - began < std::chrono::seconds(10));
    return 3;
  }
}

int Storm(uint64_t seed) {
  bps_open_args open = BPS_OPEN_ARGS_INIT;
  bps_session* session = nullptr;
  bool failed = false;
  const auto tell = [&failed](const Error& error) {
    if (error.code == BPS_OK) return;
    failed = true;
    std::printf("error %d: %s\n", error.code, error.message.c_str());
  };
  tell(Take(bps_open(&open, &session)));
  if (failed) return 3;
  const bps_info info = Info(session);
  std::mt19937_64 shared(seed), own(seed * 1000 + static_cast<uint64_t>(info.rank));
  constexpr size_t kMost = 12;
  std::vector<std::unique_ptr<StormTensor>> tensors;
  std::vector<StormTensor*> chosen;
  for (int round = 1; !failed; ++round) {
    if (tensors.size() < 4 || (tensors.size() < kMost && shared() % 4 == 0)) {
      auto made = std::make_unique<StormTensor>();
      tell(made->Make(session, tensors.size(), &shared));
      if (failed) break;
      tensors.push_back(std::move(made));
    }
    chosen.clear();
    for (const auto& tensor : tensors) {
      if (shared() % 2 == 0) chosen.push_back(tensor.get());
    }
    std::shuffle(chosen.begin(), chosen.end(), own);
    const auto unit = static_cast<float>(round % 1000);
    for (StormTensor* each : chosen) {
      std::fill_n(each->input, each->elements, unit * static_cast<float>(info.rank + 1));
      // The error may be met by the call itself as well as by the wait.
      tell(each->Start(session));
    }
    const float sum = unit * static_cast<float>(info.size * (info.size + 1) / 2);
    for (StormTensor* each : chosen) {
      if (each->request == nullptr) continue;
      const Error error = Wait(std::exchange(each->request, nullptr));
      tell(error);
      if (error.code == BPS_OK && !each->IsAll(sum)) Die("a wrong sum in round " + std::to_string(round));
    }
    const bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
    if (shared() % 16 == 0) tell(Take(bps_barrier(session, &barrier)));
    if (round == 3) Say("working");
  }
  CHECK(!tensors.empty());
  // The tensors are ours again: no member writes into them any more.
  constexpr float kOurs = -7;
  for (const auto& each : tensors) std::fill_n(each->output, each->elements, kOurs);
  const auto began = Clock::now();
  const Error later = tensors[0]->Start(session);
  tell(later);
  CHECK(later.code != BPS_OK && Info(session).failed == 1);
  Take(bps_shutdown(session, 0));
  CHECK(Clock::now() - began < std::chrono::seconds(10));
  for (const auto& each : tensors) CHECK(each->IsAll(kOurs));
  tensors.clear();
  bps_close(session);
  return 3;
}

void Mismatches() {
  bps_session* session = Open();
  const bps_info info = Info(session);
  std::vector<float> values(100000, 1);
  const bool odd = info.rank % 2 == 1;
  const auto good = [&](const char* when) {
    std::vector<float> ones(1000, 1);
    const Error error =
        PushPull(session, Declare(session, "good", BPS_FLOAT32, 1000), ones.data(), ones.data(), BPS_SUM);
    if (error.code != BPS_OK) Die(std::string(when) + ": " + error.message);
    CHECK(ones[999] == static_cast<float>(info.size));
  };
  Expect(PushPull(session, Declare(session, "shape", BPS_FLOAT32, odd ? 20000 : 10000), values.data(), values.data(),
                  BPS_SUM),
         BPS_FAILED_PRECONDITION, {"\"shape\"", "rank 0", "rank 1", "float32, 10000", "float32, 20000"});
  good("after shapes");
  Expect(PushPull(session, Declare(session, "dtype", odd ? BPS_FLOAT32 : BPS_INT32, 10), values.data(), values.data(),
                  BPS_SUM),
         BPS_FAILED_PRECONDITION, {"\"dtype\"", "float32", "int32"});
  Expect(PushPull(session, Declare(session, "op", BPS_FLOAT32, 90000), values.data(), values.data(),
                  odd ? BPS_SUM : BPS_MAX),
         BPS_FAILED_PRECONDITION, {"\"op\"", "sum", "max"});
  good("after operations");
  bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  args.tensor = Declare(session, "root", BPS_FLOAT32, 90000);
  args.input = args.output = values.data();
  args.root = odd ? 1 : 0;
  bps_request* request = nullptr;
  Ok(bps_broadcast(session, &args, &request), "bps_broadcast");
  Expect(Wait(request), BPS_FAILED_PRECONDITION, {"\"root\"", "broadcast from rank 0", "broadcast from rank 1"});
  good("after roots");
  // The same names once more, this time in agreement.
  for (const char* name : {"shape", "op"}) {
    const Error error =
        PushPull(session, Declare(session, name, BPS_FLOAT32, 10000), values.data(), values.data(), BPS_MAX);
    if (error.code != BPS_OK) Die(std::string(name) + ": " + error.message);
  }
  End(session);
}

void Patience() {
  bps_session* session = Open();
  const bps_info info = Info(session);
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  std::vector<float> values(300000, 1), other(300000, 1);
  bps_tensor* tensor = Declare(session, "late", BPS_FLOAT32, 300000);
  if (info.rank == 0) {
    // No other member submits: the error says who.
    const auto began = Clock::now();
    Expect(PushPull(session, tensor, values.data(), other.data(), BPS_SUM, 1000), BPS_DEADLINE_EXCEEDED,
           {"\"late\"", "rank 1"});
    CHECK(Clock::now() - began < std::chrono::seconds(30));
  }
  Ok(bps_barrier(session, &barrier), "barrier");
  if (info.rank != 0) {
    // That round has failed for every member.
    const Error error = PushPull(session, tensor, values.data(), other.data(), BPS_SUM);
    CHECK(error.code == BPS_DEADLINE_EXCEEDED || error.code == BPS_ABORTED);
    CHECK(error.retryable);
  }
  const Error again = PushPull(session, tensor, values.data(), other.data(), BPS_SUM);
  if (again.code != BPS_OK) Die("after a deadline: " + again.message);

  // No other member takes part before the duplicate was tried: the round is open for certain.
  if (info.rank != 0) Ok(bps_barrier(session, &barrier), "barrier");
  bps_request* request = Start(session, tensor, values.data(), other.data(), BPS_SUM);
  if (info.rank == 0) {
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = tensor;
    args.input = args.output = values.data();
    const Error duplicate = Take(bps_push_pull(session, &args, nullptr));
    Expect(duplicate, BPS_ALREADY_EXISTS, {"late"});
    Ok(bps_barrier(session, &barrier), "barrier");
  }
  const Error ended = Wait(request);
  if (ended.code != BPS_OK) Die("with a duplicate: " + ended.message);

  bps_tensor* given_up = Declare(session, "given.up", BPS_FLOAT32, 300000);
  if (info.rank == 0) {
    request = Start(session, given_up, values.data(), other.data(), BPS_SUM);
    // A wait that is shorter than the operation says what it waits for. (At first it may not be that far.)
    Error impatient;
    do {
      impatient = Take(bps_wait(request, 20));
      CHECK(impatient.code == BPS_DEADLINE_EXCEEDED && impatient.retryable);
    } while (!Has(impatient, "is pushed") && !Has(impatient, "not submitted by") &&
             Has(impatient, "had not ended after 20 ms: "));
    std::vector<const char*> words = {
        "had not ended after 20 ms: ", "push_pull (sum) of \"given.up\" (float32, 300000)", "active", "it goes on"};
    if (info.num_servers == 0) {  // the ranks know of each other
      words.insert(words.end(), {"not submitted by rank 1"});
    } else {
      words.insert(words.end(), {"no answer from server ", "is pushed", "name the ranks"});
    }
    for (const char* word : words) {
      if (!Has(impatient, word)) Die(std::string(word) + " is not in: " + impatient.message);
    }
    Ok(bps_cancel(request), "bps_cancel");
    Expect(Wait(request), BPS_CANCELLED, {});
  }
  Ok(bps_barrier(session, &barrier), "barrier");
  if (info.rank != 0) {
    Expect(PushPull(session, given_up, values.data(), other.data(), BPS_SUM), BPS_ABORTED, {"rank 0"});
  }
  const Error fine = PushPull(session, given_up, values.data(), other.data(), BPS_SUM);
  if (fine.code != BPS_OK) Die("after a cancel: " + fine.message);
  End(session);
}

void Hoarded() {
  bps_session* session = Open();
  std::vector<float> values(300000, 1);
  bps_request* request =
      Start(session, Declare(session, "kept", BPS_FLOAT32, 300000), values.data(), values.data(), BPS_SUM);
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  Error impatient;
  do {
    impatient = Take(bps_wait(request, 20));
    CHECK(impatient.code == BPS_DEADLINE_EXCEEDED);
    if (Clock::now() > deadline) Die("the scheduler is not named: " + impatient.message);
  } while (!Has(impatient, "scheduler \"hoards\" has not given"));
  // What one has seen the other must see, too, before it goes.
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  Ok(bps_barrier(session, &barrier), "barrier");
  Ok(bps_cancel(request), "bps_cancel");
  const Error error = Wait(request);
  CHECK(error.code == BPS_CANCELLED || error.code == BPS_ABORTED);
  End(session);
}

void Stall() {
  bps_session* session = Open();
  bps_info info = BPS_INFO_INIT;
  Ok(bps_session_info(session, &info), "bps_session_info");
  std::vector<float> values(300000, 1);
  bps_tensor* tensor = Declare(session, "late", BPS_FLOAT32, 300000);
  // Until the other has opened its session, too.
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  Ok(bps_barrier(session, &barrier), "barrier");
  if (info.rank == 1) ::raise(SIGSTOP);
  const Error error = PushPull(session, tensor, values.data(), values.data(), BPS_SUM);
  if (error.code != BPS_OK) Die(error.message);
  CHECK(values[299999] == 2);
  End(session);
}

void Stuck(int64_t elements) {
  bps_session* session = Open();
  std::vector<float> values(static_cast<size_t>(elements), 1);
  bps_request* request =
      Start(session, Declare(session, "kept", BPS_FLOAT32, elements), values.data(), values.data(), BPS_SUM);
  static std::atomic<int> called{0};
  static std::atomic<int32_t> called_with{BPS_OK};
  std::vector<float> others(static_cast<size_t>(elements), 1);
  bps_push_pull_args call = BPS_PUSH_PULL_ARGS_INIT;
  call.tensor = Declare(session, "called", BPS_FLOAT32, elements);
  call.input = call.output = others.data();
  call.done = [](void*, bps_status* status) {
    called_with = bps_status_code(status);
    bps_status_free(status);
    ++called;
  };
  Ok(bps_push_pull(session, &call, nullptr), "bps_push_pull");
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  bool described = false;
  Error error;
  do {
    const auto began = Clock::now();
    error = Take(bps_wait(request, 200));
    if (Clock::now() - began > std::chrono::seconds(10)) Die("bps_wait does not keep its own deadline");
    described |= error.code == BPS_DEADLINE_EXCEEDED && Has(error, "scheduler \"stuck\" has not returned from next");
    if (Clock::now() > deadline) Die("the scheduler does not end the session: " + error.message);
  } while (error.code == BPS_DEADLINE_EXCEEDED);
  CHECK(described);
  CHECK(error.code == BPS_INTERNAL && Has(error, "scheduler \"stuck\" has not returned from next"));
  while (called == 0) {
    if (Clock::now() > deadline) Die("the callback does not run");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(called_with == BPS_INTERNAL);
  // Nothing else blocks, either.
  const auto began = Clock::now();
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  CHECK(Take(bps_barrier(session, &barrier)).code == BPS_INTERNAL);
  CHECK(Take(bps_shutdown(session, 0)).code == BPS_INTERNAL);
  bps_request_free(request);
  Ok(bps_close(session), "bps_close");
  CHECK(called == 1);
  if (Clock::now() - began > std::chrono::seconds(15)) Die("the session took too long to end");
}

void Vanish() {
  bps_session* session = Open();
  std::vector<float> values(10, 1);
  bps_tensor* tensor = Declare(session, "loop", BPS_FLOAT32, 10);
  for (int round = 0; round < 10; ++round) {
    CHECK(PushPull(session, tensor, values.data(), values.data(), BPS_AVERAGE).code == BPS_OK);
  }
  bps_close(session);
}

}  // namespace byteps::e2e
