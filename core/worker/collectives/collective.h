// collective.h - one collective operation as its caller asks for it, and what comes back.
//
//     Collective asked;
//     asked.kind = CollectiveKind::kAllGather;
//     asked.set = set; asked.name = "tokens"; asked.dtype = BPS_INT32; asked.shape = {rows, 4};
//     asked.input = tokens;
//     absl::Status wrong = Check(asked, own_rank);
//
// abi/byteps.h says what each kind means.
//
// Threads: values; a CollectiveResult is written before its request ends, and read afterwards.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_COLLECTIVE_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "core/base/aligned_memory.h"
#include "core/base/time.h"
#include "core/worker/collectives/process_set.h"
#include "core/worker/collectives/sparse_rows.h"
#include "core/worker/tensor/payload.h"
#include "core/worker/tensor/request.h"

namespace byteps {

enum class CollectiveKind : int32_t {
  kAllReduce = BPS_ALL_REDUCE,
  kBroadcast = BPS_BROADCAST,
  kAllGather = BPS_ALL_GATHER,
  kReduceScatter = BPS_REDUCE_SCATTER,
  kAllToAll = BPS_ALL_TO_ALL,
  kReduce = BPS_REDUCE,
  kGather = BPS_GATHER,
  kScatter = BPS_SCATTER,
  kSend = BPS_SEND,
  kReceive = BPS_RECEIVE,
  kBarrier = BPS_BARRIER,
  kSparseAllReduce = 64,  // bps_sparse_all_reduce
};

// "all_gather"; "unknown".
const char* KindName(CollectiveKind kind);
bool IsKind(int32_t kind);
bool IsReducing(CollectiveKind kind);
bool IsRooted(CollectiveKind kind);
// Send and receive: two ranks take part, under a tag.
bool IsPairwise(CollectiveKind kind);

struct GpuRound;  // core/worker/device/gpu_round.h

// What an operation has brought.
struct CollectiveResult {
  std::byte* data = nullptr;  // the caller's output, or `memory`
  uint64_t bytes = 0;
  std::vector<int64_t> shape;
  std::vector<int64_t> splits;  // rows from (or, of a reduce_scatter, for) each rank of the set
  AlignedMemory memory;         // of an operation without an output of the caller's
};

// What a sparse_all_reduce has brought beside the rows (which are the CollectiveResult): their numbers.
struct SparseIndices {
  bool dense = false;  // the rows are all rows
  int64_t* data = nullptr;
  int64_t count = 0;
};

struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  int32_t reduction = BPS_SUM;
  std::string name;  // not empty, but for send and receive
  std::shared_ptr<ProcessSet> set;
  uint32_t dtype = BPS_UINT8;
  std::vector<int64_t> shape;  // of the input
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // nullptr: the library's memory
  uint64_t capacity = 0;        // bytes at output
  // With memory of GPUs: what the caller's streams were told. Such an operation is held until its input is on the host
  // (collective_copies.h).
  std::shared_ptr<GpuRound> gpu;
  Device input_device, output_device;
  std::vector<int64_t> splits;  // rows; empty: as even as possible (all_to_all: equal)
  int32_t root = 0;             // a rank of the job
  int32_t peer = 0;             // likewise, of send and receive
  int64_t tag = 0;
  bool scaled = false;
  double prescale = 1, postscale = 1;
  // Of sparse_all_reduce: the shape counts this rank's rows, the input is packed (sparse_rows.h), and this is the first
  // extent of the whole tensor.
  int64_t all_rows = 0;
  std::shared_ptr<SparseRows> packed;  // owns the input
  std::shared_ptr<SparseIndices> indices;
  // A part of a group: the number of its operations, and which of them; 0: none.
  uint32_t group_size = 0, group_index = 0;
  uint64_t match = 0;  // a number of the caller's, for comparing; 0: none
  int64_t priority = 0;
  Time timeout = 0;  // more than 0
  // Not OK: this rank takes no part. The round is used up and ends with this, here and at the other ranks; there is no
  // input and no output.
  absl::Status given_up;
  std::shared_ptr<Request> request;
  std::shared_ptr<CollectiveResult> result;

  uint64_t elements() const;
  uint64_t bytes() const;  // of the input
  // Rows are what the first dimension counts; a scalar is one row.
  uint64_t rows() const { return shape.empty() ? 1 : static_cast<uint64_t>(shape[0]); }
  uint64_t row_bytes() const;
  // Where operations meet: the same on all that take part.
  uint64_t id(int32_t own_rank) const;
  // That of operations that share a name.
  static uint64_t IdOfName(std::string_view name);
  // Of all ranks, under a name: of one sequence with push_pulls and broadcasts of that name, whichever way each goes.
  bool shares_name() const { return set->is_all() && !IsPairwise(kind); }
  // "all_gather \"tokens\" (int32, 5x4) of all ranks"
  std::string Describe() const;
};

// Does this rank give bytes, and does it get some? What it names for the others is ignored.
bool GivesInput(const Collective& asked, int32_t own_rank);
bool GetsOutput(const Collective& asked, int32_t own_rank);

// What can be seen to be wrong without the other ranks: INVALID_ARGUMENT.
absl::Status Check(const Collective& asked, int32_t own_rank);
// The same, but for its memory.
absl::Status CheckRequest(const Collective& asked, int32_t own_rank);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_COLLECTIVE_H_
