// conformance.h - what every scheduler plugin must do, as a parameterised suite.
//
//     INSTANTIATE_TEST_SUITE_P(All, SchedulerConformance, testing::Values(SchedulerUnderTest{"fifo", entry}),
//     SchedulerName);
//
// Histories are random but told by their seed alone: a failure prints the seed, and runs again the same.
#ifndef BYTEPS_TESTS_SCHEDULER_CONFORMANCE_H_
#define BYTEPS_TESTS_SCHEDULER_CONFORMANCE_H_

#include <string>

#include "abi/scheduler.h"
#include "gtest/gtest.h"

namespace byteps {

struct SchedulerUnderTest {
  const char* name;
  bps_scheduler_plugin_fn entry;
  bool bounded = false;  // by BYTEPS_SCHEDULING_CREDIT: it must say so in its stats, and keep to it
};

class SchedulerConformance : public testing::TestWithParam<SchedulerUnderTest> {
 protected:
  // The descriptor that the entry answers with; a fatal failure if it is not one.
  const bps_scheduler_plugin& Plugin();

 private:
  const bps_scheduler_plugin* plugin_ = nullptr;
};

std::string SchedulerName(const testing::TestParamInfo<SchedulerUnderTest>& param);

}  // namespace byteps

#endif  // BYTEPS_TESTS_SCHEDULER_CONFORMANCE_H_
