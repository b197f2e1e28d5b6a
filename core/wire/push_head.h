// push_head.h - what stands before the payload of a PUSH: its header, and behind that the shape of the tensor.
//
//     PushHead head(header, shape, endpoint.MaxRecord() - payload.size());    // as much as there is room for
//     endpoint.Send(peer, wire::RecordType::kPush, head.bytes(), payload);
//
//     Push push;
//     if (!ReadPush(record.body, &push)) ...                                  // cut off
//     DescribeShape(push.shape)                                               // "2x4", "scalar"
//
// The shape is for errors alone: ranks that disagree about it have different keys, and the server, which knows neither
// names nor shapes, can say what each has asked. It is left out where a small payload takes the room.
#ifndef BYTEPS_CORE_WIRE_PUSH_HEAD_H_
#define BYTEPS_CORE_WIRE_PUSH_HEAD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/wire/shaped_head.h"
#include "core/wire/wire.h"

namespace byteps {

using PushHead = ShapedHead<wire::DataHeader>;

struct Push {
  wire::DataHeader header;
  std::span<const std::byte> shape;    // extents, int64_t each, not aligned; empty too if it was not told
  std::span<const std::byte> payload;  // inline; the padding of the record is part of it
};

// False if there is less than the header says.
bool ReadPush(std::span<const std::byte> body, Push* push);

// "2x4", or "scalar".
std::string DescribeShape(std::span<const int64_t> shape);

}  // namespace byteps

#endif  // BYTEPS_CORE_WIRE_PUSH_HEAD_H_
