// background_unmap_tests.h - the tests of a background_unmap.h. Core and the transport plugins have one each, since
// neither may include the other's.
//
// A room gives: Fd, its UniqueFd; kSize, the bytes of a mapping that goes on a thread; Unmap(), its
// UnmapInBackground(); Busy(), whether that thread is there.
#ifndef BYTEPS_TESTS_SUPPORT_BACKGROUND_UNMAP_TESTS_H_
#define BYTEPS_TESTS_SUPPORT_BACKGROUND_UNMAP_TESTS_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/eventually.h"

namespace byteps::testing {

// A mapping of its own, and the file behind it.
struct Mapping {
  explicit Mapping(size_t size) : fd(::memfd_create("byteps-test", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(size)), 0);
    void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    base = static_cast<std::byte*>(mapped);
  }
  int fd;
  std::byte* base;
};

template <typename Room>
class BackgroundUnmapTest : public ::testing::Test {};
TYPED_TEST_SUITE_P(BackgroundUnmapTest);

TYPED_TEST_P(BackgroundUnmapTest, ReturnsBeforeMuchMemoryIsGone) {
  const Mapping mapping(TypeParam::kSize);
  struct Watch {
    std::promise<void> returned, gone;
    std::vector<size_t> pieces;
    std::byte* last = nullptr;
    size_t size = 0;
    bool waited = false;
  };
  const auto watch = std::make_shared<Watch>();
  TypeParam::Unmap(mapping.base, TypeParam::kSize, typename TypeParam::Fd(mapping.fd),
                   [watch, &mapping](void* at, size_t size) {
                     auto* const base = static_cast<std::byte*>(at);
                     if (watch->pieces.empty()) {
                       watch->waited = Eventually(watch->returned.get_future());
                     }
                     watch->pieces.push_back(size);
                     watch->size += size;
                     const int code = ::munmap(base, size);
                     if (base == mapping.base) watch->gone.set_value();
                     return code;
                   });
  watch->returned.set_value();
  ASSERT_TRUE(Eventually(watch->gone.get_future()));
  EXPECT_TRUE(watch->waited) << "the caller waited for the memory to go";
  EXPECT_EQ(watch->size, TypeParam::kSize);
  for (const size_t each : watch->pieces) EXPECT_LE(each, size_t{8} << 20);
}

TYPED_TEST_P(BackgroundUnmapTest, TheFileIsClosedWhenTheMemoryIsGone) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const typename TypeParam::Fd reader(ends[0]);
  const Mapping mapping(TypeParam::kSize);
  ::close(mapping.fd);
  // The end of a pipe can be polled for once its other side is closed.
  const auto closed = [fd = reader.get()](int timeout_ms) {
    pollfd pipe = {fd, POLLIN, 0};
    return ::poll(&pipe, 1, timeout_ms) == 1;
  };
  const auto early = std::make_shared<std::atomic<bool>>(false);
  TypeParam::Unmap(mapping.base, TypeParam::kSize, typename TypeParam::Fd(ends[1]),
                   [closed, early](void* at, size_t size) {
                     if (closed(0)) early->store(true);
                     return ::munmap(at, size);
                   });
  EXPECT_TRUE(closed(50'000));
  EXPECT_FALSE(early->load()) << "the file was closed before its memory was gone";
}

TYPED_TEST_P(BackgroundUnmapTest, LittleMemoryIsGoneAtOnce) {
  void* base = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(base, MAP_FAILED);
  TypeParam::Unmap(base, 8192, typename TypeParam::Fd());
  EXPECT_EQ(::msync(base, 8192, MS_ASYNC), -1);  // ENOMEM: not mapped
}

// The thread is held at its first job: those that follow wait for it, and their callers do not.
TYPED_TEST_P(BackgroundUnmapTest, CallersDoNotWaitForEachOther) {
  constexpr int kCount = 6;
  struct Watch {
    std::promise<void> open;
    std::shared_future<void> opened = open.get_future().share();
    std::atomic<int> gone{0};
    std::atomic<bool> by_caller{false};
  };
  const auto watch = std::make_shared<Watch>();
  for (int i = 0; i < kCount; ++i) {
    const Mapping mapping(TypeParam::kSize);
    TypeParam::Unmap(mapping.base, TypeParam::kSize, typename TypeParam::Fd(mapping.fd),
                     [watch, first = mapping.base, caller = std::this_thread::get_id()](void* at, size_t size) {
                       if (std::this_thread::get_id() == caller) {
                         watch->by_caller = true;  // it would wait for itself
                       } else {
                         watch->opened.wait();
                       }
                       const int code = ::munmap(at, size);
                       if (at == first) ++watch->gone;
                       return code;
                     });
  }
  EXPECT_EQ(watch->gone.load(), 0);
  EXPECT_FALSE(watch->by_caller.load());
  watch->open.set_value();
  EXPECT_TRUE(Eventually([] { return !TypeParam::Busy(); }));
  EXPECT_EQ(watch->gone.load(), kCount);
}

// The thread of the parent is not there in a child, which gives back what it maps itself all the same.
TYPED_TEST_P(BackgroundUnmapTest, AChildHasAThreadOfItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a child of a process with threads";
#endif
  const auto open = std::make_shared<std::promise<void>>();
  const Mapping mapping(TypeParam::kSize);
  TypeParam::Unmap(mapping.base, TypeParam::kSize, typename TypeParam::Fd(mapping.fd),
                   [opened = open->get_future().share()](void* at, size_t size) {
                     opened.wait();
                     return ::munmap(at, size);
                   });
  const pid_t child = ::fork();
  if (child == 0) {
    const Mapping own(TypeParam::kSize);
    const auto gone = std::make_shared<std::promise<void>>();
    TypeParam::Unmap(own.base, TypeParam::kSize, typename TypeParam::Fd(own.fd),
                     [gone, first = own.base](void* at, size_t size) {
                       const int code = ::munmap(at, size);
                       if (at == first) gone->set_value();
                       return code;
                     });
    ::_exit(Eventually(gone->get_future()) ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  open->set_value();
  EXPECT_TRUE(Eventually([] { return !TypeParam::Busy(); }));
}

REGISTER_TYPED_TEST_SUITE_P(BackgroundUnmapTest, ReturnsBeforeMuchMemoryIsGone, TheFileIsClosedWhenTheMemoryIsGone,
                            LittleMemoryIsGoneAtOnce, CallersDoNotWaitForEachOther, AChildHasAThreadOfItsOwn);

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_SUPPORT_BACKGROUND_UNMAP_TESTS_H_
