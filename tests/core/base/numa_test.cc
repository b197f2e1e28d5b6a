#include "core/base/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace byteps {
namespace {

TEST(NumaTest, TheNodeOfAPciDevice) {
  const std::string root = std::string(std::getenv("TEST_TMPDIR")) + "/numa";
  const std::string device = root + "/sys/bus/pci/devices/0000:1b:00.0";
  std::filesystem::create_directories(device);
  std::ofstream(device + "/numa_node") << "3\n";
  EXPECT_EQ(NumaNodeOfPci("0000:1b:00.0", root), 3);
  EXPECT_EQ(NumaNodeOfPci("0000:1B:00.0", root), 3);
  EXPECT_EQ(NumaNodeOfPci("0000:1c:00.0", root), -1);
  EXPECT_EQ(NumaNodeOfPci("", root), -1);
  std::filesystem::remove_all(root);
}

TEST(NumaTest, PagesOfANode) {
  constexpr size_t kSize = size_t{4} << 20;
  void* const base = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(base, MAP_FAILED);
  std::memset(base, 7, kSize / 2);  // half of it is there
  EXPECT_TRUE(PreferNumaNode(base, kSize, -1));
  EXPECT_FALSE(PreferNumaNode(base, kSize, 5000));
  if (!PreferNumaNode(base, kSize, 0)) {
    const int error = errno;
    ::munmap(base, kSize);
    ASSERT_TRUE(error == ENOSYS || error == EPERM) << std::strerror(error);
    GTEST_SKIP() << "this kernel, or a sandbox, does not place memory: " << std::strerror(error);
  }
  std::memset(base, 8, kSize);
  int policy = -1;
  unsigned long nodes[16] = {};  // NOLINT(google-runtime-int): the kernel's
  ASSERT_EQ(::syscall(SYS_get_mempolicy, &policy, nodes, 1024, base, MPOL_F_ADDR), 0) << std::strerror(errno);
  EXPECT_EQ(policy, MPOL_PREFERRED);
  EXPECT_EQ(nodes[0], 1UL);
  ::munmap(base, kSize);
}

}  // namespace
}  // namespace byteps
