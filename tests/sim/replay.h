// replay.h - a training step of a model, on a simulated job: workers that compute by waiting, and communicate for real.
//
//     const Model model = ReadModel("tools/models/vgg16.model", 8, 0);
//     const std::vector<Time> begins = RunSteps(&job, model, 12, false);
//     Seconds(begins[i + 1] - begins[i])                 // of step i; at least model.Bound(seconds per byte)
//
// A step goes from the beginning of a backward pass to the end of the next forward pass, as in tools/perf: a gradient
// is handed in when it is ready, a layer of the forward pass begins when its own value is home. Priorities are those of
// the forward pass. Of the shape of a tensor nothing is kept but the number of elements.
#ifndef BYTEPS_TESTS_SIM_REPLAY_H_
#define BYTEPS_TESTS_SIM_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "tests/sim/simulated_job.h"

namespace byteps {

struct Layer {
  std::string name;
  size_t elements = 0;  // of float32
  double begins = 0;    // seconds into the forward pass
  double ready = 0;     // seconds into the backward pass

  uint64_t bytes() const { return elements * sizeof(float); }
};

struct Model {
  double forward = 0, backward = 0;  // seconds
  std::vector<Layer> layers;         // in the order of the forward pass

  uint64_t bytes() const;
  // No schedule makes a step faster on a link that takes so many seconds for a byte: Jackson's rule, as
  // tools/perf/bound.py says it.
  double Bound(double seconds_per_byte) const;
};

// tools/models; its tensors are made this many times smaller, and its computation takes `compute` seconds a step (0:
// what the file says). No layers: the file cannot be read.
Model ReadModel(const std::string& path, double shrink, double compute);

// So many steps of all workers. When each began on rank 0, and when the last ended; empty: it went wrong, and stderr
// says what every member waits for. `tell_waits`: prints what rank 0 waited for.
std::vector<Time> RunSteps(SimulatedJob* job, const Model& model, int steps, bool tell_waits);

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_REPLAY_H_
