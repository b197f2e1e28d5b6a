#include "core/base/log.h"

#include <atomic>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace byteps {
namespace {

// A host's sink that keeps what it was told and notices when two threads are in it at once.
struct Sink {
  struct Line {
    int32_t level;
    std::string file;
    int32_t line;
    std::string message;
  };

  static void Call(void* user, int32_t level, const char* file, int32_t line, const char* message) {
    Sink* self = static_cast<Sink*>(user);
    if (self->inside.exchange(true)) self->overlapped = true;
    self->lines.push_back({level, file, line, message});
    self->inside = false;
  }

  LogOptions Options(LogLevel level, int verbose = 0) {
    LogOptions options;
    options.level = level;
    options.verbose = verbose;
    options.sink = &Sink::Call;
    options.user = this;
    return options;
  }

  std::vector<Line> lines;
  std::atomic<bool> inside{false};
  std::atomic<bool> overlapped{false};
};

TEST(LogTest, LinesBelowTheLevelAreNotEvenEvaluated) {
  Sink sink;
  Logger log(sink.Options(LogLevel::kWarning));
  int evaluated = 0;
  BPS_LOG(log, kInfo) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
  EXPECT_TRUE(sink.lines.empty());
  const int here = __LINE__ + 1;
  BPS_LOG(log, kWarning) << "x" << ++evaluated;
  ASSERT_EQ(sink.lines.size(), 1u);
  EXPECT_EQ(sink.lines[0].level, BPS_LOG_WARNING);
  EXPECT_EQ(sink.lines[0].file, "tests/core/base/log_test.cc");
  EXPECT_EQ(sink.lines[0].line, here);
  EXPECT_EQ(sink.lines[0].message, "x1");
}

TEST(LogTest, FatalAsLeastLevelSilences) {
  Sink sink;
  Logger log(sink.Options(LogLevel::kFatal));
  BPS_LOG(log, kError) << "unheard";
  EXPECT_TRUE(sink.lines.empty());
}

TEST(LogTest, VerboseIsIndependentOfTheLevel) {
  Sink sink;
  Logger log(sink.Options(LogLevel::kError, 1));
  BPS_VERBOSE(log, 1) << "connection";
  BPS_VERBOSE(log, 2) << "message";
  ASSERT_EQ(sink.lines.size(), 1u);
  EXPECT_EQ(sink.lines[0].message, "connection");
  EXPECT_EQ(sink.lines[0].level, BPS_LOG_INFO);
}

TEST(LogTest, MacrosStandInAnUnbracedIf) {
  Sink sink;
  Logger log(sink.Options(LogLevel::kInfo));
  bool other = false;
  if (sink.lines.empty())
    BPS_LOG(log, kInfo) << "then";
  else
    other = true;
  EXPECT_FALSE(other);
  EXPECT_EQ(sink.lines.size(), 1u);
}

TEST(LogTest, PrefixesAddUpAndNewlinesDoNotBreakALine) {
  Sink sink;
  Logger log(sink.Options(LogLevel::kInfo));
  BPS_LOG(log.WithPrefix("rank 3: ").WithPrefix("engine: "), kInfo) << "a\nb";
  ASSERT_EQ(sink.lines.size(), 1u);
  EXPECT_EQ(sink.lines[0].message, "rank 3: engine: a b");
}

TEST(LogTest, SinkIsCalledByOneThreadAtATime) {
  Sink sink;
  Logger log(sink.Options(LogLevel::kInfo));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([mine = log.WithPrefix("t ")] {
      for (int i = 0; i < 2000; ++i) BPS_LOG(mine, kInfo) << i;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sink.lines.size(), 8000u);
  EXPECT_FALSE(sink.overlapped);
}

TEST(LogTest, ThrowingSinkIsContained) {
  LogOptions options;
  options.level = LogLevel::kInfo;
  options.sink = [](void*, int32_t, const char*, int32_t, const char*) { throw 7; };
  Logger log(options);
  BPS_LOG(log, kInfo) << "x";
}

TEST(LogTest, DefaultSinkWritesOneLineToStderr) {
  testing::internal::CaptureStderr();
  LogOptions options;
  Logger log(options);
  BPS_LOG(log, kWarning) << "with time";
  options.hide_time = true;
  Logger bare(options);
  BPS_LOG(bare, kError) << "without";
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(std::regex_match(
      text, std::regex(R"(\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6} W tests/core/base/log_test\.cc:\d+\] with time\n)"
                       R"(\[E tests/core/base/log_test\.cc:\d+\] without\n)")))
      << text;
}

TEST(LogTest, LevelNames) {
  EXPECT_STREQ(LogLevelName(LogLevel::kTrace), "trace");
  EXPECT_STREQ(LogLevelName(LogLevel::kFatal), "fatal");
  EXPECT_STREQ(LogLevelName(static_cast<LogLevel>(99)), "fatal");
}

}  // namespace
}  // namespace byteps
