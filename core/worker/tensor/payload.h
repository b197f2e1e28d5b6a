// payload.h - bytes on their way through the stages: of a whole tensor, or of one of its parts.
//
//     const Areas areas = AreasOf(submission, own_rank);          // where its bytes are, and its result belongs
//     const Payload part = PartOf(areas.source, *tensor.cut, 3);  // its third part, as elements one after the other
//
// A stage that changes what travels (a codec, a copy out of a device) hands payloads of its own to the next stage: at
// other addresses, of another data type, or of other bytes. All others take address, elements and bytes from here,
// and never from the tensor.
//
// Threads: values.
#ifndef BYTEPS_CORE_WORKER_TENSOR_PAYLOAD_H_
#define BYTEPS_CORE_WORKER_TENSOR_PAYLOAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "abi/byteps.h"
#include "core/worker/memory/buffer.h"
#include "core/worker/tensor/cut.h"

namespace byteps {

// Whose memory it is: BPS_CPU, BPS_CUDA, ... and which of them.
struct Device {
  int32_t type = BPS_CPU;
  int32_t id = 0;
  bool operator==(const Device&) const = default;
};

struct DeviceAllocation;  // core/worker/memory/device_regions.h

struct Payload {
  std::byte* address = nullptr;  // a source is only read
  uint64_t elements = 0;
  uint64_t bytes = 0;  // elements x size of the data type, unless there is a codec; 0: there is nothing to be had
  uint32_t dtype = 0;
  uint32_t codec = 0;  // 0: plain elements
  Device device;
};

// The memory that the payloads of an operation's parts lie in; a transport registers it as a whole.
struct Areas {
  Payload source;
  Payload target;
  // The library's own buffers that they lie in; nullptr: other memory.
  std::shared_ptr<Buffer> source_buffer;
  std::shared_ptr<Buffer> target_buffer;
  // Of memory of a GPU (which a stage is given only if it TakesDevice): where it lies; outlives the operation.
  const DeviceAllocation* source_allocation = nullptr;
  const DeviceAllocation* target_allocation = nullptr;

  // Is the result written over what was pushed?
  bool in_place() const { return source.address == target.address; }
};

// One part of plain elements that lie one after the other. Of no bytes, if the whole has none.
Payload PartOf(const Payload& whole, const Cut& cut, uint32_t part);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_PAYLOAD_H_
