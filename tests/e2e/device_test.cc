// Jobs of real processes whose tensors lie in the memory of GPUs (fake ones): through servers over TCP and over shared
// memory, among the workers of a host, beside workers without a GPU; errors, cancels, a lost GPU, a dead worker.
// E2E_ON_CUDA=1: by the CUDA plugin, on a driver and an NCCL whose GPUs are the fake ones.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

std::string PathOf(const char* variable) { return std::filesystem::absolute(std::getenv(variable)).string(); }

bool OnCuda() { return std::string(std::getenv("E2E_ON_CUDA")) == "1"; }

JobOptions With(int workers, int servers, const std::string& schedule = "late") {
  JobOptions options;
  options.workers = workers;
  options.servers = servers;
  options.of_workers = {{"BYTEPS_DEVICE", PathOf(OnCuda() ? "E2E_CUDA" : "E2E_FAKE")},
                        {"BYTEPS_FAKE_GPU", "devices=2,seed=3,schedule=" + schedule}};
  if (OnCuda()) {
    options.of_workers["E2E_GPUS"] = PathOf("E2E_STANDIN_DRIVER");
    const std::filesystem::path nccl = PathOf("E2E_STANDIN_NCCL");
    options.of_workers["BYTEPS_NCCL_HOME"] = nccl.parent_path().parent_path().string();
  }
  return options;
}

TEST(DeviceJobTest, SumsAndBroadcastsThroughServers) {
  for (const char* schedule : {"late", "early", "random"}) {
    Job job(With(2, 2, schedule));
    job.StartWorkers("sums");
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, AWorkerAlone) {
  Job job(With(1, 0));
  job.StartWorkers("sums");
  EXPECT_EQ(job.worker(0).Wait(40 * kSecond), std::optional<int>(0)) << job.Output();
}

TEST(DeviceJobTest, AmongTheWorkersOfAHost) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  JobOptions options = With(3, 0);
  options.of_workers["BYTEPS_NCCL"] = "0";
  Job job(options);
  job.StartWorkers("sums");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, HostsThatReduceAmongThemselvesFirst) {
  JobOptions options = With(3, 1);
  options.hosts = {2, 1};
  options.of_workers["BYTEPS_NCCL"] = "0";
  Job job(options);
  job.StartWorkers("sums");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, CastsOnTheWayToTheHost) {
  for (const auto& [workers, servers, schedule] : {std::tuple(2, 2, "late"), std::tuple(3, 1, "random")}) {
    Job job(With(workers, servers, schedule));
    job.StartWorkers("casts");
    job.ExpectSuccess();
  }
  Job alone(With(1, 0, "early"));
  alone.StartWorkers("casts");
  EXPECT_EQ(alone.worker(0).Wait(40 * kSecond), std::optional<int>(0)) << alone.Output();
}

// GPUs that could reduce among themselves leave it to the host.
TEST(DeviceJobTest, CastsAmongTheWorkersOfAHost) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  Job job(With(3, 0));
  job.StartWorkers("casts");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, CastsBesideAWorkerWithoutAGpu) {
  if (OnCuda()) GTEST_SKIP() << "its build may have no kernels";
  JobOptions options = With(3, 2);
  options.of_workers["E2E_CPU_RANK"] = "1";
  Job job(options);
  job.StartWorkers("casts");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, FactorsOnTheWayToTheHost) {
  for (const char* schedule : {"late", "random"}) {
    Job job(With(2, 1, schedule));
    job.StartWorkers("factors");
    job.ExpectSuccess();
  }
}

// The GPUs of a host reduce among themselves: what reaches the host's memory is each one's share, or nothing.
TEST(DeviceJobTest, TheGpusOfAHostAlone) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [workers, schedule] : {std::pair(2, "late"), std::pair(4, "early"), std::pair(3, "random")}) {
    JobOptions options = With(workers, 0, schedule);
    options.of_workers["E2E_GROUP"] = "alone";
    Job job(options);
    job.StartWorkers("group");
    job.ExpectSuccess();
  }
}

// What is copied once more because the process may have no more memory files is told, once, whoever has made it.
TEST(DeviceJobTest, MemoryThatOthersCannotMapIsTold) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "nobody maps it";
  for (const auto& [what, hosts, workers] :
       {std::tuple("tensors", std::vector<int>(), 2), std::tuple("tensors", std::vector<int>{2, 1}, 3),
        std::tuple("buffers", std::vector<int>(), 2)}) {
    JobOptions options = With(workers, 1);
    options.hosts = hosts;
    Job job(options);
    job.StartWorkers("few_files", what);
    job.ExpectSuccess();
    const std::string output = job.worker(0).Output();
    const std::string text = "other processes of the host get copies";
    const size_t first = output.find(text);
    EXPECT_NE(first, std::string::npos) << what << job.Output();
    EXPECT_EQ(output.find(text, first + 1), std::string::npos) << what << output;
  }
}

// By the variable with which NCCL lets them: for tests on a machine with one GPU.
TEST(DeviceJobTest, WorkersThatShareAGpuLeaveItToTheHostUnlessNcclLetsThem) {
  if (!OnCuda()) GTEST_SKIP() << "the simulated GPUs of a process are its own";
  for (const bool may : {false, true}) {
    JobOptions options = With(2, 0);
    options.of_workers["STANDIN_CUDA_DOMAIN"] = "7";
    options.of_workers["NCCL_MULTI_RANK_GPU_ENABLE"] = may ? "1" : "0";
    options.of_workers["E2E_GROUP"] = may ? "alone" : "host memory";
    options.of_workers["BYTEPS_LOG_LEVEL"] = "info";
    Job job(options);
    job.StartWorkers("group");
    job.ExpectSuccess();
    EXPECT_EQ(job.Output().find("use the same GPU") == std::string::npos, may) << job.Output();
  }
}

TEST(DeviceJobTest, TheGpusOfTwoHosts) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [hosts, schedule, variable] :
       {std::tuple(std::vector<int>{2, 2}, "late", ""), std::tuple(std::vector<int>{3, 1}, "random", ""),
        std::tuple(std::vector<int>{2, 2}, "early", "BYTEPS_NCCL_NUM_RINGS"),
        std::tuple(std::vector<int>{2, 2}, "late", "BYTEPS_REDUCE_ROOTS")}) {
    JobOptions options = With(4, 2, schedule);
    options.hosts = hosts;
    options.of_workers["E2E_GROUP"] = "hosts";
    options.of_workers["BYTEPS_PARTITION_BYTES"] = "65536";
    if (std::string(variable) == "BYTEPS_REDUCE_ROOTS") options.of_workers["E2E_GROUP"] = "roots";
    if (*variable != '\0') options.of_workers[variable] = std::string(variable) == "BYTEPS_REDUCE_ROOTS" ? "1" : "3";
    Job job(options);
    job.StartWorkers("group");
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, TheGpusOfAHostReduceEveryDataType) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [hosts, servers] : {std::pair(std::vector<int>(), 0), std::pair(std::vector<int>{2, 1}, 1)}) {
    JobOptions options = With(3, servers);
    options.hosts = hosts;
    options.of_workers["BYTEPS_PARTITION_BYTES"] = "16384";
    Job job(options);
    job.StartWorkers("dtypes");
    job.ExpectSuccess();
  }
}

// The bits of the CPU: in the order of the ranks, one level and two, whatever takes the parts to the servers.
TEST(DeviceJobTest, TheGpusOfAHostAddInTheOrderOfTheRanks) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [workers, hosts, schedule, roots] :
       {std::tuple(2, std::vector<int>(), "late", ""), std::tuple(4, std::vector<int>(), "random", ""),
        std::tuple(3, std::vector<int>(), "early", "1"), std::tuple(4, std::vector<int>{3, 1}, "late", ""),
        std::tuple(4, std::vector<int>{2, 2}, "random", "1")}) {
    JobOptions options = With(workers, hosts.empty() ? 0 : 2, schedule);
    options.hosts = hosts;
    options.of_workers["BYTEPS_DETERMINISTIC"] = "1";
    options.of_workers["BYTEPS_PARTITION_BYTES"] = "4096";
    options.of_workers["BYTEPS_NCCL_GROUP_SIZE"] = "3";
    if (*roots != '\0') options.of_workers["BYTEPS_REDUCE_ROOTS"] = roots;
    // The CUDA plugin has the kernel in builds with --config=cuda alone.
    options.of_workers["E2E_GROUP"] = OnCuda() || *roots != '\0' ? "either" : (hosts.empty() ? "alone" : "hosts");
    Job job(options);
    job.StartWorkers("bits");
    job.ExpectSuccess(200 * kSecond);
  }
}

// BPS_MIN and BPS_MAX keep a NaN, whatever the GPUs' own collectives do with it.
TEST(DeviceJobTest, TheGpusOfAHostKeepANan) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  JobOptions options = With(3, 0);
  options.of_workers["E2E_ANY_ORDER"] = "1";
  options.of_workers["E2E_GROUP"] = "host memory";
  Job job(options);
  job.StartWorkers("bits");
  job.ExpectSuccess(200 * kSecond);
}

// Workers of a host that differ in a variable: what must be equal sends them through the host, and the log says which;
// the first worker's BYTEPS_NCCL_GROUP_SIZE is everybody's.
TEST(DeviceJobTest, VariablesThatDifferAmongTheGpusOfAHost) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [name, value, way] :
       {std::tuple("BYTEPS_NCCL_GROUP_SIZE", "1", "alone"), std::tuple("BYTEPS_NCCL_GROUP_SIZE", "100", "alone"),
        std::tuple("BYTEPS_NCCL_NUM_RINGS", "4", "host memory"), std::tuple("BYTEPS_REDUCE_ROOTS", "0", "host memory"),
        std::tuple("BYTEPS_DETERMINISTIC", "1", "host memory")}) {
    JobOptions options = With(2, 0, "random");
    options.of_workers["E2E_GROUP"] = way;
    options.of_workers["BYTEPS_PARTITION_BYTES"] = "65536";
    options.of_workers["BYTEPS_LOG_LEVEL"] = "INFO";
    Job job(options);
    job.StartWorker(0, "group");
    job.StartWorker(1, "group", "", {{name, value}});
    job.ExpectSuccess(120 * kSecond);
    if (std::string(way) == "alone") continue;
    EXPECT_NE(job.worker(0).Output().find(name), std::string::npos) << job.Output();
  }
}

TEST(DeviceJobTest, VariablesThatCannotBeHonoured) {
  for (const auto& [workers, name, value, text] :
       {std::tuple(3, "BYTEPS_PCIE_SWITCH_SIZE", "2", "3 workers: it does not divide their number"),
        std::tuple(4, "BYTEPS_PCIE_SWITCH_SIZE", "2", "sets of one PCIe switch are not there"),
        std::tuple(2, "BYTEPS_REDUCE_ROOTS", "0,2", "\"2\" is no local rank of this host, which has 2 workers"),
        std::tuple(2, "BYTEPS_REDUCE_ROOTS", "1,1", "is there twice"),
        std::tuple(2, "BYTEPS_REDUCE_ROOTS", "one", "\"one\" is no local rank")}) {
    JobOptions options = With(workers, 1);
    options.of_workers[name] = value;
    Job job(options);
    job.StartWorkers("refused", text);
    job.ExpectSuccess(120 * kSecond);
  }
}

TEST(DeviceJobTest, TwoGpusInAProcess) {
  Job job(With(2, 1));
  job.StartWorkers("second");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, AWorkerThatDiesAmongTheGpusOfAHostIsNamed) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [hosts, servers, schedule] :
       {std::tuple(std::vector<int>(), 0, "late"), std::tuple(std::vector<int>{2, 1}, 1, "random"),
        std::tuple(std::vector<int>{1, 2}, 2, "early")}) {
    JobOptions options = With(3, servers, schedule);
    options.hosts = hosts;
    Job job(options);
    job.StartWorkers("killed");
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(job.worker(rank).WaitForOutput("turning", 120 * kSecond)) << job.Output();
    }
    job.worker(1).Signal(SIGKILL);
    for (const int rank : {0, 2}) {
      EXPECT_EQ(job.worker(rank).Wait(120 * kSecond), std::optional<int>(0)) << job.Output();
    }
  }
}

// Whatever bps_collective does: through servers, among the workers of a host, from worker to worker; beside a worker
// whose tensors are on the host.
TEST(DeviceJobTest, CollectivesOfEveryKind) {
  for (const auto& [workers, servers, schedule, cpu] :
       {std::tuple(2, 1, "late", ""), std::tuple(3, 0, "random", ""), std::tuple(3, 1, "early", "1"),
        std::tuple(3, 1, "random", "0")}) {
    if (servers == 0 && std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") continue;
    JobOptions options = With(workers, servers, schedule);
    if (*cpu != '\0') options.of_workers["E2E_CPU_RANK"] = cpu;
    Job job(options);
    job.StartWorkers("collectives");
    job.ExpectSuccess(120 * kSecond);
  }
}

TEST(DeviceJobTest, CollectivesHaveTheBitsOfTheHost) {
  for (const char* schedule : {"late", "early"}) {
    Job job(With(3, 1, schedule));
    job.StartWorkers("collective_bits");
    job.ExpectSuccess(120 * kSecond);
  }
}

TEST(DeviceJobTest, GroupsSucceedOrFailTogether) {
  for (const auto& [workers, servers, schedule, cpu] :
       {std::tuple(2, 2, "late", ""), std::tuple(3, 1, "random", "1"), std::tuple(2, 1, "early", "")}) {
    JobOptions options = With(workers, servers, schedule);
    if (*cpu != '\0') options.of_workers["E2E_CPU_RANK"] = cpu;
    Job job(options);
    job.StartWorkers("groups");
    job.ExpectSuccess();
  }
}

// Those that could reduce among themselves, too.
TEST(DeviceJobTest, GroupsAmongTheGpusOfAHost) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  Job job(With(2, 0, "random"));
  job.StartWorkers("groups");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, MessagesKeepTheOrderOfTheirSubmission) {
  for (const char* schedule : {"late", "early", "random"}) {
    Job job(With(2, 1, schedule));
    job.StartWorkers("messages");
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, WhatCallersOfCollectivesGetWrong) {
  Job job(With(2, 1));
  job.StartWorkers("collective_errors");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, CollectivesThatEndEarly) {
  for (const char* how : {"cancel", "deadline", "lost", "close"}) {
    Job job(With(2, 1, "random"));
    job.StartWorkers("collective_ends", how);
    if (std::string(how) != "close") {
      job.ExpectSuccess(120 * kSecond);
      continue;
    }
    for (const int rank : {0, 1}) {
      EXPECT_EQ(job.worker(rank).Wait(120 * kSecond), std::optional<int>(0)) << job.Output();
    }
  }
}

TEST(DeviceJobTest, AWorkerThatDiesAmidCollectivesIsNamed) {
  Job job(With(3, 1, "random"));
  job.StartWorkers("collectives_killed");
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("turning", 120 * kSecond)) << job.Output();
  }
  job.worker(1).Signal(SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(job.worker(rank).Wait(120 * kSecond), std::optional<int>(0)) << job.Output();
  }
}

TEST(DeviceJobTest, NotAmongTheGpusIfOneSaysNo) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [name, value] : {std::pair("BYTEPS_NCCL", "0"), std::pair("E2E_CPU_RANK", "1")}) {
    JobOptions options = With(3, 0);
    options.of_workers["E2E_GROUP"] = "host memory";
    options.of_workers[name] = value;
    Job job(options);
    job.StartWorkers("group");
    job.ExpectSuccess();
  }
}

// Where NCCL cannot be used the copies through the host do the work, and the log says why.
TEST(DeviceJobTest, WithoutAnNcclThatCanBeUsed) {
  if (!OnCuda()) GTEST_SKIP() << "the fake GPUs need none";
  for (const auto& [name, value, text] :
       {std::tuple("BYTEPS_NCCL_HOME", "/nowhere",
                   "no NCCL: /nowhere/lib/libnccl.so.2: cannot open shared object file"),
        std::tuple("STANDIN_NCCL_VERSION", "21705", "is too old: 2.18.0 or later is needed"),
        std::tuple("STANDIN_CUDA_DOMAIN", "7", "use the same GPU")}) {
    JobOptions options = With(2, 0);
    options.of_workers["E2E_GROUP"] = "host memory";
    options.of_workers["BYTEPS_LOG_LEVEL"] = "INFO";
    options.of_workers[name] = value;
    Job job(options);
    job.StartWorkers("group");
    job.ExpectSuccess();
    EXPECT_NE(job.Output().find(text), std::string::npos) << text << job.Output();
  }
}

// Who sets BYTEPS_NCCL=1 asks for it.
TEST(DeviceJobTest, AnNcclThatIsAskedForAndCannotBeUsedIsAnError) {
  if (!OnCuda()) GTEST_SKIP() << "the fake GPUs need none";
  for (const auto& [name, value, text] :
       {std::tuple("BYTEPS_NCCL_HOME", "/nowhere", "BYTEPS_NCCL=1, but there are no collectives of GPUs: no NCCL: "),
        std::tuple("STANDIN_NCCL_VERSION", "21705", "is too old: 2.18.0 or later is needed")}) {
    JobOptions options = With(2, 0);
    options.of_workers["BYTEPS_NCCL"] = "1";
    options.of_workers[name] = value;
    Job job(options);
    job.StartWorkers("stuck", text);
    for (const int rank : {0, 1}) {
      EXPECT_EQ(job.worker(rank).Wait(120 * kSecond), std::optional<int>(0)) << job.Output();
    }
  }
}

// A rank whose NCCL gets no further: no member hangs in it, and the error says where.
TEST(DeviceJobTest, AnNcclThatGetsNoFurtherIsAbortedByTheDeadline) {
  if (!OnCuda()) GTEST_SKIP() << "the fake GPUs have no NCCL";
  for (const auto& [name, value, text] :
       {std::tuple("STANDIN_NCCL_STALL", "0", "have not ended"), std::tuple("STANDIN_NCCL_STALL", "1", "has not ended"),
        std::tuple("STANDIN_NCCL_ERROR", "1", "remote process exited"),
        std::tuple("STANDIN_NCCL_JOIN", "2", "ncclCommInitRankConfig"),
        std::tuple("STANDIN_NCCL_JOIN", "2", "BYTEPS_NCCL=0: tensors go through the host")}) {
    Job job(With(2, 0));
    job.StartWorker(0, "stuck");
    job.StartWorker(1, "stuck", text, {{name, value}});
    for (const int rank : {0, 1}) {
      EXPECT_EQ(job.worker(rank).Wait(120 * kSecond), std::optional<int>(0)) << job.Output();
    }
  }
}

TEST(DeviceJobTest, BesideAWorkerWithoutAGpu) {
  JobOptions options = With(3, 1);
  options.of_workers["E2E_CPU_RANK"] = "1";
  Job job(options);
  job.StartWorkers("sums");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, WhatCallersGetWrong) {
  Job job(With(2, 1));
  job.StartWorkers("errors");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, DefaultStreams) {
  for (const char* schedule : {"late", "early", "random"}) {
    Job job(With(2, 1, schedule));
    job.StartWorkers("default_streams");
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, BuffersOfTheLibrary) {
  Job job(With(2, 1));
  job.StartWorkers("buffers");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, NoPluginAndNoDriver) {
  for (const auto& [device, text] :
       std::map<std::string, std::string>{{"absent", "device \"absent\" (from BYTEPS_DEVICE) could not be found"},
                                          {PathOf("E2E_CUDA"), "NVIDIA driver"}}) {
    JobOptions options = With(2, 1);
    options.of_workers = {{"BYTEPS_DEVICE", device}, {"CUDA_VISIBLE_DEVICES", ""}};
    Job job(options);
    job.StartWorkers("missing", text);
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, ACancelIsHeardByAll) {
  Job job(With(2, 1));
  job.StartWorkers("cancel");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, ALostGpuIsHeardByAll) {
  Job job(With(2, 1));
  job.StartWorkers("lost");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, ADeadWorkerIsNamed) {
  Job job(With(3, 1));
  job.StartWorkers("death");
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("waiting", 120 * kSecond)) << job.Output();
  }
  job.worker(1).Signal(SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(job.worker(rank).Wait(120 * kSecond), std::optional<int>(0)) << job.Output();
  }
}

}  // namespace
}  // namespace byteps
