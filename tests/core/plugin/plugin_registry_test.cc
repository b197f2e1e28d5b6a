#include "core/plugin/plugin_registry.h"

#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plugins/minimal_scheduler.h"

extern "C" int32_t bps_scheduler_plugin_v1_credit(const bps_plugin_host* host, const bps_scheduler_plugin** plugin);
extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host* host, const bps_device_plugin** plugin);
extern "C" int32_t bps_scheduler_plugin_v1_fifo(const bps_plugin_host* host, const bps_scheduler_plugin** plugin);

namespace byteps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Where the misbehaving plugins are: their folder within the test's own, as BUILD gives it.
std::string Folder() {
  const char* root = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  return std::string(root == nullptr ? "." : root) + "/" + (workspace == nullptr ? "" : workspace) + "/tests/plugins";
}

std::string PathOf(const std::string& name) { return Folder() + "/libbyteps_scheduler_" + name + ".so"; }

class PluginRegistryTest : public testing::Test {
 protected:
  PluginRegistryTest() : PluginRegistryTest(Folder()) {}
  explicit PluginRegistryTest(const std::string& path)
      : config_(*Config::Make(
            {{"BYTEPS_PLUGIN_PATH", path}, {"BYTEPS_SCHEDULER", "minimal"}, {"BYTEPS_TRANSPORT", "idle"}})),
        log_(SinkTo(&lines_)),
        registry_(config_, log_) {}

  static Logger SinkTo(std::vector<std::string>* lines) {
    LogOptions options;
    options.sink = [](void* user, int32_t, const char*, int32_t, const char* message) {
      static_cast<std::vector<std::string>*>(user)->push_back(message);
    };
    options.user = lines;
    return Logger(options);
  }

  std::string ErrorOf(std::string_view wanted, absl::StatusCode code = absl::StatusCode::kFailedPrecondition) {
    absl::StatusOr<const bps_scheduler_plugin*> plugin = registry_.FindScheduler(wanted);
    EXPECT_EQ(plugin.status().code(), code) << plugin.status();
    return std::string(plugin.status().message());
  }

  std::vector<std::string> lines_;
  Config config_;
  Logger log_;
  PluginRegistry registry_;
};

TEST_F(PluginRegistryTest, FindsByNameByPathAndInAnyCase) {
  for (const std::string& wanted : {std::string("minimal"), std::string("Minimal"), PathOf("minimal")}) {
    absl::StatusOr<const bps_scheduler_plugin*> plugin = registry_.FindScheduler(wanted);
    ASSERT_TRUE(plugin.ok()) << plugin.status();
    EXPECT_STREQ((*plugin)->info.name, "minimal");
  }
}

// Before any of its code runs, so that a crash in there has a name; and once.
TEST_F(PluginRegistryTest, ALogLineNamesAPluginBeforeItIsLoaded) {
  LogOptions options;
  options.level = LogLevel::kInfo;
  options.sink = [](void* user, int32_t, const char*, int32_t, const char* message) {
    static_cast<std::vector<std::string>*>(user)->push_back(message);
  };
  options.user = &lines_;
  const Logger log(options);
  PluginRegistry registry(config_, log);
  // (No other test of this program loads it with success.)
  EXPECT_FALSE(registry.FindScheduler("refuses").ok());
  EXPECT_THAT(lines_, testing::ElementsAre("loading the scheduler plugin " + PathOf("refuses")));
  EXPECT_FALSE(registry.FindScheduler("refuses").ok());
  EXPECT_EQ(lines_.size(), 1u);
}

TEST_F(PluginRegistryTest, AChosenNameIsNotLaidToTheUser) {
  const Config config = *Config::Make({{"BYTEPS_PLUGIN_PATH", Folder()}});
  PluginRegistry registry(config, log_);
  EXPECT_THAT(std::string(registry.FindTransport("absent").status().message()),
              HasSubstr("transport \"absent\" (by BYTEPS_TRANSPORT=auto) could not be found"));
}

TEST_F(PluginRegistryTest, TwoPluginsOfOneKindSideBySide) {
  absl::StatusOr<Scheduler> one = registry_.CreateScheduler("minimal", BPS_DIRECTION_PUSH);
  absl::StatusOr<Scheduler> two = registry_.CreateScheduler("second", BPS_DIRECTION_PUSH);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(one->name(), "minimal");
  EXPECT_EQ(two->name(), "second");
}

TEST_F(PluginRegistryTest, UnknownNameGivesTheFourFacts) {
  const std::string error = ErrorOf("minimul", absl::StatusCode::kNotFound);
  EXPECT_THAT(error, AllOf(HasSubstr("scheduler \"minimul\" (from BYTEPS_SCHEDULER) could not be found"),
                           HasSubstr("\n  " + Folder() + "/libbyteps_scheduler_minimul.so: no such file"),
                           HasSubstr("/byteps/plugins/libbyteps_scheduler_minimul.so: no such file"),
                           HasSubstr("Known here: "), HasSubstr("minimal, "), HasSubstr("BYTEPS_PLUGIN_PATH")));
}

TEST_F(PluginRegistryTest, AFolderThatIsNamedTwiceIsSearchedOnce) {
  const Config config = *Config::Make({{"BYTEPS_PLUGIN_PATH", Folder() + ":" + Folder() + "/"}});
  PluginRegistry registry(config, log_);
  const std::string error(registry.FindScheduler("minimul").status().message());
  const std::string place = Folder() + "/libbyteps_scheduler_minimul.so";
  EXPECT_NE(error.find(place), std::string::npos);
  EXPECT_EQ(error.find(place), error.rfind(place)) << error;
}

TEST_F(PluginRegistryTest, PathsAreTakenAtTheirWord) {
  EXPECT_THAT(ErrorOf("/nowhere/libbyteps_scheduler_minimal.so", absl::StatusCode::kNotFound),
              HasSubstr("/nowhere/libbyteps_scheduler_minimal.so: no such file"));
  EXPECT_THAT(ErrorOf("./minimal.so", absl::StatusCode::kNotFound), HasSubstr("libbyteps_scheduler_<name>.so"));
  EXPECT_THAT(ErrorOf("/x/libbyteps_transport_tcp.so", absl::StatusCode::kNotFound),
              HasSubstr("not a name of the form"));
}

// The misbehaving ones: each is named with its path and what is wrong.
struct Fault {
  const char* plugin;
  const char* says;
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
};

class MisbehavingPluginTest : public PluginRegistryTest, public testing::WithParamInterface<Fault> {};

TEST_P(MisbehavingPluginTest, IsRefusedWithItsReason) {
  const std::string path = PathOf(GetParam().plugin);
  for (const std::string& wanted : {std::string(GetParam().plugin), path}) {
    EXPECT_THAT(ErrorOf(wanted, GetParam().code),
                AllOf(HasSubstr("\"" + wanted + "\" (from BYTEPS_SCHEDULER) could not be loaded"),
                      HasSubstr("\n  " + path + ": "), HasSubstr(GetParam().says), HasSubstr("Known here")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MisbehavingPluginTest,
    testing::Values(
        Fault{"major", "written for major version 2 of the plugin contract, this library for 1"},
        Fault{"minor", "claims minor version -1"}, Fault{"noentry", "exports no function bps_scheduler_plugin_v1"},
        Fault{"nofunction", "lacks the required: next, withdraw"},
        Fault{"shorttable", "lacks the required: complete, withdraw"},
        Fault{"shortdescriptor", "compiled against another plugin contract"},
        Fault{"misnamed", "calls itself \"somebody\", but its file is that of \"misnamed\""},
        Fault{"wrongkind", "says that it is a transport plugin, expected a scheduler plugin"},
        Fault{"notelf", "invalid ELF header"}, Fault{"cutoff", "the file is cut off: it has 2000 bytes of at least "},
        Fault{"borrowed", "is not its own, but comes from"},
        Fault{"undefined", "undefined symbol: bps_tests_nobody_defines_this"},
        Fault{"throws", "its entry function threw an exception: no mood today"},
        Fault{"refuses", "its entry function answered UNAVAILABLE and gave no reason", absl::StatusCode::kUnavailable},
        Fault{"explains",
              "its entry function answered that it cannot be used here: this processor lacks what the test "
              "asks for",
              absl::StatusCode::kUnavailable}),
    [](const testing::TestParamInfo<Fault>& param) { return param.param.plugin; });

TEST_F(PluginRegistryTest, AnExceptionFromCreateIsContained) {
  absl::StatusOr<Scheduler> scheduler = registry_.CreateScheduler("throwslater", BPS_DIRECTION_RESULT);
  EXPECT_EQ(scheduler.status(),
            absl::InternalError("scheduler \"throwslater\" threw an exception in create: create went wrong"));
}

bps_task TaskOf(uint64_t id, int64_t priority) {
  bps_task task = {};
  task.id = id;
  task.bytes = 100;
  task.priority = priority;
  return task;
}

TEST_F(PluginRegistryTest, AnExceptionFromNextEndsTheScheduler) {
  absl::StatusOr<Scheduler> scheduler = registry_.CreateScheduler("throwslater", BPS_DIRECTION_PUSH);
  ASSERT_TRUE(scheduler.ok()) << scheduler.status();
  scheduler->Enqueue(0, TaskOf(1, 0));
  const std::vector<bps_budget> budgets = {{0, 1, 1000}};
  const absl::Status expected =
      absl::InternalError("scheduler \"throwslater\" threw an exception in next: next went wrong");
  EXPECT_EQ(scheduler->Next(0, budgets).status(), expected);
  EXPECT_EQ(scheduler->Next(0, budgets).status(), expected);
  EXPECT_EQ(scheduler->status(), expected);
}

struct Lie {
  int64_t priority;
  const char* says;
};

class LyingSchedulerTest : public PluginRegistryTest, public testing::WithParamInterface<Lie> {};

TEST_P(LyingSchedulerTest, IsFoundOutAndNamed) {
  absl::StatusOr<Scheduler> scheduler = registry_.CreateScheduler("liar", BPS_DIRECTION_PUSH);
  ASSERT_TRUE(scheduler.ok()) << scheduler.status();
  bps_task task = TaskOf(5, GetParam().priority);
  if (task.priority == 4) task.earliest = 50;
  scheduler->Enqueue(0, task);
  std::vector<bps_budget> budgets = {{0, 1, task.priority == 3 ? 99u : 1000u}};
  absl::StatusOr<std::optional<Scheduler::Started>> next = scheduler->Next(0, budgets);
  if (task.priority == 2) {
    ASSERT_TRUE(next.ok() && next->has_value()) << next.status();
    scheduler->Enqueue(0, TaskOf(7, 0));
    scheduler->Enqueue(0, TaskOf(8, 0));
    ASSERT_TRUE(scheduler->Next(0, budgets).ok());  // it only knows the last, 8
    next = scheduler->Next(0, budgets);             // and names it again, while 7 waits
  }
  EXPECT_EQ(next.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(next.status().message()),
              AllOf(HasSubstr("scheduler \"liar\" answered next with task"), HasSubstr(GetParam().says)));
}

INSTANTIATE_TEST_SUITE_P(All, LyingSchedulerTest,
                         testing::Values(Lie{1, "task 1005, which it was not given or which has ended"},
                                         Lie{2, "task 8, which it has answered before"},
                                         Lie{3, "of 100 bytes, but its peer 0 can take 1 tasks and 99 bytes"},
                                         Lie{4, "whose time comes only in 50 ns"}),
                         [](const testing::TestParamInfo<Lie>& param) {
                           return "Lie" + std::to_string(param.param.priority);
                         });

TEST_F(PluginRegistryTest, TransportThatFailsOpen) {
  absl::StatusOr<Transport> transport = registry_.OpenTransport("failsopen", "127.0.0.1");
  EXPECT_EQ(transport.status(),
            absl::UnavailableError("transport \"failsopen\" could not be opened: the network is on strike"));
  EXPECT_EQ(lines_, std::vector<std::string>{"opening will fail"});
}

TEST_F(PluginRegistryTest, TransportThatMissesItsHardware) {
  absl::StatusOr<Transport> transport = registry_.OpenTransport("failsprobe", "");
  EXPECT_EQ(transport.status(),
            absl::NotFoundError("transport \"failsprobe\" (from BYTEPS_TRANSPORT): it cannot be used "
                                "here: no device named mlx5_7. BYTEPS_TRANSPORT=auto takes the best there is"));
}

extern "C" int32_t BuiltinScheduler(const bps_plugin_host*, const bps_scheduler_plugin** plugin) {
  static constexpr bps_scheduler_plugin kPlugin = {sizeof(bps_scheduler_plugin), minimal::Info("inside"),
                                                   &minimal::kTable};
  *plugin = &kPlugin;
  return BPS_OK;
}

TEST_F(PluginRegistryTest, BuiltinPluginsAreFoundAndListed) {
  EXPECT_FALSE(registry_.FindScheduler("inside").ok());
  registry_.RegisterBuiltin(BuiltinScheduler);
  absl::StatusOr<const bps_scheduler_plugin*> plugin = registry_.FindScheduler("inside");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_STREQ((*plugin)->info.name, "inside");
  EXPECT_THAT(ErrorOf("outside", absl::StatusCode::kNotFound), HasSubstr("inside"));
}

TEST_F(PluginRegistryTest, AutoIsTheFirstSchedulerThatIsThere) {
  EXPECT_THAT(ErrorOf("auto", absl::StatusCode::kNotFound),
              AllOf(HasSubstr("neither credit nor priority nor fifo"), HasSubstr("libbyteps_scheduler_credit.so")));
  const auto automatic = [this] { return std::string((*registry_.FindScheduler("Auto"))->info.name); };
  registry_.RegisterBuiltin(bps_scheduler_plugin_v1_fifo);
  EXPECT_EQ(automatic(), "fifo");
  EXPECT_EQ(automatic(), "fifo");
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("auto takes fifo"), HasSubstr("credit, the default, was not found"),
                                        HasSubstr("libbyteps_scheduler_credit.so"))));
  registry_.RegisterBuiltin(bps_scheduler_plugin_v1_credit);
  EXPECT_EQ(automatic(), "credit");
  EXPECT_EQ(lines_.size(), 1u);
  EXPECT_FALSE(registry_.FindScheduler("priority").ok());
}

TEST_F(PluginRegistryTest, ListSaysWhichAreUsableAndWhyNot) {
  bool minimal = false, broken = false, absent = false;
  for (const PluginListing& listing : registry_.List()) {
    if (listing.name == "minimal") {
      minimal = listing.usable.ok() && listing.kind == "scheduler" && listing.path == PathOf("minimal") &&
                listing.description == "for tests";
    }
    if (listing.name == "major") broken = !listing.usable.ok();
    if (listing.name == "failsprobe") absent = !listing.usable.ok() && listing.kind == "transport";
  }
  EXPECT_TRUE(minimal);
  EXPECT_TRUE(broken);
  EXPECT_TRUE(absent);
}

extern "C" int32_t DeviceWithoutCopies(const bps_plugin_host* host, const bps_device_plugin** plugin) {
  static bps_device_plugin broken;
  static bps_device_table table;
  bps_device_plugin_v1_fake(host, plugin);
  broken = **plugin;
  table = *broken.table;
  table.copy_to_host = nullptr;
  table.struct_size = offsetof(bps_device_table, synchronize);
  broken.table = &table;
  *plugin = &broken;
  return BPS_OK;
}

TEST_F(PluginRegistryTest, DevicesAreAKindOfTheirOwn) {
  const absl::Status absent = registry_.FindDevice("fake").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()), HasSubstr("device \"fake\" (from BYTEPS_DEVICE) could not be found"));
  registry_.RegisterBuiltin(bps_device_plugin_v1_fake);
  absl::StatusOr<const bps_device_plugin*> plugin = registry_.FindDevice("FAKE");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_STREQ((*plugin)->info.name, "fake");
  EXPECT_FALSE(registry_.FindScheduler("fake").ok());
}

TEST_F(PluginRegistryTest, ADeviceThatLacksFunctionsIsRefused) {
  registry_.RegisterBuiltin(DeviceWithoutCopies);
  EXPECT_THAT(std::string(registry_.FindDevice("fake").status().message()),
              HasSubstr("lacks the required: copy_to_host, synchronize"));
}

// The first file that exists counts; a broken one is an error, not passed over.
TEST(PluginPathTest, EarlierFoldersWin) {
  const std::string first = std::string(std::getenv("TEST_TMPDIR")) + "/first";
  ASSERT_EQ(std::system(("mkdir -p " + first + " && echo junk > " + first + "/libbyteps_scheduler_minimal.so").c_str()),
            0);
  Logger log;
  Config before = *Config::Make({{"BYTEPS_PLUGIN_PATH", "/does/not/exist:" + first + ":" + Folder()}});
  EXPECT_THAT(std::string(PluginRegistry(before, log).FindScheduler("minimal").status().message()),
              HasSubstr(first + "/libbyteps_scheduler_minimal.so: "));
  Config after = *Config::Make({{"BYTEPS_PLUGIN_PATH", Folder() + "::" + first}});
  EXPECT_TRUE(PluginRegistry(after, log).FindScheduler("minimal").ok());
}

}  // namespace
}  // namespace byteps
