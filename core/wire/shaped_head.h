// shaped_head.h - a fixed struct with the shape of the tensor behind it: how PUSH and OFFER begin.
//
//     ShapedHead<wire::DataHeader> head(header, shape, room);     // as much as there is room for
//     head.bytes()
//
//     if (!ReadShaped(bytes, &header, &shape, &rest)) ...         // cut off
//
// The struct's field `shape` is 1 + the number of extents (int64_t each), or 0: the shape was not told. The shape is
// for errors alone, and is left out where a payload takes the room: ranks that disagree about it differ in key or
// fingerprint, and the extents say how.
//
// Threads: any.
#ifndef BYTEPS_CORE_WIRE_SHAPED_HEAD_H_
#define BYTEPS_CORE_WIRE_SHAPED_HEAD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/wire/message.h"
#include "core/wire/wire.h"

namespace byteps {

template <typename Head>
class ShapedHead {
 public:
  // `room`: bytes for head and shape; the head fits in any case.
  ShapedHead(const Head& head, std::span<const int64_t> shape, size_t room) {
    Head with_shape = head;
    with_shape.shape = 0;
    if (shape.size() <= wire::kMaxExtents && sizeof head + shape.size_bytes() <= room) {
      with_shape.shape = static_cast<uint32_t>(shape.size()) + 1;
      if (!shape.empty()) std::memcpy(bytes_.data() + size_, shape.data(), shape.size_bytes());
      size_ += shape.size_bytes();
    }
    std::memcpy(bytes_.data(), &with_shape, sizeof with_shape);
  }
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, sizeof(Head) + wire::kMaxExtents * sizeof(int64_t)> bytes_;
  size_t size_ = sizeof(Head);
};

// Splits a record: `shape` gets the bytes of the extents, which are not aligned, `rest` what follows. False if there is
// less than the head says.
template <typename Head>
bool ReadShaped(std::span<const std::byte> record, Head* head, std::span<const std::byte>* shape,
                std::span<const std::byte>* rest) {
  if (!ReadStruct(record, head)) return false;
  *rest = record.subspan(sizeof *head);
  const uint64_t extents = head->shape == 0 ? 0 : head->shape - 1;
  if (extents > wire::kMaxExtents || extents * sizeof(int64_t) > rest->size()) return false;
  *shape = rest->first(extents * sizeof(int64_t));
  *rest = rest->subspan(shape->size());
  return true;
}

}  // namespace byteps

#endif  // BYTEPS_CORE_WIRE_SHAPED_HEAD_H_
