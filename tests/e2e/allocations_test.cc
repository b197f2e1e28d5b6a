// A steady state costs no allocation, so no registration, and no page fault: counted in all processes of real jobs. A
// few pass (worker.cc, kMostAllocations): what depends on how the kernel lets processes take turns.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/e2e/allocation_counts.h"
#include "tests/e2e/job.h"

namespace byteps {
namespace {

// A file of zeros for the counts of one job.
class CountsFile {
 public:
  CountsFile() {
    static int number = 0;
    path_ = std::string(std::getenv("TEST_TMPDIR")) + "/allocations." + std::to_string(number++);
    std::ofstream(path_).close();
    std::filesystem::resize_file(path_, sizeof(SharedAllocationCounts));
  }
  ~CountsFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs the scenario in a job whose processes count.
void Watch(JobOptions options, const std::string& scenario, const std::string& rounds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have an allocator of their own, which is not counted";
#endif
  const CountsFile file;
  options.of_servers[kAllocationsFile] = options.of_workers[kAllocationsFile] = file.path();
  Job job(std::move(options));
  job.StartWorkers(scenario, rounds);
  job.ExpectSuccess(240 * kSecond);
  std::printf("%s", job.Output().c_str());
}

void ExpectNoAllocations(int workers, int servers, const std::string& scenario, const std::string& rounds) {
  Watch({.workers = workers,
         .servers = servers,
         // Cuts stay as they are, and no member says now and then that it is alive: all this allocates a little.
         .environment = {{"BYTEPS_PARTITION_BYTES", "512K"},
                         {"BYTEPS_HEARTBEAT_INTERVAL", "0"},
                         {"BYTEPS_PEER_TIMEOUT", "0"}}},
        scenario, rounds);
}

// Between hosts, where cuts follow the rate of the links, and with heartbeats: as for a user that sets nothing. Cuts
// are looked at again in rounds 2, 4, 8, ...; that allocates, so the rounds watched, 520 to 1020 of each tensor, lie
// between.
TEST(AllocationsTest, LargeWithoutConfiguration) {
  Watch({.workers = 2, .hosts = {1, 1}, .servers = 1}, "allocations_large", "250");
}

TEST(AllocationsTest, SmallThroughAServer) { ExpectNoAllocations(2, 1, "allocations", "300"); }

TEST(AllocationsTest, SmallFromThreeWorkersThroughServers) { ExpectNoAllocations(3, 2, "allocations", "200"); }

TEST(AllocationsTest, LargeThroughAServer) { ExpectNoAllocations(2, 1, "allocations_large", "120"); }

// Registered once, mapped once.
TEST(AllocationsTest, LargeInBuffers) { ExpectNoAllocations(2, 1, "allocations_buffers", "120"); }

TEST(AllocationsTest, LargeAmongTheWorkersOfAHost) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "needs shared memory";
  ExpectNoAllocations(3, 0, "allocations_large", "120");
  ExpectNoAllocations(3, 0, "allocations_buffers", "120");
}

TEST(AllocationsTest, SmallAmongTheWorkersOfAHost) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "needs shared memory";
  ExpectNoAllocations(3, 0, "allocations", "300");
}

}  // namespace
}  // namespace byteps
