#include "core/worker/memory/buffer.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "gtest/gtest.h"
#include "tests/core/c_api.h"
#include "tests/support/eventually.h"

namespace byteps {
namespace {

constexpr size_t kHuge = Buffer::kHugePage;

TEST(BufferTableTest, KnowsWhoUsesWhat) {
  BufferTable table;
  const std::shared_ptr<Buffer> first = table.Allocate(10000).value();
  const std::shared_ptr<Buffer> second = table.Allocate(kHuge + 7).value();
  int elsewhere = 0;
  EXPECT_FALSE(table.Use(&elsewhere, sizeof elsewhere));
  EXPECT_FALSE(table.Use(first->data(), 0));
  EXPECT_FALSE(table.Use(nullptr, 0));
  EXPECT_FALSE(table.Use(second->data() + kHuge + 7, 1)) << "behind the last byte";
  for (const size_t offset : {size_t{0}, size_t{5000}, size_t{9999}}) {
    BufferUse use = table.Use(first->data() + offset, 1);
    EXPECT_TRUE(use) << offset;
    EXPECT_EQ(table.Free(first.get()).code(), absl::StatusCode::kFailedPrecondition) << offset;
    // Moved, it is one use still.
    BufferUse moved = std::move(use);
    EXPECT_FALSE(table.Free(first.get()).ok()) << offset;
  }
  BufferUse one = table.Use(second->data(), 8);
  {
    BufferUse another = table.Use(second->data() + kHuge, 7);
    EXPECT_TRUE(another);
  }
  EXPECT_FALSE(table.Free(second.get()).ok()) << "one of two uses is left";
  EXPECT_TRUE(table.Free(first.get()).ok());
  EXPECT_FALSE(table.Use(first->data(), 1)) << "freed";
  one = {};
  EXPECT_TRUE(table.Free(second.get()).ok());
}

TEST(BufferTableTest, WithoutABytePassesUnnoticed) {
  BufferTable table;
  // Mappings often lie side by side: an empty one begins where another ends.
  std::vector<std::shared_ptr<Buffer>> full;
  std::vector<std::shared_ptr<Buffer>> empty;
  for (int i = 0; i < 64; ++i) {
    full.push_back(table.Allocate(4096).value());
    empty.push_back(table.Allocate(0).value());
  }
  for (const auto& buffer : empty) EXPECT_TRUE(table.Free(buffer.get()).ok());
  for (const auto& buffer : full) EXPECT_TRUE(table.Use(buffer->data(), 4096));
}

// The kernel would end the process by SIGXFSZ.
TEST(BufferTableTest, WhereFilesMustBeSmallABufferIsMemoryOfThisProcess) {
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small { 4096, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::StatusOr<std::shared_ptr<Buffer>> buffer = Buffer::Map(kHuge, /*shared=*/true);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_LT((*buffer)->fd(), 0);
  std::memset((*buffer)->data(), 1, kHuge);
}

// Each costs a descriptor, and the program needs some, too.
TEST(BufferTableTest, HalfOfTheOpenFilesAreNoBuffers) {
  constexpr rlim_t kFiles = 64;
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const struct rlimit few { kFiles, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<std::shared_ptr<Buffer>> buffers;
  std::vector<int> own;
  for (rlim_t i = 0; i < 2 * kFiles; ++i) {
    buffers.push_back(Buffer::Map(Buffer::kLeastShared, /*shared=*/true).value());
    std::memset(buffers.back()->data(), 1, Buffer::kLeastShared);
  }
  for (int file = 0; (file = ::dup(buffers.front()->fd())) >= 0;) own.push_back(file);
  for (const int file : own) ::close(file);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_GE(buffers.front()->fd(), 0);
  EXPECT_LT(buffers.back()->fd(), 0);
  EXPECT_GE(own.size(), kFiles / 2);
}

// What other processes could map, and cannot, is told once, whoever allocates it first.
TEST(BufferTableTest, TellsOfTheFirstBufferThatOthersCannotMap) {
  int told = 0;
  BufferTable table, unshared;
  table.Share([] {},
              [&] {
                ++told;
                // As a program does whose log callback makes a buffer.
                ASSERT_TRUE(table.Allocate(Buffer::kLeastShared).ok());
              });
  ASSERT_GE(table.Allocate(Buffer::kLeastShared).value()->fd(), 0);
  EXPECT_EQ(told, 0) << "others can map it";
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Whatever files are open, a new one is in the upper half.
  const struct rlimit none { 2, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool allocated = unshared.Allocate(Buffer::kLeastShared).ok() && table.Allocate(100).ok() &&
                         table.Allocate(Buffer::kLeastShared, /*own=*/true).ok();
  const int told_of_others = told;
  const bool refused =
      table.Allocate(Buffer::kLeastShared).value()->fd() < 0 && table.Allocate(Buffer::kHugePage).value()->fd() < 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(allocated);
  EXPECT_TRUE(refused);
  EXPECT_EQ(told_of_others, 0) << "small, or of this process alone anyway";
  EXPECT_EQ(told, 1);
}

TEST(BufferTableTest, SaysWhenThereIsNoMemory) {
  BufferTable table;
  for (const size_t size : {SIZE_MAX, SIZE_MAX - kHuge, SIZE_MAX / 2}) {
    const absl::Status status = table.Allocate(size).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_NE(std::string(status.message()).find(std::to_string(size)), std::string::npos) << status;
  }
}

// ---- Through the C ABI, a worker alone ----

class BufferTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE",
          "BYTEPS_FORCE_DISTRIBUTED", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"}) {
      ::unsetenv(name);
    }
    const bps_open_args args = BPS_OPEN_ARGS_INIT;
    bps_session* session = nullptr;
    ASSERT_SAID_OK(bps_open(&args, &session));
    session_.reset(session);
  }

  bps_buffer* Allocate(size_t size) {
    bps_buffer_args args = BPS_BUFFER_ARGS_INIT;
    args.size = size;
    bps_buffer* buffer = nullptr;
    EXPECT_SAID_OK(bps_buffer_alloc(session_.get(), &args, &buffer));
    return buffer;
  }

  SessionOwner session_;
};

TEST_F(BufferTest, IsZeroAlignedAndWritable) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, kHuge - 1, kHuge, 3 * kHuge + 5}) {
    bps_buffer* buffer = Allocate(size);
    ASSERT_NE(buffer, nullptr);
    auto* data = static_cast<unsigned char*>(bps_buffer_data(buffer));
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (size >= kHuge ? kHuge : 4096), 0u) << size;
    EXPECT_TRUE(std::all_of(data, data + size, [](unsigned char byte) { return byte == 0; })) << size;
    std::memset(data, 0x5a, size);
    EXPECT_SAID_OK(bps_buffer_free(buffer));
  }
}

TEST_F(BufferTest, OutlivesItsSession) {
  bps_buffer* buffer = Allocate(kHuge);
  auto* data = static_cast<float*>(bps_buffer_data(buffer));
  data[7] = 1.5f;
  session_.reset();
  EXPECT_EQ(data[7], 1.5f);
  EXPECT_SAID_OK(bps_buffer_free(buffer));
}

TEST_F(BufferTest, ArgumentsAreChecked) {
  bps_buffer_args args = BPS_BUFFER_ARGS_INIT;
  bps_buffer* buffer = nullptr;
  EXPECT_EQ(Said(bps_buffer_alloc(nullptr, &args, &buffer)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_buffer_alloc(session_.get(), nullptr, &buffer)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_buffer_alloc(session_.get(), &args, nullptr)).code, BPS_INVALID_ARGUMENT);
  args.device = 4;  // DLPack's OpenCL
  EXPECT_EQ(Said(bps_buffer_alloc(session_.get(), &args, &buffer)).code, BPS_UNIMPLEMENTED);
  args.device = BPS_CPU;
  args.size = SIZE_MAX;
  EXPECT_EQ(Said(bps_buffer_alloc(session_.get(), &args, &buffer)).code, BPS_RESOURCE_EXHAUSTED);
  EXPECT_EQ(buffer, nullptr);
  EXPECT_EQ(bps_buffer_data(nullptr), nullptr);
  EXPECT_SAID_OK(bps_buffer_free(nullptr));
  ASSERT_SAID_OK(bps_shutdown(session_.get(), 0));
  args.size = 1;
  EXPECT_EQ(Said(bps_buffer_alloc(session_.get(), &args, &buffer)).code, BPS_FAILED_PRECONDITION);
}

// While the library's thread is held up in a callback, an operation behind it is in flight.
TEST_F(BufferTest, CannotBeFreedUnderAnOperation) {
  constexpr size_t kElements = 1 << 20;
  bps_tensor* one = DeclareTensor(session_.get(), "one", BPS_FLOAT32, {kElements});
  bps_tensor* two = DeclareTensor(session_.get(), "two", BPS_FLOAT32, {kElements});
  bps_buffer* input = Allocate(kElements * sizeof(float));
  bps_buffer* output = Allocate(2 * kElements * sizeof(float));
  auto* from = static_cast<float*>(bps_buffer_data(input));
  auto* to = static_cast<float*>(bps_buffer_data(output)) + kElements;
  std::fill(from, from + kElements, 3.0f);

  struct Held {
    std::promise<void> entered;
    std::promise<void> leave;
  } held;
  std::vector<float> other(kElements);
  bps_push_pull_args first = PushPullArgs(one, other.data(), other.data());
  first.user = &held;
  first.done = [](void* user, bps_status* error) {
    bps_status_free(error);
    static_cast<Held*>(user)->entered.set_value();
    EXPECT_TRUE(Eventually(static_cast<Held*>(user)->leave.get_future()));
  };
  ASSERT_SAID_OK(bps_push_pull(session_.get(), &first, nullptr));
  ASSERT_TRUE(Eventually(held.entered.get_future()));

  const bps_push_pull_args second = PushPullArgs(two, from, to);
  bps_request* request = nullptr;
  ASSERT_SAID_OK(bps_push_pull(session_.get(), &second, &request));
  const RequestOwner owner(request);
  for (bps_buffer* buffer : {input, output}) {
    const Said said = bps_buffer_free(buffer);
    EXPECT_EQ(said.code, BPS_FAILED_PRECONDITION) << said;
    EXPECT_TRUE(said.Contains("has not ended")) << said;
  }
  held.leave.set_value();
  ASSERT_SAID_OK(bps_wait(request, 0));
  EXPECT_EQ(to[0], 3.0f);
  EXPECT_EQ(to[kElements - 1], 3.0f);
  EXPECT_SAID_OK(bps_buffer_free(input));
  EXPECT_SAID_OK(bps_buffer_free(output));
}

TEST_F(BufferTest, MayBeFreedInTheCallbackAndAfterARefusal) {
  constexpr size_t kElements = 1 << 18;
  bps_tensor* tensor = DeclareTensor(session_.get(), "w", BPS_FLOAT32, {kElements});
  bps_buffer* buffer = Allocate(kElements * sizeof(float));
  // Refused: no use remains.
  bps_push_pull_args args = PushPullArgs(tensor, bps_buffer_data(buffer), bps_buffer_data(buffer), 12345);
  EXPECT_EQ(Said(bps_push_pull(session_.get(), &args, nullptr)).code, BPS_INVALID_ARGUMENT);

  struct Freed {
    bps_buffer* buffer;
    int32_t code;
  } freed{buffer, BPS_UNKNOWN};
  args = PushPullArgs(tensor, bps_buffer_data(buffer), bps_buffer_data(buffer));
  args.user = &freed;
  args.done = [](void* user, bps_status* error) {
    bps_status_free(error);
    auto* self = static_cast<Freed*>(user);
    self->code = Said(bps_buffer_free(self->buffer)).code;
  };
  bps_request* request = nullptr;
  ASSERT_SAID_OK(bps_push_pull(session_.get(), &args, &request));
  const RequestOwner owner(request);
  ASSERT_SAID_OK(bps_wait(request, 0));  // the callback has returned
  EXPECT_EQ(freed.code, BPS_OK);
}

TEST_F(BufferTest, AForkedChildIsToldSo) {
  bps_buffer* buffer = Allocate(100);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bps_buffer_args args = BPS_BUFFER_ARGS_INIT;
    bps_buffer* made = nullptr;
    const bool told = bps_status_code(bps_buffer_alloc(session_.get(), &args, &made)) == BPS_FAILED_PRECONDITION &&
                      bps_status_code(bps_buffer_free(buffer)) == BPS_FAILED_PRECONDITION;
    ::_exit(told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_SAID_OK(bps_buffer_free(buffer));
}

}  // namespace
}  // namespace byteps
