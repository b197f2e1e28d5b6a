// message.h - puts records into messages and takes them out again (layout: core/wire/wire.h).
//
//     MessageBuilder builder(max_message, memory);
//     if (!builder.Append(type, fixed, payload)) { /* full: send what is there, begin another */ }
//     builder.Finish(session, epoch, credits);  // -> bytes()
//
//     MessageReader reader;
//     absl::Status status = reader.Parse(bytes);  // checks everything that can be checked without context
//     while (auto record = reader.Next()) ...
//
// Readers never look outside the bytes they were given, whatever those say, and whatever becomes of them meanwhile.
#ifndef BYTEPS_CORE_WIRE_MESSAGE_H_
#define BYTEPS_CORE_WIRE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "core/base/byte_buffer.h"
#include "core/wire/wire.h"

namespace byteps {

// Bytes that a record of a fixed part and a payload takes in a message.
size_t RecordSize(size_t fixed, size_t payload);

class MessageBuilder {
 public:
  explicit MessageBuilder(size_t capacity, std::pmr::memory_resource* memory = std::pmr::get_default_resource());

  // False if the record does not fit behind those already there. Copies both parts.
  bool Append(wire::RecordType type, std::span<const std::byte> fixed, std::span<const std::byte> payload);

  // Writes the header. May be called again, with other credits, until the message is sent.
  void Finish(uint64_t session, uint32_t epoch, uint32_t credits);

  bool empty() const { return records_ == 0; }
  uint16_t records() const { return records_; }
  std::span<const std::byte> bytes() const { return bytes_.bytes(); }

 private:
  size_t capacity_;
  uint16_t records_ = 0;
  ByteBuffer bytes_;
};

struct Record {
  wire::RecordType type;
  uint16_t flags;
  std::span<const std::byte> body;  // without the RecordHeader; padding included
};

class MessageReader {
 public:
  // INVALID_ARGUMENT says what is wrong. The bytes must stay until the last Next.
  absl::Status Parse(std::span<const std::byte> bytes);
  const wire::MessageHeader& header() const { return header_; }
  std::optional<Record> Next();

 private:
  wire::MessageHeader header_{};
  std::span<const std::byte> rest_;
  uint16_t left_ = 0;
};

// The bytes of a trivially copyable struct, and back. Read fails if `body` is too short.
template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}

template <typename T>
bool ReadStruct(std::span<const std::byte> body, T* value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (body.size() < sizeof(T)) return false;
  __builtin_memcpy(value, body.data(), sizeof(T));
  return true;
}

}  // namespace byteps

#endif  // BYTEPS_CORE_WIRE_MESSAGE_H_
