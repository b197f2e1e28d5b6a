#include "tools/info/loopback_worker.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/base/time.h"

namespace byteps {
namespace {

constexpr int kSmallRounds = 200;
constexpr int kLargeRounds = 5;
constexpr int kWarmUp = 2;
constexpr int64_t kShutdownMs = 10'000;

// The functions of the library that are used here, by name.
class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
    Look("bps_status_message", &status_message);
    Look("bps_open_versioned", &open_versioned);
    Look("bps_session_info", &session_info);
    Look("bps_declare", &declare);
    Look("bps_push_pull", &push_pull);
    Look("bps_wait", &wait);
    Look("bps_request_free", &request_free);
    Look("bps_shutdown", &shutdown);
    Look("bps_close", &close);
  }

  // Throws the error, if it is one.
  void Ok(bps_status* status, const char* what) const {
    if (status != nullptr) throw std::runtime_error(std::string(what) + ": " + status_message(status));
  }

  decltype(&bps_status_message) status_message;
  decltype(&bps_open_versioned) open_versioned;
  decltype(&bps_session_info) session_info;
  decltype(&bps_declare) declare;
  decltype(&bps_push_pull) push_pull;
  decltype(&bps_wait) wait;
  decltype(&bps_request_free) request_free;
  decltype(&bps_shutdown) shutdown;
  decltype(&bps_close) close;

 private:
  template <typename Function>
  void Look(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (*function == nullptr) throw std::runtime_error(std::string("the library has no ") + name);
  }

  void* const handle_;  // never closed: the process ends first
};

class Measurement {
 public:
  Measurement(const Library& library, bps_session* session) : library_(library), session_(session) {
    library.Ok(library.session_info(session, &info_), "bps_session_info");
  }

  // Median microseconds of a push_pull of so many floats.
  double Run(const char* name, size_t elements, int rounds) {
    const auto shape = static_cast<int64_t>(elements);
    bps_declare_args args = BPS_DECLARE_ARGS_INIT;
    args.name = name;
    args.dtype = BPS_FLOAT32;
    args.shape = &shape;
    args.ndim = 1;
    bps_tensor* tensor = nullptr;
    library_.Ok(library_.declare(session_, &args, &tensor), "bps_declare");
    std::vector<float> input(elements), output(elements);
    for (size_t i = 0; i < elements; ++i) input[i] = static_cast<float>(i % 7) + static_cast<float>(info_.rank);
    std::vector<double> times;
    for (int round = 0; round < rounds + kWarmUp; ++round) {
      std::fill(output.begin(), output.end(), -1.0f);
      const Time began = Now();
      PushPull(tensor, input.data(), output.data());
      if (round >= kWarmUp) times.push_back(static_cast<double>(Now() - began) / 1000);
      Check(name, output);
    }
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return times[static_cast<size_t>(rounds / 2)];
  }

 private:
  void PushPull(bps_tensor* tensor, const float* input, float* output) {
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = tensor;
    args.input = input;
    args.output = output;
    args.op = BPS_SUM;
    bps_request* request = nullptr;
    library_.Ok(library_.push_pull(session_, &args, &request), "bps_push_pull");
    bps_status* const ended = library_.wait(request, 0);
    library_.request_free(request);
    library_.Ok(ended, "bps_push_pull");
  }

  void Check(const char* name, const std::vector<float>& output) const {
    const int32_t sum_of_ranks = info_.size * (info_.size - 1) / 2;
    const auto ranks = static_cast<float>(sum_of_ranks);
    for (size_t i = 0; i < output.size(); ++i) {
      if (output[i] != static_cast<float>(info_.size) * static_cast<float>(i % 7) + ranks) {
        throw std::runtime_error(std::string(name) + ": element " + std::to_string(i) + " of the sum is wrong");
      }
    }
  }

  const Library& library_;
  bps_session* const session_;
  bps_info info_ = BPS_INFO_INIT;
};

}  // namespace

int RunLoopbackWorker(const std::string& path) try {
  const Library library(path);
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = nullptr;
  library.Ok(library.open_versioned(BPS_ABI_MAJOR, BPS_ABI_MINOR, &args, &session), "bps_open");
  Measurement measurement(library, session);
  const double small = measurement.Run("bps_info.small", 1, kSmallRounds);
  const double large = measurement.Run("bps_info.large", kLoopbackBytes / sizeof(float), kLargeRounds);
  library.Ok(library.shutdown(session, kShutdownMs), "bps_shutdown");
  library.close(session);
  std::printf(kLoopbackResultFormat, small, large);
  return 0;
} catch (const std::exception& error) {
  std::string line = error.what();  // one line: the last is what counts
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::fprintf(stderr, "%s\n", line.c_str());
  return 1;
}

}  // namespace byteps
