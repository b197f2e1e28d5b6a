// expect_mismatch.h - all workers ask the same, but one: every rank must hear who and what, and the session goes on.
//
//     ExpectMismatch({.seed = seed, .workers = 3}, FloatAsk("weights", 10'000),
//                    [](Ask* ask) { ask->reduction = BPS_MAX; },
//                    [](uint32_t odd) { return Words{"push_pull (max) of", "rank " + std::to_string(odd)}; });
//
// Failures are those of GoogleTest.
#ifndef BYTEPS_TESTS_SIM_EXPECT_MISMATCH_H_
#define BYTEPS_TESTS_SIM_EXPECT_MISMATCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/sim/simulated_job.h"

namespace byteps {

using Words = std::vector<std::string>;

// One worker, drawn from the seed, asks what `twist` makes of `ask`. Every member's error has the name of the tensor
// and `words(that worker)` in it. Then tensors of `sizes` must go through (ExpectGoesOn).
void ExpectMismatch(const JobOptions& options, const Ask& ask, const std::function<void(Ask*)>& twist,
                    const std::function<Words(uint32_t odd)>& words, const std::vector<size_t>& sizes = {3000});

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_EXPECT_MISMATCH_H_
