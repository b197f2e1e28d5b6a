#include "core/base/background_unmap.h"

#include <cstddef>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/background_unmap_tests.h"

namespace byteps {
namespace {

struct Room {
  using Fd = UniqueFd;
  static constexpr size_t kSize = kBackgroundUnmap + 4096;
  template <typename... Args>
  static void Unmap(Args&&... args) {
    UnmapInBackground(std::forward<Args>(args)...);
  }
  static bool Busy() { return unmap_jobs.load() != kNoUnmapThread; }
};

}  // namespace
}  // namespace byteps

namespace byteps::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Core, BackgroundUnmapTest, byteps::Room);

}  // namespace byteps::testing
