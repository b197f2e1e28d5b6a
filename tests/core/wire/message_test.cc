#include "core/wire/message.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace byteps {
namespace {

std::vector<std::byte> Pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + size);
  return bytes;
}

std::vector<std::byte> Copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

TEST(Message, RecordsOfEverySizeComeBack) {
  MessageBuilder builder(1 << 20);
  for (size_t payload = 0; payload < 40; ++payload) {
    wire::RoundBody body{};
    body.round = payload;
    ASSERT_TRUE(builder.Append(wire::RecordType::kCancel, BytesOf(body), Pattern(payload)));
  }
  builder.Finish(11, 12, 13);
  MessageReader reader;
  ASSERT_TRUE(reader.Parse(builder.bytes()).ok());
  EXPECT_EQ(reader.header().session, 11u);
  EXPECT_EQ(reader.header().epoch, 12u);
  EXPECT_EQ(reader.header().credits, 13u);
  for (size_t payload = 0; payload < 40; ++payload) {
    auto record = reader.Next();
    ASSERT_TRUE(record);
    EXPECT_EQ(record->type, wire::RecordType::kCancel);
    wire::RoundBody body;
    ASSERT_TRUE(ReadStruct(record->body, &body));
    EXPECT_EQ(body.round, payload);
    ASSERT_EQ(Copy(record->body.subspan(sizeof body, payload)), Pattern(payload));
  }
  EXPECT_FALSE(reader.Next());
}

TEST(Message, RefusesWhatDoesNotFit) {
  MessageBuilder builder(sizeof(wire::MessageHeader) + RecordSize(0, 100));
  EXPECT_FALSE(builder.Append(wire::RecordType::kPush, {}, Pattern(105)));
  EXPECT_TRUE(builder.empty());
  EXPECT_TRUE(builder.Append(wire::RecordType::kPush, {}, Pattern(100)));
  EXPECT_FALSE(builder.Append(wire::RecordType::kPush, {}, {}));
}

TEST(Message, AnotherVersionIsNamed) {
  MessageBuilder builder(100);
  builder.Finish(1, 1, 0);
  auto bytes = Copy(builder.bytes());
  bytes[4] = std::byte{9};
  MessageReader reader;
  const absl::Status status = reader.Parse(bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("wire version 9"), absl::string_view::npos) << status;
}

// Whatever bytes come, the reader stays within them (the sanitizer builds see it) and ends.
TEST(Message, SurvivesRandomDamage) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    MessageBuilder builder(4096);
    const size_t records = random() % 5;
    for (size_t i = 0; i < records; ++i) {
      builder.Append(static_cast<wire::RecordType>(random() % 16), Pattern(random() % 64), Pattern(random() % 64));
    }
    builder.Finish(1, 1, 0);
    auto bytes = Copy(builder.bytes());
    for (size_t i = random() % 4; i > 0; --i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    bytes.erase(bytes.end() - random() % (bytes.size() + 1), bytes.end());
    bytes.shrink_to_fit();
    MessageReader reader;
    if (!reader.Parse(bytes).ok()) {
      EXPECT_FALSE(reader.Next());
      continue;
    }
    size_t total = sizeof(wire::MessageHeader);
    while (auto record = reader.Next()) total += sizeof(wire::RecordHeader) + record->body.size();
    EXPECT_EQ(total, bytes.size());
  }
}

// Shared memory is its sender's to write while it is read.
TEST(Message, ARecordThatChangesBehindItsCheckIsNotFollowed) {
  for (const uint32_t size : {0u, 4u, 0x10000u, 0xfffffff8u}) {
    MessageBuilder builder(1024);
    const uint64_t value = 1;
    ASSERT_TRUE(builder.Append(wire::RecordType::kPing, BytesOf(value), {}));
    builder.Finish(1, 1, 0);
    std::vector<std::byte> bytes(builder.bytes().begin(), builder.bytes().end());
    MessageReader reader;
    ASSERT_TRUE(reader.Parse(bytes).ok());
    const wire::RecordHeader later{wire::RecordType::kPing, 0, size};
    std::memcpy(bytes.data() + sizeof(wire::MessageHeader), &later, sizeof later);
    const std::optional<Record> record = reader.Next();
    EXPECT_FALSE(record.has_value()) << size;
    EXPECT_FALSE(reader.Next().has_value());
  }
}

}  // namespace
}  // namespace byteps
