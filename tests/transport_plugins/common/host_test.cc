#include "transport_plugins/common/host.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "abi/byteps.h"
#include "tests/transport_plugins/common/plugin_host.h"

namespace byteps::transports {
namespace {

using std::chrono::nanoseconds;

nanoseconds Timeout(PluginHost* library, const std::string& text) {
  library->variables["BYTEPS_PEER_TIMEOUT"] = text;
  return Host(library->table(), library, library).PeerTimeout();
}

TEST(HostTest, TimesHaveUnits) {
  PluginHost library;
  EXPECT_EQ(Host(library.table(), &library, &library).PeerTimeout(), std::chrono::seconds(30));
  EXPECT_EQ(Timeout(&library, "5"), std::chrono::seconds(5));
  EXPECT_EQ(Timeout(&library, "500 ms"), std::chrono::milliseconds(500));
  EXPECT_EQ(Timeout(&library, "2m"), std::chrono::minutes(2));
  EXPECT_EQ(Timeout(&library, "0"), nanoseconds(0));
  EXPECT_TRUE(library.lines.empty());
}

TEST(HostTest, WhatIsNoTimeIsSaid) {
  for (const char* text : {"soon", "-1", "5 parsecs", "nan", "inf", ""}) {
    PluginHost library;
    EXPECT_EQ(Timeout(&library, text), std::chrono::seconds(30)) << text;
    ASSERT_EQ(library.lines.size(), 1u) << text;
    EXPECT_NE(library.lines[0].find("BYTEPS_PEER_TIMEOUT=\"" + std::string(text) + "\""), std::string::npos);
  }
}

// Who waits for years is not told that this is no time, nor overruns a clock.
TEST(HostTest, VeryLongIsVeryLong) {
  for (const char* text : {"20000000", "9223372036"}) {
    PluginHost library;
    EXPECT_GT(Timeout(&library, text), std::chrono::hours(24 * 7)) << text;
    EXPECT_LT(Timeout(&library, text), std::chrono::hours(24 * 365 * 100)) << text;
    EXPECT_TRUE(library.lines.empty()) << text;
  }
}

TEST(HostTest, WhatIsNotSetIsEmpty) {
  PluginHost library;
  library.variables["BYTEPS_A"] = "1";
  const Host host(library.table(), &library, &library);
  EXPECT_EQ(host.Config("BYTEPS_A"), "1");
  EXPECT_EQ(host.Config("BYTEPS_B"), "");
}

TEST(HostTest, NoPeerNeedsToAskWhy) {
  PluginHost library;
  const Host host(library.table(), &library, &library);
  EXPECT_EQ(host.Fail(nullptr, BPS_UNAVAILABLE, "no device"), BPS_UNAVAILABLE);
  bps_failure failure;
  EXPECT_EQ(host.Fail(&failure, BPS_UNAVAILABLE, "no device"), BPS_UNAVAILABLE);
  EXPECT_EQ(failure.reason, "no device");
}

}  // namespace
}  // namespace byteps::transports
