// engine_test.h - the engine of workers over simulated transports of several kinds: what its tests share.
#ifndef BYTEPS_TESTS_CORE_WORKER_ENGINE_ENGINE_TEST_H_
#define BYTEPS_TESTS_CORE_WORKER_ENGINE_ENGINE_TEST_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/core/worker/engine/engine_job.h"

namespace byteps {

inline std::vector<float> Ramp(size_t count, float from) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), from);
  return values;
}

inline std::vector<float> Sum(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

inline bool Ended(const std::vector<std::shared_ptr<Request>>& requests) {
  for (const auto& request : requests) {
    if (!request->ended()) return false;
  }
  return true;
}

struct Kind {
  const char* name;
  uint32_t flags;
};

class EngineTest : public testing::TestWithParam<Kind> {
 protected:
  EngineJobOptions Options(uint32_t workers = 2, uint32_t servers = 2) {
    EngineJobOptions options;
    options.workers = workers;
    options.servers = servers;
    options.worker_flags = GetParam().flags;
    return options;
  }
};

// Each test of a program over every kind of transport.
#define BPS_INSTANTIATE_ENGINE_TEST()                                                                   \
  INSTANTIATE_TEST_SUITE_P(                                                                             \
      Transports, EngineTest,                                                                           \
      testing::Values(Kind{"RegistersCheaply", BPS_TRANSPORT_LOCAL_ANY | BPS_TRANSPORT_CHEAP_REG},      \
                      Kind{"MustRegister", BPS_TRANSPORT_CHEAP_REG},                                    \
                      Kind{"TakesAnyLocalMemory", BPS_TRANSPORT_LOCAL_ANY}, Kind{"CopiesBothWays", 0}), \
      [](const testing::TestParamInfo<Kind>& kind) { return std::string(kind.param.name); })

}  // namespace byteps

#endif  // BYTEPS_TESTS_CORE_WORKER_ENGINE_ENGINE_TEST_H_
