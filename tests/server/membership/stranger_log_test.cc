#include "server/membership/stranger_log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace byteps {
namespace {

struct Lines {
  static void Keep(void* user, int32_t, const char*, int32_t, const char* message) {
    static_cast<Lines*>(user)->lines.emplace_back(message);
  }
  LogOptions Options() {
    LogOptions options;
    options.sink = &Lines::Keep;
    options.user = this;
    return options;
  }
  std::vector<std::string> lines;
};

TEST(StrangerLog, AFewAreToldAtOnceThenOneInAWhile) {
  Lines kept;
  const Logger log(kept.Options());
  StrangerLog strangers(&log);
  Time now = 100 * kSecond;
  for (int i = 0; i < 1000; ++i) strangers.Say(now, "10.0.0.7", "rubbish " + std::to_string(i));
  ASSERT_EQ(kept.lines.size(), StrangerLog::kBurst);
  EXPECT_EQ(kept.lines[3], "turned away a connection from 10.0.0.7: rubbish 3");
  now += StrangerLog::kInterval - 1;
  strangers.Say(now, "10.0.0.7", "too early");
  EXPECT_EQ(kept.lines.size(), StrangerLog::kBurst);
  now += 1;
  strangers.Say(now, "10.0.0.8", "again");
  strangers.Say(now, "10.0.0.8", "and again");
  ASSERT_EQ(kept.lines.size(), StrangerLog::kBurst + 2);
  EXPECT_EQ(kept.lines[10], "turned away 991 more connections");
  EXPECT_EQ(kept.lines[11], "turned away a connection from 10.0.0.8: again");
  strangers.Flush();
  EXPECT_EQ(kept.lines.back(), "turned away 1 more connections");
  // After a long silence it is as at first.
  now += 1000 * StrangerLog::kInterval;
  kept.lines.clear();
  for (int i = 0; i < 1000; ++i) strangers.Say(now, "10.0.0.7", "rubbish");
  EXPECT_EQ(kept.lines.size(), StrangerLog::kBurst);
}

TEST(StrangerLog, OneNowAndThenIsAlwaysTold) {
  Lines kept;
  const Logger log(kept.Options());
  StrangerLog strangers(&log);
  for (int i = 0; i < 50; ++i) strangers.Say((i + 1) * StrangerLog::kInterval, "10.0.0.7", "rubbish");
  EXPECT_EQ(kept.lines.size(), 50u);
}

TEST(StrangerLog, WhatTheySayMakesNoLinesOfItsOwn) {
  Lines kept;
  const Logger log(kept.Options());
  StrangerLog strangers(&log);
  strangers.Say(0, "10.0.0.7", "job \"a\n[2026] all is well\x1b[31m\"");
  ASSERT_EQ(kept.lines.size(), 1u);
  EXPECT_EQ(kept.lines[0].find_first_of("\n\x1b"), std::string::npos) << kept.lines[0];
}

}  // namespace
}  // namespace byteps
