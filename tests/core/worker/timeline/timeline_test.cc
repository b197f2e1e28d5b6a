#include "core/worker/timeline/timeline.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/worker/timeline/trace_text.h"

namespace byteps {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// How often `what` is there.
size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

class TimelineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "timeline.XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // The way of an operation of one part, through servers; times in microseconds from 1000.
  void Tell(Timeline* timeline, uint64_t operation, const std::string* name, uint64_t round = 0) const {
    if (!timeline->Wants(round, 1000'000)) return;
    TimelineRecord submitted{.event = TimelineEvent::kSubmitted, .operation = operation, .at = 1000'000};
    submitted.name = name;
    submitted.label = "push_pull";
    submitted.bytes = 40;
    submitted.number = round;
    timeline->Note(submitted);
    timeline->Note({.event = TimelineEvent::kBegun, .operation = operation, .at = 1010'000, .number = 1});
    timeline->Note({.event = TimelineEvent::kQueued, .operation = operation, .at = 1011'000, .bytes = 40, .number = 2});
    timeline->Note({.event = TimelineEvent::kPosted, .operation = operation, .at = 1020'000});
    timeline->Note({.event = TimelineEvent::kPushed, .operation = operation, .at = 1030'000});
    timeline->Note({.event = TimelineEvent::kHome, .operation = operation, .at = 1050'000});
    timeline->Note({.event = TimelineEvent::kEnded, .operation = operation, .at = 1060'000, .number = BPS_OK});
  }

  Logger log_{LogOptions{.level = LogLevel::kFatal}};
  std::string folder_;
  const std::string name_ = "layer \"1\"\\\n";
};

TEST_F(TimelineTest, IsOffUntilAsked) {
  Timeline timeline(&log_);
  EXPECT_FALSE(timeline.on());
  timeline.Note({.event = TimelineEvent::kMoment});
  timeline.Mark(TimelineEvent::kMoment, "nothing");
  EXPECT_EQ(timeline.Stop().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TimelineTest, WritesTheStagesOfAnOperation) {
  Timeline timeline(&log_);
  const std::string path = Path("a/b/timeline.json");
  ASSERT_TRUE(timeline.Start({.path = path, .rank = 3, .size = 8}).ok());
  Tell(&timeline, 7, &name_);
  ASSERT_TRUE(timeline.Stop().ok());
  EXPECT_FALSE(timeline.on());
  const std::string text = ReadAll(path);
  EXPECT_EQ(text.substr(0, 2), "[\n");
  EXPECT_EQ(text.substr(text.size() - 3), "\n]\n");
  EXPECT_EQ(Count(text, "rank 3 of 8"), 1u);
  EXPECT_EQ(Count(text, "\"layer \\\"1\\\"\\\\\\u000a\""), 5u);  // the row, the operation and its three stages
  const std::pair<const char*, int> stages[] = {
      {"SUBMIT", 10}, {"QUEUE", 9}, {"PUSH", 10}, {"SERVER", 20}, {"push_pull", 60}};
  for (const auto& [stage, microseconds] : stages) {
    const size_t at = text.find(std::string("{\"name\":\"") + stage + "\",\"ph\":\"X\"");
    ASSERT_NE(at, std::string::npos) << stage << " in " << text;
    const std::string line = text.substr(at, text.find('\n', at) - at);
    EXPECT_EQ(Count(line, "\"dur\":" + std::to_string(microseconds) + ","), 1u) << line;
  }
  EXPECT_EQ(Count(text, "\"outcome\":\"OK\""), 1u) << text;
  EXPECT_EQ(Count(text, "\"server\":2"), 3u);
}

TEST_F(TimelineTest, EndsWhatIsInFlight) {
  Timeline timeline(&log_);
  ASSERT_TRUE(timeline.Start({.path = Path("t.json")}).ok());
  TimelineRecord submitted{.event = TimelineEvent::kSubmitted, .operation = 1, .at = Now()};
  submitted.name = &name_;
  submitted.label = "push_pull";
  timeline.Note(submitted);
  timeline.Note({.event = TimelineEvent::kQueued, .part = 4, .operation = 1, .at = Now()});
  timeline.Mark(TimelineEvent::kSpanBegin, "step");
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = ReadAll(Path("t.json"));
  EXPECT_EQ(Count(text, "\"outcome\":\"in flight\""), 1u) << text;
  EXPECT_EQ(Count(text, "\"part\":4"), 1u) << text;
  EXPECT_EQ(Count(text, "\"ph\":\"B\""), 1u);
  EXPECT_EQ(Count(text, "\"ph\":\"E\""), 1u);
}

// Receives of one peer, say: events of a row must not overlap.
TEST_F(TimelineTest, OperationsOfANameThatOverlapHaveRowsOfTheirOwn) {
  Timeline timeline(&log_);
  ASSERT_TRUE(timeline.Start({.path = Path("t.json")}).ok());
  for (uint64_t operation = 1; operation <= 3; ++operation) {
    // The third comes when the first has ended.
    if (operation == 3) timeline.Note({.event = TimelineEvent::kEnded, .operation = 1, .at = Now()});
    TimelineRecord submitted{.event = TimelineEvent::kSubmitted, .operation = operation, .at = Now()};
    submitted.name = &name_;
    submitted.label = "receive";
    timeline.Note(submitted);
  }
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = ReadAll(Path("t.json"));
  EXPECT_EQ(Count(text, "\"thread_name\""), 2u) << text;
  EXPECT_EQ(Count(text, "(2)"), 1u) << text;
}

TEST_F(TimelineTest, RecordsTheRoundsOfItsWindow) {
  Timeline timeline(&log_);
  ASSERT_TRUE(timeline.Start({.path = Path("t.json"), .first_round = 2, .last_round = 3}).ok());
  EXPECT_FALSE(timeline.wants_now());
  for (uint64_t round = 0; round < 6; ++round) {
    Tell(&timeline, round + 1, &name_, round);
    timeline.Mark(TimelineEvent::kMoment, "step " + std::to_string(round));
  }
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = ReadAll(Path("t.json"));
  EXPECT_EQ(Count(text, "\"outcome\""), 2u) << text;
  EXPECT_EQ(Count(text, "\"step 2\""), 1u) << text;
  EXPECT_EQ(Count(text, "\"step 3\""), 1u);
  EXPECT_EQ(Count(text, "\"name\":\"step "), 2u);
}

// A name that comes late is in a round that others have been in long since.
TEST_F(TimelineTest, MarksWhereStepsBegin) {
  const std::string late = "late";
  for (const bool mark : {false, true}) {
    Timeline timeline(&log_);
    ASSERT_TRUE(timeline.Start({.path = Path("t.json"), .first_round = 1, .mark_steps = mark}).ok());
    for (uint64_t round = 0; round < 4; ++round) {
      Tell(&timeline, 2 * round, &name_, round);
      if (round > 1) Tell(&timeline, 2 * round + 1, &late, round - 1);
    }
    ASSERT_TRUE(timeline.Stop().ok());
    EXPECT_EQ(Count(ReadAll(Path("t.json")), "\"STEP\",\"ph\":\"i\""), mark ? 3u : 0u);
  }
}

TEST_F(TimelineTest, CountsAndTellsWhatWasDropped) {
  Timeline timeline(&log_, /*records=*/2);
  ASSERT_TRUE(timeline.Start({.path = Path("t.json")}).ok());
  const Time deadline = After(Now(), 60 * kSecond);
  while (timeline.dropped() < 3 && Now() < deadline) {
    for (int i = 0; i < 100; ++i) timeline.Note({.event = TimelineEvent::kSpanEnd});
  }
  const uint64_t dropped = timeline.dropped();
  EXPECT_GE(dropped, 3u);
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = ReadAll(Path("t.json"));
  EXPECT_EQ(Count(text, "\"dropped\":" + std::to_string(dropped)), 1u) << text;
}

TEST_F(TimelineTest, IsThereAgainAfterItsEnd) {
  Timeline timeline(&log_);
  for (const char* name : {"1.json", "2.json"}) {
    ASSERT_TRUE(timeline.Start({.path = Path(name)}).ok());
    const absl::Status again = timeline.Start({.path = Path("3.json")});
    EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(again.message().find(name), std::string::npos) << again;
    Tell(&timeline, 7, &name_);
    ASSERT_TRUE(timeline.Stop().ok());
    EXPECT_EQ(Count(ReadAll(Path(name)), "\"outcome\""), 1u);
  }
  EXPECT_FALSE(std::filesystem::exists(Path("3.json")));
}

TEST_F(TimelineTest, SaysWhyItCannotBeWritten) {
  Timeline timeline(&log_);
  std::ofstream(Path("file")) << "x";
  for (const std::string& path : {folder_, Path("file/below/t.json")}) {
    const absl::Status status = timeline.Start({.path = path});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(path), std::string::npos) << status;
  }
  EXPECT_FALSE(timeline.on());
}

TEST_F(TimelineTest, TwoDoNotWriteOneFile) {
  Timeline first(&log_), second(&log_);
  ASSERT_TRUE(first.Start({.path = Path("t.json")}).ok());
  Tell(&first, 7, &name_);
  const absl::Status status = second.Start({.path = Path("t.json")});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("another"), std::string::npos) << status;
  ASSERT_TRUE(first.Stop().ok());
  EXPECT_EQ(Count(ReadAll(Path("t.json")), "\"outcome\""), 1u);
  EXPECT_TRUE(second.Start({.path = Path("t.json")}).ok());
}

// A data loader's process, say, which outlives the timeline.
TEST_F(TimelineTest, AForkedChildDoesNotKeepTheFile) {
  Timeline timeline(&log_);
  ASSERT_TRUE(timeline.Start({.path = Path("t.json")}).ok());
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[1]);
    char byte;
    _exit(static_cast<int>(::read(ends[0], &byte, 1)));  // until the test has ended
  }
  ASSERT_TRUE(timeline.Stop().ok());
  const absl::Status again = timeline.Start({.path = Path("t.json")});
  EXPECT_TRUE(again.ok()) << again;
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(TimelineTest, ASpanEndsWhereItBeganAlsoAtTheEdgesOfTheWindow) {
  Timeline timeline(&log_);
  ASSERT_TRUE(timeline.Start({.path = Path("t.json"), .first_round = 1, .last_round = 1}).ok());
  Tell(&timeline, 1, &name_, 0);
  timeline.Mark(TimelineEvent::kSpanBegin, "before");
  Tell(&timeline, 2, &name_, 1);
  timeline.Mark(TimelineEvent::kSpanBegin, "inside");
  Tell(&timeline, 3, &name_, 2);
  timeline.Mark(TimelineEvent::kSpanBegin, "behind");
  timeline.Mark(TimelineEvent::kSpanEnd, "");  // of "behind"
  const Time end = Now();
  while (Now() / 1000 == end / 1000) continue;
  timeline.Mark(TimelineEvent::kSpanEnd, "");  // of "inside"
  timeline.Mark(TimelineEvent::kSpanEnd, "");  // of "before"
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = ReadAll(Path("t.json"));
  EXPECT_EQ(Count(text, "\"inside\",\"ph\":\"B\""), 1u) << text;
  EXPECT_EQ(Count(text, "\"ph\":\"B\""), 1u) << text;
  EXPECT_EQ(Count(text, "\"ph\":\"E\""), 1u) << text;
}

TEST_F(TimelineTest, TheReaderOfAPipeThatGoesIsAnError) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  const int reader = ::open(Path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  Timeline timeline(&log_);
  ASSERT_TRUE(timeline.Start({.path = Path("pipe")}).ok());
  ::close(reader);
  Tell(&timeline, 7, &name_);
  EXPECT_EQ(timeline.Stop().code(), absl::StatusCode::kUnavailable);
}

TEST_F(TimelineTest, ALostEndIsNotKeptForEver) {
  Timeline timeline(&log_, 1 << 18);
  std::vector<std::string> names;
  for (int i = 0; i < 64; ++i) names.push_back("layer" + std::to_string(i));
  ASSERT_TRUE(timeline.Start({.path = Path("t.json")}).ok());
  for (uint64_t operation = 0; operation <= TraceText::kOpenOperations; ++operation) {
    TimelineRecord submitted{.event = TimelineEvent::kSubmitted, .operation = operation, .at = Now()};
    submitted.name = &names[operation % names.size()];
    submitted.label = "push_pull";
    timeline.Note(submitted);
  }
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = ReadAll(Path("t.json"));
  EXPECT_EQ(Count(text, "\"outcome\":\"lost\""), TraceText::kOpenOperations);
  EXPECT_EQ(Count(text, "\"outcome\":\"in flight\""), 1u);
}

TEST_F(TimelineTest, APipeThatNobodyReadsIsNoWait) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  Timeline timeline(&log_);
  EXPECT_EQ(timeline.Start({.path = Path("pipe")}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TimelineTest, SaysThatTheDiskIsFull) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full here";
  Timeline timeline(&log_);
  ASSERT_TRUE(timeline.Start({.path = "/dev/full"}).ok());
  Tell(&timeline, 7, &name_);
  const absl::Status status = timeline.Stop();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(TimelineTest, TakesFromManyThreadsWhileItStartsAndStops) {
  Timeline timeline(&log_);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!over.load()) {
        timeline.Mark(TimelineEvent::kSpanBegin, "span");
        timeline.Mark(TimelineEvent::kSpanEnd, "");
        std::this_thread::yield();
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(timeline.Start({.path = Path("t.json")}).ok());
    ASSERT_TRUE(timeline.Stop().ok());
    const std::string text = ReadAll(Path("t.json"));
    EXPECT_EQ(text.substr(text.size() - 3), "\n]\n");
    EXPECT_EQ(Count(text, "\"ph\":\"B\""), Count(text, "\"ph\":\"E\""));
  }
  over.store(true);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TimelineTest, OtherRanksWriteBesideTheFirst) {
  EXPECT_EQ(Timeline::PathOf("a/b.json", 0), "a/b.json");
  EXPECT_EQ(Timeline::PathOf("a/b.json", 12), "a/b.rank12.json");
  EXPECT_EQ(Timeline::PathOf("b", 1), "b.rank1");
  EXPECT_EQ(Timeline::PathOf("/a.d/b", 1), "/a.d/b.rank1");
}

}  // namespace
}  // namespace byteps
