#include "core/config/config.h"

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "core/config/knob_value.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

Config MakeOrDie(const Environment& environment, const Environment& arguments = {}) {
  absl::StatusOr<Config> config = Config::Make(environment, arguments);
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

std::string ErrorOf(const Environment& environment, const Environment& arguments = {}) {
  absl::StatusOr<Config> config = Config::Make(environment, arguments);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

// ---- The table itself ----

TEST(KnobsTest, NamesAndAliasesAreUniqueAndDefaultsParse) {
  std::set<std::string> names;
  for (const Knob& knob : kKnobs) {
    SCOPED_TRACE(knob.name);
    EXPECT_TRUE(names.insert(knob.name).second);
    if (knob.alias != nullptr) {
      EXPECT_TRUE(names.insert(knob.alias).second);
    }
    if (knob.alias_off != nullptr) {
      EXPECT_TRUE(names.insert(knob.alias_off).second);
    }
    if (knob.fallback != nullptr) {
      absl::StatusOr<KnobValue> value = ParseKnob(knob, knob.fallback);
      EXPECT_TRUE(value.ok()) << value.status();
    }
    EXPECT_NE(knob.readers, 0u);
    EXPECT_STRNE(knob.meaning, "");
    if (knob.type == KnobType::kDuration) {
      EXPECT_NE(UnitNanoseconds(knob.unit), 0);
    }
    EXPECT_EQ(knob.type == KnobType::kEnum, std::string_view(knob.choices) != "");
    EXPECT_LE(knob.min, knob.max);
  }
}

// Horovod's three: a time, a switch, and a time whose 0 means that nothing ends.
TEST(ConfigTest, StallVariablesOfHorovodMeanWhatTheyMeanThere) {
  const auto warning = [](const Environment& environment) {
    return MakeOrDie(environment).GetDuration("BYTEPS_STALL_WARNING");
  };
  EXPECT_EQ(warning({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "7"}}), std::chrono::seconds(7));
  EXPECT_EQ(warning({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "7"}, {"HOROVOD_STALL_CHECK_DISABLE", "1"}}),
            std::chrono::seconds(0));
  EXPECT_EQ(warning({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "7"}, {"HOROVOD_STALL_CHECK_DISABLE", "0"}}),
            std::chrono::seconds(7));
  EXPECT_EQ(warning({{"BYTEPS_STALL_WARNING", "9"}, {"HOROVOD_STALL_CHECK_DISABLE", "1"}}), std::chrono::seconds(9));
  EXPECT_NE(ErrorOf({{"HOROVOD_STALL_CHECK_DISABLE", "perhaps"}}, {}).find("HOROVOD_STALL_CHECK_DISABLE=perhaps"),
            std::string::npos);
  const auto timeout = [](const Environment& environment) {
    return MakeOrDie(environment).GetDuration("BYTEPS_OP_TIMEOUT");
  };
  EXPECT_EQ(timeout({{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "30"}}), std::chrono::seconds(30));
  EXPECT_EQ(timeout({{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0"}}), timeout({}));
  EXPECT_EQ(timeout({{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "30"}, {"BYTEPS_OP_TIMEOUT", "40"}}),
            std::chrono::seconds(40));
}

// Every variable that the documents of BytePS 0.2.5 mention.
TEST(KnobsTest, KeepsTheDocumentedVariablesOfBytePs) {
  std::set<std::string> names;
  for (const Knob& knob : kKnobs) names.insert(knob.name);
  for (const char* name : {"DMLC_ROLE",
                           "DMLC_NUM_WORKER",
                           "DMLC_NUM_SERVER",
                           "DMLC_WORKER_ID",
                           "DMLC_PS_ROOT_URI",
                           "DMLC_PS_ROOT_PORT",
                           "BYTEPS_LOCAL_RANK",
                           "BYTEPS_LOCAL_SIZE",
                           "BYTEPS_FORCE_DISTRIBUTED",
                           "DMLC_INTERFACE",
                           "BYTEPS_PARTITION_BYTES",
                           "BYTEPS_PCIE_SWITCH_SIZE",
                           "BYTEPS_NCCL_GROUP_SIZE",
                           "BYTEPS_NCCL_NUM_RINGS",
                           "BYTEPS_ENABLE_ASYNC",
                           "BYTEPS_DEBUG_SAMPLE_TENSOR",
                           "BYTEPS_LOG_LEVEL",
                           "BYTEPS_TRACE_ON",
                           "BYTEPS_TRACE_START_STEP",
                           "BYTEPS_TRACE_END_STEP",
                           "BYTEPS_TRACE_DIR",
                           "BYTEPS_SERVER_ENGINE_THREAD",
                           "BYTEPS_SERVER_ENABLE_SCHEDULE",
                           "NVIDIA_VISIBLE_DEVICES",
                           "BYTEPS_NUMA_ON",
                           "BYTEPS_VISIBLE_CPU_CORES",
                           "BYTEPS_NUMA_DEFAULT_QUOTA",
                           "BYTEPS_CPU_BLACKLIST",
                           "BYTEPS_MULTITHREADED_CPU",
                           "BYTEPS_ENABLE_GDB",
                           "DMLC_ENABLE_RDMA",
                           "PS_VERBOSE",
                           "BYTEPS_ENABLE_IPC"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

TEST(ConfigTest, ATextThatIsTooLongIsNamedAndNotRepeated) {
  for (const char* name : {"BYTEPS_HOST_ID", "BYTEPS_JOB_ID"}) {
    const absl::Status status = Config::Make({{name, std::string(100'000, 'x')}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string message(status.message());
    EXPECT_EQ(message.find(std::string(name) + "=xxx"), 0u) << message;
    EXPECT_NE(message.find("... (100000 bytes) is not accepted: expected text of at most 256 bytes"), std::string::npos)
        << message;
    EXPECT_LT(message.size(), 1000u);
    EXPECT_TRUE(Config::Make({{name, std::string(256, 'x')}}).ok());
  }
}

// ---- Values ----

struct Text {
  const char* variable;
  const char* text;
  int64_t number;  // -7: not accepted
};

class KnobValueTest : public testing::TestWithParam<Text> {};

TEST_P(KnobValueTest, Parses) {
  const Text& test = GetParam();
  for (const Knob& knob : kKnobs) {
    if (std::string_view(knob.name) != test.variable) continue;
    absl::StatusOr<KnobValue> value = ParseKnob(knob, test.text);
    if (test.number != -7) {
      ASSERT_TRUE(value.ok()) << value.status();
      EXPECT_EQ(value->number, test.number);
      return;
    }
    ASSERT_FALSE(value.ok()) << value->number;
    const std::string message(value.status().message());
    EXPECT_EQ(message.find(std::string(test.variable) + "=" + test.text), 0u) << message;
    EXPECT_NE(message.find("expected " + KnobAccepts(knob)), std::string::npos) << message;
    return;
  }
  FAIL() << "no knob " << test.variable;
}

INSTANTIATE_TEST_SUITE_P(
    Table, KnobValueTest,
    testing::Values(
        // whole numbers
        Text{"DMLC_NUM_WORKER", "3", 3}, Text{"DMLC_NUM_WORKER", " 3 ", 3}, Text{"DMLC_NUM_WORKER", "+3", 3},
        Text{"DMLC_NUM_WORKER", "0", -7}, Text{"DMLC_NUM_WORKER", "-1", -7}, Text{"DMLC_NUM_WORKER", "3x", -7},
        Text{"DMLC_NUM_WORKER", "3.5", -7}, Text{"DMLC_NUM_WORKER", "0x10", -7}, Text{"DMLC_NUM_WORKER", "two", -7},
        Text{"DMLC_NUM_WORKER", "99999999999999999999", -7}, Text{"DMLC_NUM_WORKER", "+-3", -7},
        Text{"DMLC_NUM_WORKER", "1K", -7}, Text{"DMLC_RANK", "-1", -1}, Text{"DMLC_RANK", "-2", -7},
        Text{"DMLC_PS_ROOT_PORT", "65535", 65535}, Text{"DMLC_PS_ROOT_PORT", "65536", -7},
        // bytes
        Text{"BYTEPS_PARTITION_BYTES", "4096000", 4096000}, Text{"BYTEPS_PARTITION_BYTES", "64K", 65536},
        Text{"BYTEPS_PARTITION_BYTES", "64 KiB", 65536}, Text{"BYTEPS_PARTITION_BYTES", "4m", 4 << 20},
        Text{"BYTEPS_PARTITION_BYTES", "1GiB", 1 << 30}, Text{"BYTEPS_PARTITION_BYTES", "2T", int64_t{2} << 40},
        Text{"BYTEPS_PARTITION_BYTES", "8B", 8}, Text{"BYTEPS_PARTITION_BYTES", "abc", -7},
        Text{"BYTEPS_PARTITION_BYTES", "0", -7}, Text{"BYTEPS_PARTITION_BYTES", "64KB", -7},
        Text{"BYTEPS_PARTITION_BYTES", "K", -7}, Text{"BYTEPS_PARTITION_BYTES", "9999999T", -7},
        Text{"BYTEPS_PARTITION_BYTES", "-1", -7},
        // the largest element must fit, since none is cut
        Text{"BYTEPS_PARTITION_BYTES", "3", -7}, Text{"BYTEPS_PARTITION_BYTES", "7", -7},
        Text{"BYTEPS_PARTITION_BYTES", "8", 8}, Text{"BYTEPS_PARTITION_BYTES", "1001", 1001},
        // partitions, or bytes with a unit
        Text{"BYTEPS_SCHEDULING_CREDIT", "-1", -7}, Text{"BYTEPS_SCHEDULING_CREDIT", "many", -7},
        Text{"BYTEPS_SCHEDULING_CREDIT", "4X", -7}, Text{"BYTEPS_SCHEDULING_CREDIT", "1.5", -7},
        Text{"BYTEPS_SCHEDULING_CREDIT", "-4M", -7},
        // durations, in nanoseconds
        Text{"BYTEPS_OP_TIMEOUT", "600", 600'000'000'000}, Text{"BYTEPS_OP_TIMEOUT", "1500ms", 1'500'000'000},
        Text{"BYTEPS_OP_TIMEOUT", "2 m", 120'000'000'000}, Text{"BYTEPS_OP_TIMEOUT", "1h", 3600'000'000'000},
        Text{"BYTEPS_OP_TIMEOUT", "0", -7}, Text{"BYTEPS_OP_TIMEOUT", "500ms", -7},
        Text{"BYTEPS_OP_TIMEOUT", "1 year", -7}, Text{"BYTEPS_OP_TIMEOUT", "9999999999999", -7},
        Text{"BYTEPS_JOB_LINGER", "-1", -1'000'000'000}, Text{"BYTEPS_JOB_LINGER", "-2", -7},
        Text{"BYTEPS_SPIN_US", "20", 20'000}, Text{"BYTEPS_SPIN_US", "1ms", 1'000'000},
        // booleans
        Text{"BYTEPS_FORCE_DISTRIBUTED", "1", 1}, Text{"BYTEPS_FORCE_DISTRIBUTED", "True", 1},
        Text{"BYTEPS_FORCE_DISTRIBUTED", "OFF", 0}, Text{"BYTEPS_FORCE_DISTRIBUTED", "no", 0},
        Text{"BYTEPS_FORCE_DISTRIBUTED", "2", -7}, Text{"BYTEPS_FORCE_DISTRIBUTED", "maybe", -7},
        // enumerations: the index of the choice
        Text{"DMLC_ROLE", "worker", 0}, Text{"DMLC_ROLE", "Scheduler", 2}, Text{"DMLC_ROLE", "boss", -7},
        Text{"DMLC_ROLE", "work", -7}, Text{"BYTEPS_LOG_LEVEL", "WARN", 3}, Text{"BYTEPS_LOG_LEVEL", "Warning", 3}));

// ---- Config ----

TEST(ConfigTest, DefaultsWithoutAnEnvironment) {
  Config config = MakeOrDie({});
  EXPECT_EQ(config.GetString("BYTEPS_TRANSPORT"), "auto");
  EXPECT_EQ(config.GetInt("DMLC_NUM_WORKER"), 1);
  EXPECT_EQ(config.GetDuration("BYTEPS_OP_TIMEOUT"), seconds(600));
  // A worker that starts a minute late, and has to import its framework.
  EXPECT_EQ(config.GetDuration("BYTEPS_START_TIMEOUT"), seconds(120));
  EXPECT_FALSE(config.GetBool("BYTEPS_FORCE_DISTRIBUTED"));
  EXPECT_FALSE(config.Has("BYTEPS_PARTITION_BYTES"));
  EXPECT_EQ(config.GetInt("BYTEPS_PARTITION_BYTES"), 0);
  EXPECT_TRUE(config.Has("BYTEPS_TRANSPORT"));
  EXPECT_FALSE(config.IsSet("BYTEPS_TRANSPORT"));
  EXPECT_EQ(config.Source("BYTEPS_TRANSPORT"), ConfigSource::kDefault);
  EXPECT_TRUE(config.warnings().empty());
}

TEST(ConfigTest, ArgumentsBeatVariablesBeatAliasesBeatDefaults) {
  Environment environment = {{"HOROVOD_START_TIMEOUT", "7"}};
  Config config = MakeOrDie(environment);
  EXPECT_EQ(config.GetDuration("BYTEPS_START_TIMEOUT"), seconds(7));
  EXPECT_EQ(config.Source("BYTEPS_START_TIMEOUT"), ConfigSource::kAlias);

  environment["BYTEPS_START_TIMEOUT"] = "8";
  config = MakeOrDie(environment);
  EXPECT_EQ(config.GetDuration("BYTEPS_START_TIMEOUT"), seconds(8));
  EXPECT_EQ(config.Source("BYTEPS_START_TIMEOUT"), ConfigSource::kEnvironment);

  config = MakeOrDie(environment, {{"BYTEPS_START_TIMEOUT", "1500ms"}});
  EXPECT_EQ(config.GetDuration("BYTEPS_START_TIMEOUT"), milliseconds(1500));
  EXPECT_EQ(config.Source("BYTEPS_START_TIMEOUT"), ConfigSource::kArgument);
}

TEST(ConfigTest, EmptyIsUnset) {
  Config config = MakeOrDie({{"BYTEPS_TRANSPORT", ""}, {"DMLC_NUM_WORKER", "  "}, {"HOROVOD_START_TIMEOUT", ""}});
  EXPECT_EQ(config.GetString("BYTEPS_TRANSPORT"), "auto");
  EXPECT_FALSE(config.IsSet("DMLC_NUM_WORKER"));
  EXPECT_FALSE(config.IsSet("BYTEPS_START_TIMEOUT"));
}

TEST(ConfigTest, OneErrorNamesEveryWrongValue) {
  const std::string error =
      ErrorOf({{"BYTEPS_PARTITION_BYTES", "abc"}, {"HOROVOD_LOG_LEVEL", "loud"}, {"DMLC_NUM_SERVER", "1"}},
              {{"BYTEPS_OP_TIMEOUT", "soon"}, {"BYTEPS_NO_SUCH", "1"}});
  EXPECT_NE(error.find("BYTEPS_PARTITION_BYTES=abc is not accepted"), std::string::npos) << error;
  EXPECT_NE(error.find("HOROVOD_LOG_LEVEL=loud (for BYTEPS_LOG_LEVEL) is not accepted: expected one of trace"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("BYTEPS_OP_TIMEOUT=soon"), std::string::npos) << error;
  EXPECT_NE(error.find("BYTEPS_NO_SUCH is not a variable"), std::string::npos) << error;
  EXPECT_EQ(error.find("DMLC_NUM_SERVER"), std::string::npos) << error;
}

TEST(ConfigTest, AsynchronousTrainingIsAskedFor) {
  EXPECT_TRUE(MakeOrDie({{"BYTEPS_ENABLE_ASYNC", "yes"}}).GetBool("BYTEPS_ENABLE_ASYNC"));
  EXPECT_TRUE(MakeOrDie({{"BYTEPS_ENABLE_ASYNC", "0"}, {"BYTEPS_STALENESS", "3"}}).warnings().empty());
  EXPECT_FALSE(MakeOrDie({}).Has("BYTEPS_STALENESS"));
  EXPECT_NE(ErrorOf({{"BYTEPS_STALENESS", "-1"}}).find("BYTEPS_STALENESS=-1 is not accepted"), std::string::npos);
}

TEST(ConfigTest, WarnsOncePerVariableWithoutEffect) {
  Config config = MakeOrDie({{"BYTEPS_DEBUG_SAMPLE_TENSOR", "1"},
                             {"BYTEPS_PCIE_SWITCH_SIZE", "8"},  // its default
                             {"PS_RESEND", "1"},
                             {"BYTEPS_TELEMETRY_INTERVAL", "5"},
                             {"BYTEPS_OP_TIMEOUT", "5"}});
  ASSERT_EQ(config.warnings().size(), 3u);
  EXPECT_EQ(config.warnings()[0].find("BYTEPS_DEBUG_SAMPLE_TENSOR is set, but this release does not act on it"), 0u);
  EXPECT_EQ(config.warnings()[1].find("BYTEPS_TELEMETRY_INTERVAL is set"), 0u);
  EXPECT_EQ(config.warnings()[2].find("PS_RESEND is set, but has no meaning"), 0u);

  std::vector<std::string> lines;
  LogOptions options;
  options.sink = [](void* user, int32_t level, const char*, int32_t, const char* message) {
    EXPECT_EQ(level, BPS_LOG_WARNING);
    static_cast<std::vector<std::string>*>(user)->push_back(message);
  };
  options.user = &lines;
  config.LogWarnings(Logger(options));
  EXPECT_EQ(lines, config.warnings());
}

TEST(ConfigTest, ACreditThatIsNotReadIsNoticed) {
  for (const std::string scheduler : {"fifo", "priority"}) {
    const Config config = MakeOrDie({{"BYTEPS_SCHEDULER", scheduler}, {"BYTEPS_SCHEDULING_CREDIT", "4"}});
    ASSERT_EQ(config.warnings().size(), 1u);
    EXPECT_EQ(config.warnings()[0].find("BYTEPS_SCHEDULING_CREDIT is set, but has no effect with BYTEPS_SCHEDULER=" +
                                        scheduler + ": credit is the scheduler"),
              0u)
        << config.warnings()[0];
    EXPECT_TRUE(MakeOrDie({{"BYTEPS_SCHEDULER", scheduler}}).warnings().empty());
  }
  // The default is credit, so a credit alone selects it; of a scheduler from elsewhere it is not known what it reads.
  EXPECT_TRUE(MakeOrDie({{"BYTEPS_SCHEDULING_CREDIT", "4"}}).warnings().empty());
  EXPECT_EQ(MakeOrDie({{"BYTEPS_SCHEDULING_CREDIT", "4"}}).GetString("BYTEPS_SCHEDULER"), "auto");
  for (const std::string scheduler : {"auto", "credit", "/opt/libmine.so"}) {
    EXPECT_TRUE(MakeOrDie({{"BYTEPS_SCHEDULER", scheduler}, {"BYTEPS_SCHEDULING_CREDIT", "4"}}).warnings().empty());
  }
}

TEST(ConfigTest, MisspeltNamesAreNoticed) {
  Config config = MakeOrDie({{"BYTEPS_PARTITON_BYTES", "1"}, {"DMLC_SOMETHING_ELSE_ENTIRELY", "1"}, {"PS_X", "1"}});
  ASSERT_EQ(config.warnings().size(), 2u);
  EXPECT_EQ(config.warnings()[0],
            "BYTEPS_PARTITON_BYTES is not a variable of BytePS; did you mean BYTEPS_PARTITION_BYTES?");
  EXPECT_EQ(config.warnings()[1], "DMLC_SOMETHING_ELSE_ENTIRELY is not a variable of BytePS");
}

TEST(ConfigTest, SecretsAreNeitherShownNorGivenToPlugins) {
  Config config = MakeOrDie({{"BYTEPS_JOB_TOKEN", "hunter2"}});
  EXPECT_EQ(config.GetString("BYTEPS_JOB_TOKEN"), "hunter2");
  EXPECT_EQ(config.PluginValue("BYTEPS_JOB_TOKEN"), nullptr);
  for (size_t i = 0; i < kKnobCount; ++i) EXPECT_EQ(config.ShownAt(i).find("hunter2"), std::string::npos);
}

TEST(ConfigTest, PluginsSeeTextThroughTheHostTable) {
  Config config = MakeOrDie({{"BYTEPS_SPIN_US", "75"}, {"DMLC_ROLE", "SERVER"}});
  const bps_plugin_host* host = PluginHost();
  const void* token = static_cast<const PluginConfig*>(&config);
  EXPECT_STREQ(host->config(token, "BYTEPS_SPIN_US"), "75");
  EXPECT_STREQ(host->config(token, "DMLC_ROLE"), "server");
  EXPECT_STREQ(host->config(token, "BYTEPS_INLINE_BYTES"), "8192");
  EXPECT_EQ(host->config(token, "BYTEPS_PARTITION_BYTES"), nullptr);
  EXPECT_EQ(host->config(token, "NO_SUCH"), nullptr);
}

// Plugins read digits: however a number was written, all that read it read the same.
TEST(ConfigTest, PluginsNeedNotKnowHowNumbersMayBeWritten) {
  const struct {
    const char *name, *text, *plain;
  } cases[] = {
      {"BYTEPS_TCP_LANES", " +2 ", "2"},
      {"BYTEPS_TCP_LANE_BYTES", "64K", "65536"},
      {"BYTEPS_TCP_LANE_BYTES", "1 MiB", "1048576"},
      {"BYTEPS_SCHEDULING_CREDIT", "+4", "4"},
      {"BYTEPS_SCHEDULING_CREDIT", "-0", "0"},
      {"BYTEPS_SCHEDULING_CREDIT", "16 M", "16777216B"},
      {"BYTEPS_SCHEDULING_CREDIT", "100b", "100B"},
      {"BYTEPS_PEER_TIMEOUT", "+5", "5"},
      {"BYTEPS_PEER_TIMEOUT", "2 M", "120"},
      {"BYTEPS_PEER_TIMEOUT", "1500MS", "1500ms"},
      {"BYTEPS_HEARTBEAT_INTERVAL", "7us", "7us"},
      {"BYTEPS_JOB_LINGER", "-1", "-1"},
      {"BYTEPS_SPIN_US", "1ms", "1000"},
      {"BYTEPS_SHM_PROCESS_VM", "Off", "0"},
      {"BYTEPS_RDMA_DEVICE", " mlx5_0:1 ", "mlx5_0:1"},
  };
  for (const auto& [name, text, plain] : cases) {
    const Config config = MakeOrDie({{name, text}});
    EXPECT_STREQ(config.PluginValue(name), plain) << name << "=" << text;
  }
}

TEST(ConfigTest, LogOptions) {
  LogOptions options =
      MakeOrDie({{"BYTEPS_LOG_LEVEL", "Debug"}, {"PS_VERBOSE", "2"}, {"BYTEPS_LOG_HIDE_TIME", "1"}}).GetLogOptions();
  EXPECT_EQ(options.level, LogLevel::kDebug);
  EXPECT_EQ(options.verbose, 2);
  EXPECT_TRUE(options.hide_time);
  EXPECT_EQ(MakeOrDie({}).GetLogOptions().level, LogLevel::kWarning);
  EXPECT_EQ(MakeOrDie({{"BYTEPS_LOG_LEVEL", "warn"}}).GetLogOptions().level, LogLevel::kWarning);
}

TEST(ConfigTest, SnapshotTakesWhatConcernsUsAndChangesNothing) {
  ASSERT_EQ(setenv("BYTEPS_OP_TIMEOUT", "12", 1), 0);
  ASSERT_EQ(setenv("BYTEPS_TYPO", "x", 1), 0);
  ASSERT_EQ(setenv("HOROVOD_LOG_LEVEL", "info", 1), 0);
  ASSERT_EQ(setenv("SOMEBODY_ELSE", "x", 1), 0);
  const Environment environment = ReadEnvironment();
  EXPECT_EQ(environment.at("BYTEPS_OP_TIMEOUT"), "12");
  EXPECT_EQ(environment.count("BYTEPS_TYPO"), 1u);
  EXPECT_EQ(environment.count("HOROVOD_LOG_LEVEL"), 1u);
  EXPECT_EQ(environment.count("SOMEBODY_ELSE"), 0u);
  MakeOrDie(environment, {{"BYTEPS_OP_TIMEOUT", "13"}});
  EXPECT_STREQ(std::getenv("BYTEPS_OP_TIMEOUT"), "12");
  unsetenv("BYTEPS_OP_TIMEOUT");
  unsetenv("BYTEPS_TYPO");
  unsetenv("HOROVOD_LOG_LEVEL");
  unsetenv("SOMEBODY_ELSE");
}

// A worker is not dead because it did not run for a millisecond.
TEST(ConfigTest, APeerTimeoutThatCannotBeKeptIsRefused) {
  const absl::Status status = Config::Make({{"BYTEPS_PEER_TIMEOUT", "1ms"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("0, or at least 100 ms"), std::string::npos) << status;
  for (const char* value : {"0", "100ms", "30"}) {
    EXPECT_TRUE(Config::Make({{"BYTEPS_PEER_TIMEOUT", value}}).ok()) << value;
  }
}

}  // namespace
}  // namespace byteps
