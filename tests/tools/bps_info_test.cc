// Runs tools/bps_info as a user does, and compares the page it generates with the one in the tree.

#include <fstream>
#include <sstream>
#include <string>

#include "core/config/config_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/info_program.h"

namespace byteps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Outcome Info(const std::string& arguments, const std::string& variables = "") {
  return RunInfo(arguments, {"scheduler_plugins/credit", "scheduler_plugins/fifo", "scheduler_plugins/priority"},
                 variables);
}

TEST(ConfigurationPageTest, IsCurrent) {
  std::ifstream file(Root() + "/docs/configuration.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_EQ(page.str(), ConfigMarkdown())
      << "core/config/knobs.h has changed: bazel run //tools:bps_info -- --markdown > docs/configuration.md";
}

TEST(BpsInfoTest, MarkdownIsThatPage) {
  // Whatever the environment, right or wrong.
  const Outcome outcome = Info("--markdown", "BYTEPS_PARTITION_BYTES=abc BYTEPS_OP_TIMEOUT=7");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.output, ConfigMarkdown());
}

TEST(BpsInfoTest, AnOutputThatTakesNothingIsAnError) {
  const Outcome outcome = RunCommand("( " + InfoCommand("--markdown", {}) + " >/dev/full )");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("the output cannot be written"));
}

TEST(BpsInfoTest, ShowsVersionsPluginsAndSources) {
  const Outcome outcome =
      Info("",
           "BYTEPS_OP_TIMEOUT=7 HOROVOD_START_TIMEOUT=8 BYTEPS_TRANSPORT=absent BYTEPS_DEBUG_SAMPLE_TENSOR=1 "
           "BYTEPS_JOB_TOKEN=hunter2");
  EXPECT_EQ(outcome.code, 1);  // the transport
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("BytePS 0."), HasSubstr("C ABI 1."), HasSubstr("scheduler credit"),
                                    HasSubstr("scheduler priority"), HasSubstr("scheduler fifo"),
                                    HasSubstr("transport \"absent\" (from BYTEPS_TRANSPORT) could not be found"),
                                    HasSubstr("BYTEPS_DEBUG_SAMPLE_TENSOR is set, but this release does not act on it"),
                                    Not(HasSubstr("hunter2")), Not(HasSubstr("PS_RESEND "))));
  EXPECT_THAT(outcome.output, testing::ContainsRegex("BYTEPS_OP_TIMEOUT +7 +environment"));
  EXPECT_THAT(outcome.output, testing::ContainsRegex("BYTEPS_START_TIMEOUT +8 +alias"));
  EXPECT_THAT(outcome.output, testing::ContainsRegex("BYTEPS_SCHEDULER +auto +default"));
  EXPECT_THAT(Info("--all").output, HasSubstr("PS_RESEND "));
}

TEST(BpsInfoTest, SaysWhatPluginsWereWrittenForAndWhatTheyCan) {
  const std::string output = RunInfo("", {"scheduler_plugins/credit", "transport_plugins/libfabric"}).output;
  EXPECT_THAT(output, testing::ContainsRegex("      contract 1\\.[0-9]+: .*wait_fd.*, messages of [0-9]+ bytes\n"));
  EXPECT_THAT(output, testing::ContainsRegex("      contract 1\\.[0-9]+: .*stats"));
}

TEST(BpsInfoTest, ShowsGpusAndWhyThereAreNone) {
  const std::vector<std::string> devices = {"device_plugins/cuda", "device_plugins/fake", "transport_plugins/libfabric",
                                            "scheduler_plugins/credit"};
  const Outcome outcome = RunInfo("", devices, "BYTEPS_FAKE_GPU=devices=2,memory=67108864 CUDA_VISIBLE_DEVICES=");
  EXPECT_EQ(outcome.code, 0) << "no GPU is no error: " << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("no driver: this GPU is simulated, "
                                              "simulated, among the processes of this machine"),
                                    HasSubstr("device 0: fake GPU, 64 MiB, device 1: fake GPU, 64 MiB")));
  // Without a driver, and with one that shows no device.
  EXPECT_THAT(outcome.output,
              testing::ContainsRegex("device cuda .+\n +not usable: (no NVIDIA driver: libcuda.so.1|the "
                                     "NVIDIA driver .* gives no device)"));
  EXPECT_THAT(RunInfo("", devices, "BYTEPS_FAKE_GPU=speed=3").output,
              testing::ContainsRegex("device fake .+\n +not usable: BYTEPS_FAKE_GPU: .speed=3. means nothing"));
}

TEST(BpsInfoTest, TheLibraryIsAskedForItsVersion) {
  EXPECT_THAT(Info("").output, testing::ContainsRegex("library /.+/libbyteps.so: release 0\\.[^ ]+, C ABI 1\\.[0-9]+"));
  EXPECT_THAT(Info("", "BYTEPS_LIBRARY=/nowhere.so").output,
              HasSubstr("libbyteps.so was not found; sought: /nowhere.so"));
  EXPECT_THAT(Info("", "BYTEPS_LIBRARY=/dev/null").output, HasSubstr("/dev/null: does not load: "));
  // The first page of this very program: an ELF file, cut off.
  const std::string part = testing::TempDir() + "libbyteps.so";
  std::string page(4096, '\0');
  std::ifstream("/proc/self/exe").read(page.data(), static_cast<std::streamsize>(page.size()));
  std::ofstream(part, std::ios::binary) << page;
  EXPECT_THAT(Info("", "BYTEPS_LIBRARY=" + part).output, HasSubstr(part + ": the file is cut off: it has 4096 bytes"));
}

TEST(BpsInfoTest, SaysWhichTransportIsTakenAndWhyNotTheOthers) {
  const std::vector<std::string> all = {"scheduler_plugins/credit", "transport_plugins/libfabric", "tests/plugins"};
  Outcome outcome = RunInfo("", all);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("transport tcp, chosen by BYTEPS_TRANSPORT=auto: not efa ("));
  EXPECT_THAT(
      outcome.output,
      testing::ContainsRegex("transport failsprobe .+\n +not usable: no device named mlx5_7\n +contract 1\\.[0-9]+\n"));
  EXPECT_THAT(RunInfo("", all, "DMLC_ENABLE_RDMA=zmq").output,
              HasSubstr("transport tcp, as DMLC_ENABLE_RDMA=zmq asks"));
  outcome = RunInfo("", all, "DMLC_ENABLE_RDMA=ucx");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("DMLC_ENABLE_RDMA=ucx: there is no such transport here"));
  EXPECT_THAT(outcome.output, HasSubstr("scheduler credit, as BYTEPS_SCHEDULER=auto says"));
  outcome = RunInfo("", all, "BYTEPS_TRANSPORT=failsprobe");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("transport failsprobe, as BYTEPS_TRANSPORT=failsprobe says"));
}

// The report goes on behind it.
TEST(BpsInfoTest, APluginThatCrashesIsALine) {
  const Outcome outcome = RunInfo("", {"scheduler_plugins/credit", "transport_plugins/libfabric", "tests/plugins"});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              testing::ContainsRegex("scheduler crashes .+\n +not usable: it crashes when it is loaded or probed: "
                                     "signal 11 \\(Segmentation fault\\)\n  [a-z]"));
  EXPECT_THAT(outcome.output, HasSubstr("scheduler credit, as BYTEPS_SCHEDULER=auto says"));
}

// Every role would fail of it. 192.0.2.0/24 is for documentation (RFC 5737).
TEST(BpsInfoTest, AnAddressThatThisHostDoesNotHaveIsAnError) {
  const std::vector<std::string> all = {"scheduler_plugins/credit", "transport_plugins/libfabric"};
  Outcome outcome = RunInfo("", all, "DMLC_INTERFACE=nope");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output,
              testing::ContainsRegex("\n  DMLC_INTERFACE=nope: no such interface is up; there are: .*lo"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("transport tcp, chosen")));
  for (const char* transport : {"", " BYTEPS_TRANSPORT=tcp"}) {
    outcome = RunInfo("", all, std::string("DMLC_NODE_HOST=192.0.2.77") + transport);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.output,
                testing::ContainsRegex("\n  transport \"tcp\" could not be opened: .*192.0.2.77.*DMLC_NODE_HOST"));
  }
  outcome = RunInfo("--json", all, "DMLC_NODE_HOST=192.0.2.77");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("\"transport\": null, "), HasSubstr("\"usable\": false}")));
  outcome = RunInfo("", all, "DMLC_NODE_HOST=no.such.host.invalid");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("DMLC_NODE_HOST=no.such.host.invalid is no address and no known name"));
  outcome = RunInfo("", all, "DMLC_NODE_HOST=127.0.0.1");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(RunInfo("", all, "DMLC_INTERFACE=lo DMLC_PS_ROOT_URI=127.0.0.1").code, 0);
}

TEST(BpsInfoTest, SaysTheSameToPrograms) {
  Outcome outcome = Info("--json",
                         "BYTEPS_OP_TIMEOUT=7 BYTEPS_TRANSPORT=absent BYTEPS_DEBUG_SAMPLE_TENSOR=1 "
                         "BYTEPS_JOB_TOKEN=hunter2");
  EXPECT_EQ(outcome.code, 1);  // the transport
  EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1) << "one line";
  EXPECT_THAT(
      outcome.output,
      AllOf(HasSubstr("{\"release\": \"0."), HasSubstr("\"kind\": \"scheduler\", \"name\": \"fifo\""),
            HasSubstr("\"transport\": null, \"scheduler\": \"credit\", \"errors\": [\"transport \\\"absent\\\" (from"),
            HasSubstr(
                "{\"name\": \"BYTEPS_OP_TIMEOUT\", \"value\": \"7\", \"source\": \"environment\", \"acted_on\": true}"),
            HasSubstr("\"warnings\": [\"BYTEPS_DEBUG_SAMPLE_TENSOR is set"), HasSubstr("\"cores\": \""),
            HasSubstr("\"usable\": false}"), Not(HasSubstr("hunter2")), Not(HasSubstr("\"PS_RESEND\"")),
            Not(HasSubstr("\"check\""))));
  EXPECT_THAT(Info("--json --all").output, HasSubstr("\"PS_RESEND\""));
  outcome = RunInfo("--json", {"scheduler_plugins/credit", "transport_plugins/libfabric"});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("\"transport\": \"tcp\", "), HasSubstr("\"usable\": true}")));
  EXPECT_EQ(Info("--json", "BYTEPS_PARTITION_BYTES=abc").code, 2);
}

TEST(BpsInfoTest, HelpIsAPage) {
  const Outcome outcome = Info("--help");
  EXPECT_EQ(outcome.code, 0);
  for (const char* part : {"NAME", "SYNOPSIS", "OPTIONS", "--check", "--timeout", "EXIT STATUS", "ENVIRONMENT"}) {
    EXPECT_THAT(outcome.output, HasSubstr(part));
  }
}

TEST(BpsInfoTest, ShowsTheHostAndItsDevices) {
  EXPECT_THAT(Info("").output, AllOf(HasSubstr("\nDevices and links\n"), HasSubstr("  lo: "), HasSubstr("\nHost\n"),
                                     HasSubstr("locked memory"), HasSubstr("huge pages"), HasSubstr("NUMA")));
}

TEST(BpsInfoTest, ShowsTheGroupsOfTheReduction) {
  const std::string two_hosts = "DMLC_NUM_WORKER=2 BYTEPS_LOCAL_SIZE=4 ";
  EXPECT_THAT(Info("", two_hosts).output,
              HasSubstr("8 workers, if each of 2 hosts has 4: groups of ranks 0-3, 4-7 (BYTEPS_GROUPS=host)"));
  EXPECT_THAT(Info("", two_hosts + "BYTEPS_GROUPS=none").output, HasSubstr("one group, ranks 0-7"));
  EXPECT_THAT(Info("", two_hosts + "BYTEPS_GROUPS=0-1,2-7").output, HasSubstr("groups of ranks 0-1, 2-7"));
  const Outcome wrong = Info("", two_hosts + "BYTEPS_GROUPS=0-1,3-7");
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.output, HasSubstr("BYTEPS_GROUPS=0-1,3-7: expected host, none, or ranges"));
}

TEST(BpsInfoTest, ShowsThePlacementOfAShippedModel) {
  Outcome outcome = Info("--placement " + Root() + "/tools/models/vgg16.model --servers 3 --workers 2 --colocate 2");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("VGG-16"), HasSubstr("server 2: "), HasSubstr("features.0.weight"),
                                    HasSubstr("The first cut, ")));
  outcome = Info("--placement " + Root() + "/tools/models/vgg16.model --rate 1gbit --servers 3");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("The cut from the second round on, "));
  outcome = Info("--placement vgg61");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("no model \"vgg61\""));
  for (const char* wrong :
       {"--placement", "--placement vgg16 --servers", "--placement vgg16 --servers many", "--placement /dev/null",
        "--placement vgg16 --hosts 3", "--placement vgg16 --rate fast", "--placement vgg16 --rate"}) {
    EXPECT_EQ(Info(wrong).code, 2) << wrong;
  }
}

TEST(BpsInfoTest, ShowsTheWaysOfCollectivesAndTheirCosts) {
  Outcome outcome = Info("--paths --workers 4 --servers 1");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, testing::ContainsRegex("all_reduce +64 MiB +servers +2 +2 +268.4 MB"));
  EXPECT_THAT(outcome.output, testing::ContainsRegex("all_reduce +64 MiB +\\*peers +4 +24 +100.7 MB"));
  EXPECT_THAT(outcome.output, testing::ContainsRegex("all_to_all +64 MiB +\\*peers +3 +18 +50.3 MB"));
  outcome = Info("--paths --workers 4 --servers 8 --colocate 4 --rate 200mbit");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, testing::ContainsRegex("all_reduce +64 MiB +\\*servers +2 +2 +67.1 MB"));
  EXPECT_THAT(Info("--paths", "BYTEPS_COLLECTIVE_PATH=peers").output, HasSubstr("all_reduce: peers for all sizes"));
  EXPECT_THAT(Info("--paths --workers 1 --local 4 --servers 0").output, HasSubstr("all_reduce: shared for all sizes"));
  for (const char* wrong : {"--paths --workers", "--paths --workers 0", "--paths --workers many", "--paths --hosts 3",
                            "--paths --servers 1 --colocate 2", "--paths --workers 2 --servers 0",
                            "--paths --workers 5000", "--paths --rate fast"}) {
    EXPECT_EQ(Info(wrong).code, 2) << wrong;
  }
}

TEST(BpsInfoTest, WrongConfigurationAndWrongCallsAreErrors) {
  Outcome outcome = Info("", "BYTEPS_PARTITION_BYTES=abc");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("BYTEPS_PARTITION_BYTES=abc is not accepted"));
  for (const char* credit : {"-1", "many", "4X", "1.5"}) {
    outcome = Info("", std::string("BYTEPS_SCHEDULING_CREDIT=") + credit);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.output, HasSubstr(std::string("BYTEPS_SCHEDULING_CREDIT=") + credit + " is not accepted"));
  }
  EXPECT_THAT(Info("", "BYTEPS_SCHEDULING_CREDIT=16M").output,
              testing::ContainsRegex("BYTEPS_SCHEDULING_CREDIT +16M +environment"));
  for (const char* wrong : {"--everything", "all", "--timeout", "--timeout 0", "--timeout 1x"}) {
    outcome = Info(wrong);
    EXPECT_EQ(outcome.code, 2) << wrong;
    EXPECT_THAT(outcome.output, HasSubstr("bps_info --help tells all")) << wrong;
  }
}

}  // namespace
}  // namespace byteps
