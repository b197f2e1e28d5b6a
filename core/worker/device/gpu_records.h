// gpu_records.h - what the workers of a host say to each other of operations on the memory of their GPUs.
//
// The numbers of a round are those of its name: wire::NameId of the tensor's key, and the round. Text, where there is
// some, follows the body. They travel over the links of the local stage; docs/protocol.md has the order.
#ifndef BYTEPS_CORE_WORKER_DEVICE_GPU_RECORDS_H_
#define BYTEPS_CORE_WORKER_DEVICE_GPU_RECORDS_H_

#include <cstdint>

namespace byteps {

// To all: my input is there.
struct GpuOfferBody {
  uint64_t name;
  uint64_t round;
  uint64_t fingerprint;
  uint64_t device;   // a number of the GPU; 0: not known
  uint64_t options;  // a number of the variables in which all must agree
  int32_t able;      // 0: not with a GPU; the text says why
  uint32_t text;
};

// To the first of them: the row's part that I own is on its way into my GPU.
struct GpuHomeBody {
  uint64_t name;
  uint64_t round;
  uint32_t row;
  uint32_t reserved;
};

enum class GpuOrderKind : uint32_t {
  kJoin = 0,    // the text is the id that all join, as ring `ring`
  kHost = 1,    // this round goes through the memory of the host
  kReduce = 2,  // rows [first, first + count) are reduced
  kGather = 3,  // likewise: gathered
  kEnd = 4,     // this round has failed; the text says why
};

// From the first of them to all.
struct GpuOrderBody {
  uint64_t name;
  uint64_t round;
  GpuOrderKind kind;
  uint32_t ring;
  uint32_t first;
  uint32_t count;
  int32_t code;
  uint32_t text;
};

// To the first of them.
struct GpuGiveUpBody {
  uint64_t name;
  uint64_t round;
  int32_t code;
  uint32_t text;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_GPU_RECORDS_H_
