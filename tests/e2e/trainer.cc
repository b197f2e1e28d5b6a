#include "tests/e2e/trainer.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "core/reduce/dtype.h"
#include "core/reduce/reduce.h"

namespace byteps::e2e {

void Die(const std::string& what) {
  std::printf("FAILED: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

void Ok(bps_status* status, const char* what) {
  if (status == nullptr) return;
  Die(std::string(what) + ": code " + std::to_string(bps_status_code(status)) + ": " + bps_status_message(status));
}

Error Take(bps_status* status) {
  Error error{bps_status_code(status), bps_status_message(status), bps_status_retryable(status) != 0};
  bps_status_free(status);
  return error;
}

bool Has(const Error& error, const std::string& text) { return error.message.find(text) != std::string::npos; }

void Say(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
}

bps_session* Open() {
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = nullptr;
  Ok(bps_open(&args, &session), "bps_open");
  return session;
}

bps_info Info(bps_session* session) {
  bps_info info = BPS_INFO_INIT;
  Ok(bps_session_info(session, &info), "bps_session_info");
  return info;
}

void End(bps_session* session) {
  Ok(bps_shutdown(session, 20000), "bps_shutdown");
  bps_close(session);
}

bps_tensor* Declare(bps_session* session, const std::string& name, uint32_t dtype, int64_t elements) {
  bps_declare_args args = BPS_DECLARE_ARGS_INIT;
  args.name = name.c_str();
  args.dtype = dtype;
  args.shape = &elements;
  args.ndim = 1;
  bps_tensor* tensor = nullptr;
  Ok(bps_declare(session, &args, &tensor), "bps_declare");
  return tensor;
}

bps_request* Start(bps_session* session, bps_tensor* tensor, const void* input, void* output, int32_t op,
                   int64_t timeout_ms) {
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = input;
  args.output = output;
  args.op = op;
  args.timeout_ms = timeout_ms;
  bps_request* request = nullptr;
  Ok(bps_push_pull(session, &args, &request), "bps_push_pull");
  return request;
}

Error Wait(bps_request* request) {
  Error error = Take(bps_wait(request, 0));
  bps_request_free(request);
  return error;
}

Error PushPull(bps_session* session, bps_tensor* tensor, const void* input, void* output, int32_t op,
               int64_t timeout_ms) {
  return Wait(Start(session, tensor, input, output, op, timeout_ms));
}

void Expect(const Error& error, int32_t code, const std::vector<std::string>& texts) {
  bool good = error.code == code;
  for (const std::string& text : texts) good = good && Has(error, text);
  if (good) return;
  std::string wanted;
  for (const std::string& text : texts) wanted += " \"" + text + "\"";
  Die("expected code " + std::to_string(code) + " with" + wanted + ", got code " + std::to_string(error.code) + ": " +
      error.message);
}

std::vector<uint8_t> Input(uint32_t dtype, size_t elements, int rank, uint64_t seed) {
  const size_t size = byteps::DtypeSize(dtype);
  std::vector<uint8_t> bytes(elements * size);
  uint64_t state = seed * 1000003 + static_cast<uint64_t>(rank) * 7919 + dtype;
  for (size_t i = 0; i < elements; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t random = state >> 33;
    const float value = static_cast<float>(static_cast<int64_t>(random % 4096) - 2048) / 256.0f;
    uint8_t* at = bytes.data() + i * size;
    if (dtype == BPS_FLOAT32) {
      std::memcpy(at, &value, size);
    } else if (dtype == BPS_FLOAT64) {
      const double wide = value;
      std::memcpy(at, &wide, size);
    } else if (dtype == BPS_FLOAT16) {
      const byteps::Float16 half = byteps::ToFloat16(value);
      std::memcpy(at, &half.bits, size);
    } else if (dtype == BPS_BFLOAT16) {
      const byteps::BFloat16 half = byteps::ToBFloat16(value);
      std::memcpy(at, &half.bits, size);
    } else {
      std::memcpy(at, &random, size);
    }
  }
  return bytes;
}

std::vector<uint32_t> Groups() {
  std::istringstream sizes(std::getenv("E2E_HOSTS") == nullptr ? "" : std::getenv("E2E_HOSTS"));
  return {std::istream_iterator<uint32_t>(sizes), std::istream_iterator<uint32_t>()};
}

std::vector<uint8_t> Expected(uint32_t dtype, int32_t op, size_t elements, int workers, uint64_t seed) {
  std::vector<std::vector<uint8_t>> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < workers; ++rank) inputs.push_back(Input(dtype, elements, rank, seed));
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<uint8_t> result(elements * byteps::DtypeSize(dtype));
  if (elements != 0) byteps::Reduce({dtype, op}, pointers, Groups(), result.data(), elements);
  return result;
}

void CheckSum(bps_session* session, const bps_info& info, uint32_t dtype, int32_t op, size_t elements, bool in_place) {
  const std::string name = std::string("t.") + byteps::DtypeName(dtype) + "." + std::to_string(elements);
  const uint64_t seed = elements + static_cast<uint64_t>(op) * 17;
  bps_tensor* tensor = Declare(session, name, dtype, static_cast<int64_t>(elements));
  std::vector<uint8_t> input = Input(dtype, elements, info.rank, seed);
  std::vector<uint8_t> output(input.size(), 0xee);
  void* to = in_place ? input.data() : output.data();
  const Error error = PushPull(session, tensor, input.data(), to, op);
  if (error.code != BPS_OK) Die(name + ": " + error.message);
  const std::vector<uint8_t> wanted = Expected(dtype, op, elements, info.size, seed);
  if ((in_place ? input : output) != wanted) Die(name + " op " + std::to_string(op) + ": wrong bits");
}

size_t Descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

size_t ResidentKiB() {
  std::ifstream file("/proc/self/statm");
  size_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) / 1024;
}

}  // namespace byteps::e2e
