// Jobs of real processes whose network card reads and writes the memory of (fake) GPUs itself: over a libfabric whose
// tcp provider does so (tests/transport_plugins/libfabric/standin_fabric.cc).
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

std::string PathOf(const char* variable) { return std::filesystem::absolute(std::getenv(variable)).string(); }

// The libfabric of this machine.
std::string RealFabric() {
  void* library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return "";
  link_map* map = nullptr;
  const bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0;
  return known ? map->l_name : "";
}

class DeviceDirectTest : public testing::Test {
 protected:
  void SetUp() override {
    if (RealFabric().empty()) GTEST_SKIP() << "there is no libfabric";
  }

  static JobOptions With(std::vector<int> hosts, const std::string& schedule, const std::string& way) {
    JobOptions options;
    options.workers = 0;
    for (const int size : hosts) options.workers += size;
    options.hosts = std::move(hosts);
    options.servers = 2;
    options.environment = {{"BYTEPS_TRANSPORT", PathOf("E2E_GPUDIRECT")}};
    options.of_servers = {{"BYTEPS_SHM", "0"}};  // as on hosts of their own
    options.of_workers = {
        {"BYTEPS_DEVICE", PathOf("E2E_FAKE")},
        {"BYTEPS_FAKE_GPU", "devices=1,seed=5,schedule=" + schedule},
        {"LD_LIBRARY_PATH", std::filesystem::path(PathOf("E2E_FABRIC")).parent_path().string()},
        {"STANDIN_FABRIC_REAL", RealFabric()},
        {"BYTEPS_LOG_LEVEL", "INFO"},
        {"E2E_DIRECT", way},
    };
    return options;
  }
};

TEST_F(DeviceDirectTest, ACardReadsAndWritesTheMemoryOfTheGpu) {
  for (const auto& [schedule, dmabuf] :
       {std::tuple("late", "0"), std::tuple("early", "1"), std::tuple("random", "0")}) {
    JobOptions options = With({1, 1}, schedule, "card");
    options.of_workers["STANDIN_FABRIC_DMABUF"] = dmabuf;
    Job job(options);
    job.StartWorkers("direct");
    job.ExpectSuccess();
    EXPECT_NE(job.worker(0).Output().find("reads and writes the memory of GPU 0"), std::string::npos) << job.Output();
  }
}

// Each takes its share of what the GPUs of the host have reduced.
TEST_F(DeviceDirectTest, TheCardsOfTheGpusOfTwoHosts) {
  JobOptions options = With({2, 2}, "late", "card");
  options.of_workers["E2E_GROUP"] = "hosts";
  Job job(options);
  job.StartWorkers("direct");
  job.ExpectSuccess();
}

TEST_F(DeviceDirectTest, ThroughTheHostWhereACardCannotOrMayNot) {
  for (const auto& [name, value, text] :
       {std::tuple("BYTEPS_GPU_DIRECT", "0", ""), std::tuple("LD_LIBRARY_PATH", "", ""),
        std::tuple("BYTEPS_CHECKSUM", "1", ""),
        std::tuple("STANDIN_FABRIC_REFUSES", "1", "cannot register memory of a GPU")}) {
    JobOptions options = With({1, 1}, "late", "host");
    options.of_workers[name] = options.environment[name] = value;
    Job job(options);
    job.StartWorkers("direct");
    job.ExpectSuccess();
    EXPECT_NE(job.worker(0).Output().find(text), std::string::npos) << job.Output();
  }
}

}  // namespace
}  // namespace byteps
