#include "core/wire/push_head.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/wire/message.h"

namespace byteps {
namespace {

using Bytes = std::vector<std::byte>;

wire::DataHeader Header() {
  wire::DataHeader header{};
  header.key = 5;
  header.elements = 3;
  return header;
}

Bytes Body(const PushHead& head, size_t payload) {
  Bytes body(head.bytes().begin(), head.bytes().end());
  body.resize(body.size() + payload, std::byte{7});
  return body;
}

std::vector<int64_t> Extents(const Push& push) {
  std::vector<int64_t> extents(push.shape.size() / sizeof(int64_t));
  if (!extents.empty()) std::memcpy(extents.data(), push.shape.data(), push.shape.size());
  return extents;
}

TEST(PushHead, ComesBack) {
  for (size_t dimensions : {0, 1, 2, 63, 64}) {
    std::vector<int64_t> shape(dimensions);
    for (size_t i = 0; i < dimensions; ++i) shape[i] = static_cast<int64_t>(i * 1'000'000'007);
    const PushHead head(Header(), shape, 4096);
    const Bytes body = Body(head, 24);
    Push push;
    ASSERT_TRUE(ReadPush(body, &push));
    EXPECT_EQ(push.header.key, 5u);
    EXPECT_EQ(push.header.shape, dimensions + 1);
    EXPECT_EQ(Extents(push), shape);
    ASSERT_EQ(push.payload.size(), 24u);
    EXPECT_EQ(push.payload[0], std::byte{7});
  }
}

TEST(PushHead, LeavesOutWhatDoesNotFit) {
  const std::vector<int64_t> shape = {2, 3};
  for (size_t room : {size_t{0}, sizeof(wire::DataHeader), sizeof(wire::DataHeader) + 15}) {
    const PushHead head(Header(), shape, room);
    EXPECT_EQ(head.bytes().size(), sizeof(wire::DataHeader));
    Push push;
    ASSERT_TRUE(ReadPush(head.bytes(), &push));
    EXPECT_EQ(push.header.shape, 0u);
    EXPECT_TRUE(push.shape.empty());
  }
  EXPECT_EQ(PushHead(Header(), shape, sizeof(wire::DataHeader) + 16).bytes().size(), sizeof(wire::DataHeader) + 16);
  const std::vector<int64_t> many(65, 1);
  EXPECT_EQ(PushHead(Header(), many, 4096).bytes().size(), sizeof(wire::DataHeader));
}

TEST(PushHead, WhatIsCutOffIsRefused) {
  const std::vector<int64_t> shape = {2, 3};
  const PushHead head(Header(), shape, 4096);
  Push push;
  for (size_t size = 0; size < head.bytes().size(); ++size) EXPECT_FALSE(ReadPush(head.bytes().first(size), &push));
  EXPECT_TRUE(ReadPush(head.bytes(), &push));
  for (uint32_t lie : {4u, 65u, 66u, 1u << 31, UINT32_MAX}) {
    wire::DataHeader header = Header();
    header.shape = lie;
    EXPECT_FALSE(ReadPush(BytesOf(header), &push)) << lie;
  }
}

TEST(PushHead, DescribesShapes) {
  EXPECT_EQ(DescribeShape({}), "scalar");
  EXPECT_EQ(DescribeShape(std::vector<int64_t>{7}), "7");
  EXPECT_EQ(DescribeShape(std::vector<int64_t>{2, 0, 4}), "2x0x4");
}

}  // namespace
}  // namespace byteps
