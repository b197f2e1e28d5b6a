#include "core/worker/api/read_args.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace byteps {
namespace {

// Memory of a caller whose struct has `size` bytes: a bps_declare_args with zeros behind it.
std::vector<std::byte> Caller(size_t memory, size_t struct_size) {
  std::vector<std::byte> bytes(memory);
  std::memcpy(bytes.data(), &struct_size, sizeof(struct_size));
  return bytes;
}

absl::StatusOr<bps_declare_args> Read(const std::vector<std::byte>& bytes) {
  return ReadArgs(reinterpret_cast<const bps_declare_args*>(bytes.data()));
}

constexpr size_t kSize = sizeof(bps_declare_args);
constexpr size_t kFirst = kStructRule<bps_declare_args>.first_size;

struct Case {
  const char* what;
  size_t struct_size;
  ptrdiff_t dirty;    // this byte is not zero; -1: none
  const char* error;  // nullptr: accepted
};

class ReadArgsTest : public testing::TestWithParam<Case> {};

TEST_P(ReadArgsTest, SizeAndUnknownBytes) {
  const Case& test = GetParam();
  std::vector<std::byte> bytes = Caller(kMaxStructSize + 64, test.struct_size);
  if (test.dirty >= 0) bytes[static_cast<size_t>(test.dirty)] = std::byte{1};
  absl::StatusOr<bps_declare_args> args = Read(bytes);
  if (test.error == nullptr) {
    ASSERT_TRUE(args.ok()) << args.status();
    EXPECT_EQ(args->struct_size, kSize);
    return;
  }
  EXPECT_EQ(args.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(args.status().message().find("bps_declare_args"), absl::string_view::npos) << args.status();
  EXPECT_NE(args.status().message().find(test.error), absl::string_view::npos) << args.status();
}

INSTANTIATE_TEST_SUITE_P(
    Table, ReadArgsTest,
    testing::Values(Case{"Zero", 0, -1, "initialise it with BPS_DECLARE_ARGS_INIT"},
                    Case{"SmallerThanFirst", kFirst - 1, -1, "less than the 48 bytes of version 1.0"},
                    Case{"First", kFirst, -1, nullptr}, Case{"Ours", kSize, -1, nullptr},
                    Case{"OursIgnoresWhatFollows", kSize, kSize, nullptr},
                    Case{"NewerWithZeros", kSize + 16, -1, nullptr},
                    Case{"NewerWithFirstUnknownByteSet", kSize + 16, kSize, "a field at byte 48 is set"},
                    Case{"NewerWithLastByteSet", kSize + 16, kSize + 15, "a field at byte 63 is set"},
                    Case{"NewerIgnoresWhatFollows", kSize + 16, kSize + 16, nullptr},
                    Case{"Largest", kMaxStructSize, -1, nullptr},
                    Case{"LargestWithLastByteSet", kMaxStructSize, kMaxStructSize - 1, "is set"},
                    Case{"TooLarge", kMaxStructSize + 1, -1, "more than the allowed 4096"},
                    Case{"Absurd", ~size_t{0}, -1, "more than the allowed 4096"}),
    [](const testing::TestParamInfo<Case>& param_info) { return param_info.param.what; });

TEST(ReadArgsTest, NullIsAnError) {
  absl::StatusOr<bps_open_args> args = ReadArgs<bps_open_args>(nullptr);
  EXPECT_EQ(args.status(), absl::InvalidArgumentError("bps_open_args is NULL"));
}

TEST(ReadArgsTest, CopiesTheFields) {
  bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  declare.name = "w";
  declare.ndim = 3;
  declare.dtype = BPS_FLOAT32;
  declare.staleness = 9;
  absl::StatusOr<bps_declare_args> args = ReadArgs(&declare);
  ASSERT_TRUE(args.ok()) << args.status();
  EXPECT_EQ(args->name, declare.name);
  EXPECT_EQ(args->ndim, 3);
  EXPECT_EQ(args->dtype, BPS_FLOAT32);
  EXPECT_EQ(args->staleness, 9);
}

// What a library of a later minor does for a caller of this one: its new field has its default.
TEST(ReadArgsTest, AnOlderCallerGetsDefaults) {
  struct Later {
    bps_declare_args now;
    int64_t added;
  } later = {};
  const StructRule rule = {"bps_declare_args", "BPS_DECLARE_ARGS_INIT", kFirst, sizeof(Later), true};
  std::vector<std::byte> bytes = Caller(sizeof(Later), kSize);
  std::memset(bytes.data() + kSize, 0xff, sizeof(int64_t));
  ASSERT_TRUE(ReadStruct(rule, bytes.data(), &later).ok());
  EXPECT_EQ(later.now.struct_size, sizeof(Later));
  EXPECT_EQ(later.added, 0);
}

TEST(ReadArgsTest, Extensions) {
  bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  bps_ext second = {sizeof(bps_ext), 78, BPS_EXT_IGNORABLE, nullptr};
  bps_ext first = {sizeof(bps_ext), 77, BPS_EXT_IGNORABLE, &second};
  declare.ext = &first;
  EXPECT_TRUE(ReadArgs(&declare).ok());

  second.flags = 0;
  absl::Status status = ReadArgs(&declare).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("extension 1 has type 78"), absl::string_view::npos) << status;

  second.flags = BPS_EXT_IGNORABLE | 2u;
  EXPECT_EQ(ReadArgs(&declare).status().code(), absl::StatusCode::kInvalidArgument);

  second.flags = BPS_EXT_IGNORABLE;
  second.struct_size = 8;
  EXPECT_EQ(ReadArgs(&declare).status().code(), absl::StatusCode::kInvalidArgument);

  second.struct_size = sizeof(bps_ext);
  second.next = &first;
  status = ReadArgs(&declare).status();
  EXPECT_NE(status.message().find("ring"), absl::string_view::npos) << status;
}

TEST(ReadArgsTest, StreamsAreAnExtensionOfOperations) {
  bps_streams streams = BPS_STREAMS_INIT;
  int input = 0;
  streams.input = &input;
  bps_push_pull_args push_pull = BPS_PUSH_PULL_ARGS_INIT;
  push_pull.ext = &streams.ext;
  EXPECT_TRUE(ReadArgs(&push_pull).ok());
  EXPECT_EQ(ReadStreams("x", push_pull.ext)->input, &input);
  EXPECT_EQ(ReadStreams("x", nullptr)->input, nullptr);
  // Of an older caller, of a newer one.
  streams.ext.struct_size = sizeof(bps_ext);
  EXPECT_EQ(ReadStreams("x", push_pull.ext)->input, nullptr);
  struct Newer {
    bps_streams now = BPS_STREAMS_INIT;
    uint64_t added = 0;
  } newer;
  newer.now.ext.struct_size = sizeof newer;
  EXPECT_TRUE(ReadStreams("x", &newer.now.ext).ok());
  newer.added = 1;
  EXPECT_EQ(ReadStreams("x", &newer.now.ext).status().code(), absl::StatusCode::kInvalidArgument);

  bps_streams twice = BPS_STREAMS_INIT;
  streams.ext.next = &twice.ext;
  EXPECT_EQ(ReadArgs(&push_pull).status().code(), absl::StatusCode::kInvalidArgument);
  bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  declare.ext = &twice.ext;
  EXPECT_EQ(ReadArgs(&declare).status().code(), absl::StatusCode::kInvalidArgument);
  twice.reserved = 1;
  EXPECT_EQ(ReadStreams("x", &twice.ext).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReadArgsTest, ACastIsAnExtensionOfPushPull) {
  bps_streams streams = BPS_STREAMS_INIT;
  bps_cast cast = BPS_CAST_INIT;
  cast.dtype = BPS_FLOAT32;
  streams.ext.next = &cast.ext;
  bps_push_pull_args push_pull = BPS_PUSH_PULL_ARGS_INIT;
  push_pull.ext = &streams.ext;
  EXPECT_TRUE(ReadArgs(&push_pull).ok());
  EXPECT_EQ(*ReadCast("x", push_pull.ext), BPS_FLOAT32);
  EXPECT_EQ(*ReadCast("x", nullptr), 0u);
  EXPECT_EQ(ReadStreams("x", push_pull.ext)->input, nullptr);
  cast.reserved = 1;
  EXPECT_EQ(ReadCast("x", push_pull.ext).status().code(), absl::StatusCode::kInvalidArgument);

  bps_cast second = BPS_CAST_INIT;
  cast.ext.next = &second.ext;
  const absl::Status twice = ReadArgs(&push_pull).status();
  EXPECT_NE(twice.message().find("two extensions of type 2"), absl::string_view::npos) << twice;
  bps_broadcast_args broadcast = BPS_BROADCAST_ARGS_INIT;
  broadcast.ext = &second.ext;
  EXPECT_EQ(ReadArgs(&broadcast).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReadArgsTest, ARoundIsGivenUpByAnExtensionOfEveryOperation) {
  bps_give_up give_up = BPS_GIVE_UP_INIT;
  bps_push_pull_args push_pull = BPS_PUSH_PULL_ARGS_INIT;
  bps_broadcast_args broadcast = BPS_BROADCAST_ARGS_INIT;
  bps_collective_args collective = BPS_COLLECTIVE_ARGS_INIT;
  bps_sparse_args sparse = BPS_SPARSE_ARGS_INIT;
  push_pull.ext = broadcast.ext = collective.ext = sparse.ext = &give_up.ext;
  EXPECT_TRUE(ReadArgs(&push_pull).ok());
  EXPECT_TRUE(ReadArgs(&broadcast).ok());
  EXPECT_TRUE(ReadArgs(&collective).ok());
  EXPECT_TRUE(ReadArgs(&sparse).ok());
  bps_group_args group = BPS_GROUP_ARGS_INIT;
  group.ext = &give_up.ext;
  EXPECT_EQ(ReadArgs(&group).status().code(), absl::StatusCode::kInvalidArgument);

  absl::Status given_up;
  ASSERT_TRUE(ReadGiveUp("x", nullptr, &given_up).ok());
  EXPECT_TRUE(given_up.ok());
  ASSERT_TRUE(ReadGiveUp("x", &give_up.ext, &given_up).ok());
  EXPECT_EQ(given_up, absl::CancelledError("given up by its caller"));
  give_up.reason = "no memory";
  ASSERT_TRUE(ReadGiveUp("x", &give_up.ext, &given_up).ok());
  EXPECT_EQ(given_up, absl::CancelledError("no memory"));
  give_up.reason = "\xff";
  EXPECT_EQ(ReadGiveUp("x", &give_up.ext, &given_up).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReadArgsTest, ANumberIsAnExtensionOfEveryOperation) {
  bps_match number = BPS_MATCH_INIT;
  number.number = 7;
  bps_push_pull_args push_pull = BPS_PUSH_PULL_ARGS_INIT;
  bps_broadcast_args broadcast = BPS_BROADCAST_ARGS_INIT;
  bps_collective_args collective = BPS_COLLECTIVE_ARGS_INIT;
  bps_sparse_args sparse = BPS_SPARSE_ARGS_INIT;
  push_pull.ext = broadcast.ext = collective.ext = sparse.ext = &number.ext;
  EXPECT_TRUE(ReadArgs(&push_pull).ok());
  EXPECT_TRUE(ReadArgs(&broadcast).ok());
  EXPECT_TRUE(ReadArgs(&collective).ok());
  EXPECT_TRUE(ReadArgs(&sparse).ok());
  bps_group_args group = BPS_GROUP_ARGS_INIT;
  group.ext = &number.ext;
  EXPECT_EQ(ReadArgs(&group).status().code(), absl::StatusCode::kInvalidArgument);

  uint64_t read = 0;
  ASSERT_TRUE(ReadMatch("x", nullptr, &read).ok());
  EXPECT_EQ(read, 0);
  ASSERT_TRUE(ReadMatch("x", &number.ext, &read).ok());
  EXPECT_EQ(read, 7);
}

TEST(WriteOutTest, WritesAsFarAsTheCallerKnows) {
  bps_info info = BPS_INFO_INIT;
  info.rank = 3;
  info.generation = 7;

  bps_info same = BPS_INFO_INIT;
  ASSERT_TRUE(WriteOut(info, &same).ok());
  EXPECT_EQ(same.rank, 3);
  EXPECT_EQ(same.generation, 7u);

  struct Newer {
    bps_info now;
    uint64_t added;
  } newer = {};
  newer.now.struct_size = sizeof(Newer);
  newer.added = 5;
  ASSERT_TRUE(WriteOut(info, &newer.now).ok());
  EXPECT_EQ(newer.now.generation, 7u);
  EXPECT_EQ(newer.now.struct_size, sizeof(Newer));
  EXPECT_EQ(newer.added, 5u);

  bps_info uninitialised = {};
  EXPECT_EQ(WriteOut(info, &uninitialised).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WriteOut<bps_info>(info, nullptr).code(), absl::StatusCode::kInvalidArgument);
}

// An older caller's memory ends where its struct ends.
TEST(WriteOutTest, AnOlderCallerIsNotOverrun) {
  struct Later {
    bps_info now;
    uint64_t added;
  } later = {};
  later.added = ~0ull;
  const StructRule rule = {"bps_info", "BPS_INFO_INIT", 48, sizeof(Later), false};
  Later caller = {};
  caller.now.struct_size = sizeof(bps_info);
  caller.added = 5;
  ASSERT_TRUE(WriteStruct(rule, &later, &caller).ok());
  EXPECT_EQ(caller.added, 5u);
}

}  // namespace
}  // namespace byteps
