// exchanges.h - operations of all workers of a simulated job, and what each must give, to the bit.
//
//     Exchanges exchanges(&job);
//     exchanges.Sum("t", 1000);                       // submits: each worker with numbers of its own
//     exchanges.Broadcasts({1, 10'000});
//     exchanges.Check();                              // runs until all have ended, and looks at the results
//
// Failures are those of GoogleTest: after one that is fatal, Check() returns at once.
#ifndef BYTEPS_TESTS_SIM_EXCHANGES_H_
#define BYTEPS_TESTS_SIM_EXCHANGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/simulated_job.h"

namespace byteps {

class Exchanges {
 public:
  // `pauses`: how often some time passes between two submissions, 0 to 1.
  explicit Exchanges(SimulatedJob* job, double pauses = 0) : job_(job), pauses_(pauses) {}

  // A sum of float32 whose order counts: of the ranks, or where hosts that differ are groups, of these.
  void Sum(const std::string& name, size_t size);
  // Tensors of `shape` in every data type with every reduction, folded by `groups`.
  void EveryDataTypeAndReduction(const std::vector<int64_t>& shape, const std::vector<uint32_t>& groups);
  // From every root in every size.
  void Broadcasts(const std::vector<size_t>& sizes);
  void Check();

 private:
  void Submit(uint32_t worker, const Ask& ask, const std::vector<std::byte>& expected);

  SimulatedJob* job_;
  double pauses_;
  std::vector<Call*> calls_;
  std::vector<std::vector<std::byte>> expected_;
};

// A sum of so many zeros.
Ask FloatAsk(const std::string& name, size_t elements);

// The session works: a tensor of this name, and one of another, in each size.
void ExpectGoesOn(SimulatedJob* job, const std::string& name, const std::vector<size_t>& sizes = {3000});

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_EXCHANGES_H_
