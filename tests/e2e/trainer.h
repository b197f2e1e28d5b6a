// trainer.h - the C ABI for the scenarios of worker.cc: each call succeeds, or ends the process with a sentence.
//
//     bps_session* session = Open();
//     bps_tensor* tensor = Declare(session, "w", BPS_FLOAT32, 10);
//     CHECK(PushPull(session, tensor, input, output, BPS_SUM).code == BPS_OK);
//     End(session);
//
// Threads: any.
#ifndef BYTEPS_TESTS_E2E_TRAINER_H_
#define BYTEPS_TESTS_E2E_TRAINER_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "abi/byteps.h"

namespace byteps::e2e {

using Clock = std::chrono::steady_clock;

[[noreturn]] void Die(const std::string& what);

#define CHECK(condition) \
  if (!(condition)) Die(std::string(__FILE__ ":") + std::to_string(__LINE__) + ": " #condition)

// The outcome of a call that must succeed.
void Ok(bps_status* status, const char* what);

struct Error {
  int32_t code = BPS_OK;
  std::string message;
  bool retryable = false;
};

Error Take(bps_status* status);

bool Has(const Error& error, const std::string& text);

void Say(const char* what);

bps_session* Open();

bps_info Info(bps_session* session);

void End(bps_session* session);

bps_tensor* Declare(bps_session* session, const std::string& name, uint32_t dtype, int64_t elements);

bps_request* Start(bps_session* session, bps_tensor* tensor, const void* input, void* output, int32_t op,
                   int64_t timeout_ms = 0);

Error Wait(bps_request* request);

Error PushPull(bps_session* session, bps_tensor* tensor, const void* input, void* output, int32_t op,
               int64_t timeout_ms = 0);

void Expect(const Error& error, int32_t code, const std::vector<std::string>& texts);

// What rank `rank` gives to a tensor: bytes that depend on everything, numbers that are harmless to add.
std::vector<uint8_t> Input(uint32_t dtype, size_t elements, int rank, uint64_t seed);

// The groups of the reduction: the hosts' workers, where the job has several hosts (tests/e2e/job.cc).
std::vector<uint32_t> Groups();

// What the documented formula gives.
std::vector<uint8_t> Expected(uint32_t dtype, int32_t op, size_t elements, int workers, uint64_t seed);

inline constexpr uint32_t kDtypes[] = {BPS_FLOAT32, BPS_FLOAT64, BPS_FLOAT16, BPS_BFLOAT16,
                                       BPS_INT8,    BPS_UINT8,   BPS_INT32,   BPS_INT64};

void CheckSum(bps_session* session, const bps_info& info, uint32_t dtype, int32_t op, size_t elements, bool in_place);

// Of this process: open ones.
size_t Descriptors();

// Of this process: memory that is there.
size_t ResidentKiB();

// A buffer of the library's, freed at the end.
class OwnBuffer {
 public:
  OwnBuffer(bps_session* session, size_t size) {
    bps_buffer_args args = BPS_BUFFER_ARGS_INIT;
    args.size = size;
    Ok(bps_buffer_alloc(session, &args, &buffer_), "bps_buffer_alloc");
  }
  ~OwnBuffer() { Ok(bps_buffer_free(buffer_), "bps_buffer_free"); }
  OwnBuffer(const OwnBuffer&) = delete;
  OwnBuffer& operator=(const OwnBuffer&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(bps_buffer_data(buffer_)); }

 private:
  bps_buffer* buffer_ = nullptr;
};

}  // namespace byteps::e2e

#endif  // BYTEPS_TESTS_E2E_TRAINER_H_
