// Pinned memory and fork(): no page moves from under the GPU.
#include "core/worker/device/pin_buffer.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "abi/byteps.h"
#include "abi/device.h"
#include "core/worker/device/gpu_buffer.h"
#include "core/worker/device/gpus.h"
#include "core/worker/device/pinned_area.h"
#include "core/worker/memory/buffer.h"
#include "device_plugins/fake/control.h"
#include "gtest/gtest.h"
#include "tests/core/worker/device/fake_gpus.h"

namespace byteps {
namespace {

// What a forked child finds at the first and the last page of these bytes.
enum class Found { kNothing, kTheSamePages, kPagesOfItsOwn };

Found InAChild(std::byte* data, size_t size) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    unsigned char there = 0;
    for (std::byte* at : {data, data + (size - 1) / page * page}) {
      if (::mincore(at, page, &there) != 0) ::_exit(errno == ENOMEM ? 1 : 2);
    }
    data[0] = data[size - 1] = std::byte{7};
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2) << status;
  if (WEXITSTATUS(status) == 1) return Found::kNothing;
  return data[0] == std::byte{7} && data[size - 1] == std::byte{7} ? Found::kTheSamePages : Found::kPagesOfItsOwn;
}

constexpr size_t kSizes[] = {1, 5000, Buffer::kLeastShared, Buffer::kHugePage + 1};

TEST(PinBufferTest, ChildrenDoNotHavePrivatePages) {
  const std::shared_ptr<Gpus> gpus = FakeGpus("devices=1");
  for (const size_t size : kSizes) {
    SCOPED_TRACE(size);
    const auto area = PinnedArea::Make(gpus->Get(0)->gpu, std::make_shared<BufferTable>(), size);
    ASSERT_TRUE(area.ok()) << area.status();
    EXPECT_EQ(InAChild((*area)->data(), size), Found::kNothing);
    BufferTable table;
    const absl::StatusOr<GpuBuffer> made = MakeGpuBuffer(gpus.get(), &table, {BPS_CUDA_HOST, 0}, size);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(InAChild(made->buffer->data(), size), Found::kNothing);
    EXPECT_TRUE(table.Free(made->buffer.get()).ok());
    made->release();
  }
}

TEST(PinBufferTest, ChildrenHaveTheSamePagesOfAMemoryFile) {
  const std::shared_ptr<Gpus> gpus = FakeGpus("devices=1");
  const auto buffers = std::make_shared<BufferTable>();
  buffers->Share([] {});
  for (const size_t size : kSizes) {
    if (size < Buffer::kLeastShared) continue;
    SCOPED_TRACE(size);
    const auto area = PinnedArea::Make(gpus->Get(0)->gpu, buffers, size);
    ASSERT_TRUE(area.ok()) << area.status();
    ASSERT_GE((*area)->buffer()->fd(), 0);
    EXPECT_EQ(InAChild((*area)->data(), size), Found::kTheSamePages);
  }
  buffers->Unshare();
}

// What is not pinned stays as it is: a child has a copy.
TEST(PinBufferTest, OrdinaryBuffersAreCopiedToChildren) {
  BufferTable table;
  const absl::StatusOr<std::shared_ptr<Buffer>> buffer = table.Allocate(5000);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(InAChild((*buffer)->data(), 5000), Found::kPagesOfItsOwn);
}

}  // namespace
}  // namespace byteps
