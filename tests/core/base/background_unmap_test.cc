#include "core/base/background_unmap.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace byteps {
namespace {

constexpr size_t kSize = kBackgroundUnmap + 4096;

// A mapping of its own, and the file behind it.
struct Mapping {
  Mapping() : fd(::memfd_create("byteps-test", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd, kSize), 0);
    void* mapped = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    base = static_cast<std::byte*>(mapped);
  }
  int fd;
  std::byte* base;
};

TEST(BackgroundUnmapTest, ReturnsBeforeMuchMemoryIsGone) {
  const Mapping mapping;
  struct Watch {
    std::promise<void> returned, gone;
    std::vector<size_t> pieces;
    std::byte* last = nullptr;
    size_t size = 0;
    bool waited = false;
  };
  const auto watch = std::make_shared<Watch>();
  UnmapInBackground(mapping.base, kSize, UniqueFd(mapping.fd), [watch, &mapping](void* at, size_t size) {
    auto* const base = static_cast<std::byte*>(at);
    if (watch->pieces.empty()) {
      watch->waited = watch->returned.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    }
    watch->pieces.push_back(size);
    watch->size += size;
    const int code = ::munmap(base, size);
    if (base == mapping.base) watch->gone.set_value();
    return code;
  });
  watch->returned.set_value();
  ASSERT_EQ(watch->gone.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_TRUE(watch->waited) << "the caller waited for the memory to go";
  EXPECT_EQ(watch->size, kSize);
  for (const size_t each : watch->pieces) EXPECT_LE(each, size_t{8} << 20);
}

TEST(BackgroundUnmapTest, TheFileIsClosedWhenTheMemoryIsGone) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const Mapping mapping;
  ::close(mapping.fd);
  // The end of a pipe can be polled for once its other side is closed.
  const auto closed = [fd = reader.get()](int timeout_ms) {
    pollfd pipe = {fd, POLLIN, 0};
    return ::poll(&pipe, 1, timeout_ms) == 1;
  };
  const auto early = std::make_shared<std::atomic<bool>>(false);
  UnmapInBackground(mapping.base, kSize, UniqueFd(ends[1]), [closed, early](void* at, size_t size) {
    if (closed(0)) early->store(true);
    return ::munmap(at, size);
  });
  EXPECT_TRUE(closed(60'000));
  EXPECT_FALSE(early->load()) << "the file was closed before its memory was gone";
}

TEST(BackgroundUnmapTest, LittleMemoryIsGoneAtOnce) {
  void* base = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(base, MAP_FAILED);
  UnmapInBackground(base, 8192, UniqueFd());
  EXPECT_EQ(::msync(base, 8192, MS_ASYNC), -1);  // ENOMEM: not mapped
}

}  // namespace
}  // namespace byteps
