// collective_program.h - a random program of collectives on a simulated job, and what each must bring.
//
//     CollectiveProgram program(&job, seed);
//     program.Run();                       // every rank submits its own order; all end; every byte is compared
//
// An operation is drawn with a kind, a data type, shapes that differ where they may, a subset of the ranks, splits, and
// factors. What it must bring is computed here from all inputs at once, without plans, slices or transports.
#ifndef BYTEPS_TESTS_SIM_COLLECTIVE_PROGRAM_H_
#define BYTEPS_TESTS_SIM_COLLECTIVE_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/worker/collectives/collective.h"
#include "tests/sim/simulated_job.h"
#include "transport_plugins/sim/random.h"

namespace byteps {

// Where operations have their memory, if not on the host.
class CollectiveMemory {
 public:
  virtual ~CollectiveMemory() = default;
  // Moves input and output of an operation that `rank` is about to submit to where they are to be.
  virtual void Move(uint32_t rank, Collective* asked) = 0;
  // The operation has ended: what has come is put where its caller expects it.
  virtual void Bring(const Collective& moved, const Collective& asked) = 0;
};

class CollectiveProgram {
 public:
  // `memory`: nullptr: the host's.
  CollectiveProgram(SimulatedJob* job, uint64_t seed, CollectiveMemory* memory = nullptr)
      : job_(job), random_(seed), memory_(memory) {}

  // `operations`: how many; `most_rows`: of each tensor.
  void Run(size_t operations, int64_t most_rows);

 private:
  // One rank's part of an operation.
  struct Part {
    Collective asked;
    Collective moved;  // as it was submitted
    std::vector<std::byte> input, output, before;
    std::vector<std::byte> expected;
    std::vector<int64_t> shape;
    std::vector<int64_t> indices, expected_indices;  // of sparse_all_reduce, as its user gives them
    bool dense = false;                              // the whole tensor is expected
    bool brings = true;
  };
  struct Operation {
    std::shared_ptr<ProcessSet> set;
    std::vector<Part> parts;    // by the ranks of the set
    std::optional<size_t> odd;  // this rank asks for something else: all must fail
  };

  void Draw(const std::string& name, int64_t most_rows);
  void DrawShapes(Operation* operation, int64_t most_rows);
  void DrawMemory(Operation* operation);
  void MakeOdd(Operation* operation);
  void Expect(Operation* operation);
  void ExpectReduced(Operation* operation);
  void DrawRows(Part* part);
  void ExpectRows(Operation* operation);
  void ExpectMoved(Operation* operation);
  void Check(const Operation& operation);
  void Fill(uint32_t dtype, std::vector<std::byte>* bytes);

  SimulatedJob* const job_;
  sim::Random random_;
  CollectiveMemory* const memory_;
  std::vector<std::unique_ptr<Operation>> operations_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_COLLECTIVE_PROGRAM_H_
