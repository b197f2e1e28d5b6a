#include "tools/info/host_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/host_tree.h"
#include "tools/info/sysfs.h"

namespace byteps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(SysfsTest, NumbersFieldsAndSizes) {
  const HostTree host;
  host.File("/flags", "0x1003\n");
  host.File("/none", "none\n");
  host.File("/fields", "Node 0 MemTotal:       2048 kB\nHugePages_Total:       3\n");
  EXPECT_EQ(ReadNumber(host.root() + "/flags", -1), 0x1003);
  EXPECT_EQ(ReadNumber(host.root() + "/none", -1), -1);
  EXPECT_EQ(ReadNumber(host.root() + "/absent", 7), 7);
  EXPECT_EQ(ReadField(host.root() + "/fields", "MemTotal"), "2048 kB");
  EXPECT_EQ(ReadField(host.root() + "/fields", "HugePages_Total"), "3");
  EXPECT_EQ(ReadField(host.root() + "/fields", "Total"), "");
  EXPECT_EQ(Bytes(512), "512 bytes");
  EXPECT_EQ(Bytes(64 << 10), "64 KiB");
  EXPECT_EQ(Bytes((uint64_t{3} << 30) + (1 << 29)), "3.5 GiB");
}

HostTree LargeHost() {
  HostTree host;
  host.File("/sys/devices/system/cpu/online", "0-127\n");
  host.File("/sys/fs/cgroup/cpu.max", "800000 100000\n");
  host.File("/sys/devices/system/node/node0/cpulist", "0-63\n");
  host.File("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       263921408 kB\n");
  host.File("/sys/devices/system/node/node1/cpulist", "64-127\n");
  host.File("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       264241152 kB\n");
  host.File("/proc/meminfo",
            "MemTotal:       528162560 kB\nMemAvailable:   419430400 kB\nHugePages_Total:      16\n"
            "HugePages_Free:        4\nHugepagesize:       2048 kB\n");
  host.File("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  host.File("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n");
  host.File("/proc/sys/kernel/yama/ptrace_scope", "2\n");
  return host;
}

TEST(HostReportTest, TellsWhatThereIsAndWhatItMeans) {
  const HostTree host = LargeHost();
  const std::string report = HostReport(host.root(), 64 << 10);
  EXPECT_THAT(report, AllOf(HasSubstr("online: 0-127"), HasSubstr("may use 8 of them"),
                            HasSubstr("node 0 with cores 0-63 and 251.7 GiB; node 1 with cores 64-127 and 252 GiB"),
                            HasSubstr("503.7 GiB, available 400 GiB"),
                            HasSubstr("transparent: never (copies between processes"),
                            HasSubstr("reserved: 16 of 2 MiB, free 4"), HasSubstr("ptrace_scope 2")));
  EXPECT_THAT(report, HasSubstr("at most 64 KiB (ulimit -l); tcp and shm lock none; verbs and efa would need more"));
}

TEST(HostReportTest, LockedMemoryIsComplainedOfWhereADeviceNeedsIt) {
  const HostTree host = LargeHost();
  host.File("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
  EXPECT_THAT(HostReport(host.root(), 64 << 10), HasSubstr("too little for verbs and efa: \"ulimit -l unlimited\""));
  EXPECT_THAT(HostReport(host.root(), uint64_t{4} << 30), Not(HasSubstr("too little")));
  EXPECT_THAT(HostReport(host.root(), kUnlimited), HasSubstr("locked memory   unlimited"));
}

TEST(HostReportTest, AHostThatTellsNothingIsNoError) {
  const HostTree host;
  EXPECT_THAT(HostReport(host.root(), kUnlimited),
              AllOf(HasSubstr("online: unknown"), HasSubstr("the kernel tells of no nodes"), HasSubstr("no /dev/shm")));
  EXPECT_THAT(HostReport("", LockedMemoryLimit()), HasSubstr(" usable by this process"));
}

}  // namespace
}  // namespace byteps
