// The timeline through the C ABI, with a worker alone. Whole jobs: tests/e2e, tests/frameworks.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "abi/byteps.h"
#include "tests/core/c_api.h"

namespace byteps {
namespace {

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool Has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }
bool IsWhole(const std::string& text) { return text.size() > 3 && text.substr(text.size() - 3) == "\n]\n"; }

class SessionTimelineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // The environment of whoever runs the tests is not the subject.
    for (const char* name :
         {"DMLC_NUM_WORKER", "DMLC_WORKER_ID", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "BYTEPS_FORCE_DISTRIBUTED",
          "BYTEPS_TRACE_ON", "BYTEPS_TRACE_DIR", "BYTEPS_TRACE_START_STEP", "BYTEPS_TRACE_END_STEP", "BYTEPS_TIMELINE",
          "HOROVOD_TIMELINE"}) {
      ::unsetenv(name);
    }
    std::string folder = ::testing::TempDir() + "timeline.XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static SessionOwner Open() {
    const bps_open_args args = BPS_OPEN_ARGS_INIT;
    bps_session* session = nullptr;
    const Said said = bps_open(&args, &session);
    EXPECT_TRUE(said.ok()) << said;
    return SessionOwner(session);
  }
  static void PushPull(bps_session* session, const std::string& name) {
    float value[2] = {1, 2};
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = DeclareTensor(session, name, BPS_FLOAT32, {2});
    args.input = args.output = value;
    bps_request* request = nullptr;
    ASSERT_SAID_OK(bps_push_pull(session, &args, &request));
    const RequestOwner owner(request);
    ASSERT_SAID_OK(bps_wait(request, 0));
  }

  std::filesystem::path folder_;
};

TEST_F(SessionTimelineTest, RecordsWhatIsSubmittedBetweenStartAndStop) {
  const SessionOwner session = Open();
  const std::filesystem::path path = folder_ / "t.json";
  EXPECT_SAID_OK(bps_timeline_mark(session.get(), "before", BPS_TIMELINE_MOMENT));
  PushPull(session.get(), "before");
  ASSERT_SAID_OK(bps_timeline_start(session.get(), path.c_str(), 0));
  EXPECT_SAID_OK(bps_timeline_mark(session.get(), "step", BPS_TIMELINE_BEGIN));
  PushPull(session.get(), "during");
  EXPECT_SAID_OK(bps_timeline_mark(session.get(), nullptr, BPS_TIMELINE_END));
  bps_collective_args args = BPS_COLLECTIVE_ARGS_INIT;
  args.kind = BPS_ALL_GATHER;
  args.name = "tokens";
  args.dtype = BPS_INT32;
  const int64_t shape[] = {1};
  const int32_t token = 5;
  args.shape = shape;
  args.ndim = 1;
  args.input = &token;
  bps_request* request = nullptr;
  ASSERT_SAID_OK(bps_collective(session.get(), &args, &request));
  const RequestOwner owner(request);
  ASSERT_SAID_OK(bps_wait(request, 0));
  ASSERT_SAID_OK(bps_timeline_stop(session.get()));
  PushPull(session.get(), "after");
  const std::string text = ReadAll(path);
  EXPECT_TRUE(IsWhole(text)) << text;
  EXPECT_FALSE(Has(text, "before") || Has(text, "after")) << text;
  for (const char* name : {"\"push_pull\"", "\"during\"", "\"step\"", "\"all_gather\"", "\"tokens\"", "\"SUBMIT\""}) {
    EXPECT_TRUE(Has(text, name)) << name << " is not in " << text;
  }
  const Said none = bps_timeline_stop(session.get());
  EXPECT_EQ(none.code, BPS_FAILED_PRECONDITION);
  EXPECT_TRUE(none.Contains("no timeline is being written")) << none;
}

TEST_F(SessionTimelineTest, RefusesWhatItCannotDo) {
  const SessionOwner session = Open();
  const std::string path = folder_ / "t.json";
  EXPECT_EQ(Said(bps_timeline_start(nullptr, path.c_str(), 0)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_timeline_start(session.get(), nullptr, 0)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_timeline_start(session.get(), "", 0)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_timeline_start(session.get(), folder_.c_str(), 0)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_timeline_stop(nullptr)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_timeline_mark(session.get(), "x", 3)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_timeline_mark(session.get(), "x", -1)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_timeline_mark(session.get(), nullptr, BPS_TIMELINE_BEGIN)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_timeline_mark(session.get(), "\xff", BPS_TIMELINE_MOMENT)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_timeline_mark(nullptr, "x", BPS_TIMELINE_MOMENT)).code, BPS_INVALID_ARGUMENT);
  ASSERT_SAID_OK(bps_timeline_start(session.get(), path.c_str(), 0));
  const Said twice = bps_timeline_start(session.get(), path.c_str(), 0);
  EXPECT_EQ(twice.code, BPS_FAILED_PRECONDITION);
  EXPECT_TRUE(twice.Contains(path)) << twice;
  ASSERT_SAID_OK(bps_shutdown(session.get(), 0));
  EXPECT_SAID_OK(bps_timeline_stop(session.get()));
  EXPECT_EQ(Said(bps_timeline_start(session.get(), path.c_str(), 0)).code, BPS_FAILED_PRECONDITION);
}

TEST_F(SessionTimelineTest, ClosingEndsTheFile) {
  const std::filesystem::path path = folder_ / "t.json";
  {
    const SessionOwner session = Open();
    ASSERT_SAID_OK(bps_timeline_start(session.get(), path.c_str(), 0));
    PushPull(session.get(), "x");
  }
  const std::string text = ReadAll(path);
  EXPECT_TRUE(IsWhole(text)) << text;
  EXPECT_TRUE(Has(text, "\"x\"")) << text;
}

TEST_F(SessionTimelineTest, HorovodsVariableStartsOne) {
  const std::filesystem::path path = folder_ / "t.json";
  ::setenv("HOROVOD_TIMELINE", path.c_str(), 1);
  {
    const SessionOwner session = Open();
    PushPull(session.get(), "x");
  }
  EXPECT_TRUE(Has(ReadAll(path), "\"x\""));
  std::filesystem::remove(path);
  ::setenv("HOROVOD_TIMELINE", "DYNAMIC", 1);
  {
    const SessionOwner session = Open();
    PushPull(session.get(), "x");
    EXPECT_FALSE(std::filesystem::exists("DYNAMIC"));
    ASSERT_SAID_OK(bps_timeline_start(session.get(), path.c_str(), 0));
  }
  EXPECT_TRUE(IsWhole(ReadAll(path)));
}

TEST_F(SessionTimelineTest, SessionsOfOneProcessHaveFilesOfTheirOwn) {
  ::setenv("BYTEPS_TIMELINE", (folder_ / "t.json").c_str(), 1);
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  {
    const SessionOwner session = Open();
    args.name = "a/b";
    bps_session* other = nullptr;
    ASSERT_SAID_OK(bps_open(&args, &other));
    const SessionOwner owner(other);
    PushPull(session.get(), "x");
    PushPull(other, "y");
  }
  const std::string first = ReadAll(folder_ / "t.json"), second = ReadAll(folder_ / "t.a_b.json");
  EXPECT_TRUE(IsWhole(first) && Has(first, "\"x\"") && !Has(first, "\"y\"")) << first;
  EXPECT_TRUE(IsWhole(second) && Has(second, "\"y\"") && !Has(second, "\"x\"")) << second;
}

TEST_F(SessionTimelineTest, BytePSsVariablesChooseStepsAndFolder) {
  ::setenv("BYTEPS_TRACE_ON", "1", 1);
  ::setenv("BYTEPS_TRACE_DIR", (folder_ / "trace").c_str(), 1);
  ::setenv("BYTEPS_TRACE_START_STEP", "2", 1);
  ::setenv("BYTEPS_TRACE_END_STEP", "3", 1);
  {
    const SessionOwner session = Open();
    for (int step = 1; step <= 5; ++step) PushPull(session.get(), "x");
  }
  const std::string text = ReadAll(folder_ / "trace" / "0" / "comm.json");
  EXPECT_TRUE(IsWhole(text)) << text;
  for (int round = 0; round < 5; ++round) {
    const bool wanted = round == 1 || round == 2;
    EXPECT_EQ(Has(text, "\"round\":" + std::to_string(round) + ",\"bytes\""), wanted) << round << " in " << text;
  }
}

TEST_F(SessionTimelineTest, ASessionWhoseTimelineCannotBeWrittenDoesNotOpen) {
  const bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = nullptr;
  ::setenv("BYTEPS_TIMELINE", folder_.c_str(), 1);
  const Said folder = bps_open(&args, &session);
  EXPECT_EQ(folder.code, BPS_INVALID_ARGUMENT);
  EXPECT_TRUE(folder.Contains(folder_)) << folder;
  ::setenv("BYTEPS_TRACE_ON", "1", 1);
  ::setenv("BYTEPS_TRACE_START_STEP", "30", 1);
  const Said steps = bps_open(&args, &session);
  EXPECT_EQ(steps.code, BPS_INVALID_ARGUMENT);
  EXPECT_TRUE(steps.Contains("BYTEPS_TRACE_START_STEP is 30")) << steps;
}

}  // namespace
}  // namespace byteps
