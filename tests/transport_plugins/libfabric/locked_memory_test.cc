#include "transport_plugins/libfabric/locked_memory.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace byteps::fabric {
namespace {

TEST(LockedMemory, ALimitThatIsHighEnoughIsNoComplaint) {
  EXPECT_EQ(LockedMemoryComplaint({.unlimited = true, .bytes = 0}), "");
  EXPECT_EQ(LockedMemoryComplaint({.unlimited = false, .bytes = kLeastLockedMemory}), "");
}

TEST(LockedMemory, AComplaintSaysWhatIsAndWhatToDo) {
  const std::string text = LockedMemoryComplaint({.unlimited = false, .bytes = 64 << 10});
  for (const char* part : {"64 KiB", "ulimit -l", "32 MiB", "limits.conf", "LimitMEMLOCK", "--ulimit memlock=-1"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
  }
}

// In a child, which gives up what it may do.
TEST(LockedMemory, TheLimitOfAProcessWithoutPrivilegesCounts) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    limit.rlim_cur = 16 << 10;
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(10);
    __user_cap_header_struct header{};
    header.version = _LINUX_CAPABILITY_VERSION_3;
    __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
    if (syscall(SYS_capset, &header, none) != 0) _exit(11);
    const LockedMemoryLimit found = ReadLockedMemoryLimit();
    _exit(!found.unlimited && found.bytes == 16 << 10 && !LockedMemoryComplaint(found).empty() ? 0 : 12);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace byteps::fabric
