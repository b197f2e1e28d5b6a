// push_check.h - is a PUSH what it should be? Nothing in it is used before.
//
//     absl::Status status = CheckPush(header, limits);
//
// OK; INVALID_ARGUMENT: no worker of this release sends such a thing, the sender is broken or hostile; UNIMPLEMENTED:
// it asks for something that is reserved for later. The immediate is checked by the lender of the slots.
#ifndef BYTEPS_SERVER_REDUCER_PUSH_CHECK_H_
#define BYTEPS_SERVER_REDUCER_PUSH_CHECK_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "core/wire/wire.h"

namespace byteps {

struct PushLimits {
  uint32_t rank = 0;  // of the sender
  uint32_t workers = 0;
  uint64_t slot_bytes = 0;   // no partition is larger
  uint32_t key_size = 0;     // of the transport's keys
  size_t payload_bytes = 0;  // behind the header in the record
  bool in_place = false;     // can the sender's memory be reached?
  bool asynchronous = false;
};

absl::Status CheckPush(const wire::DataHeader& header, const PushLimits& limits);

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_PUSH_CHECK_H_
