// tcp with several lanes: that they share the work, that sides with different numbers of them meet, and how many there
// are where nothing was said. What every transport must keep is in tcp_conformance_test, for four lanes too.

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/libfabric/node.h"
#include "transport_plugins/libfabric/lane_count.h"

namespace byteps::testing {
namespace {

constexpr double kPatience = 60;

// Bytes that each TCP connection of this process has sent and the other side has.
std::vector<uint64_t> SentByConnections() {
  std::vector<uint64_t> sent;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = readdir(folder.get())) {
    // glibc's tcp_info ends before what is wanted.
    struct {
      tcp_info known;
      uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
    } info{};
    socklen_t size = sizeof info;
    if (getsockopt(std::atoi(entry->d_name), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    if (info.known.tcpi_state == TCP_ESTABLISHED) sent.push_back(info.bytes_acked);
  }
  std::sort(sent.rbegin(), sent.rend());
  return sent;
}

NodeOptions Lanes(int lanes) { return {.config = {{"BYTEPS_TCP_LANES", std::to_string(lanes)}}}; }

// Moves `writes` pieces of 512 KiB both ways, and checks them.
void Exchange(Node& a, Node& b, uint32_t writes) {
  constexpr size_t kPiece = 512 << 10;
  struct Side {
    Node* node;
    bps_peer other;
    std::vector<char> source, target;
    bps_region *from = nullptr, *to = nullptr;
    uint32_t posted = 0;
  };
  Side sides[] = {{&a, 1, {}, {}}, {&b, 2, {}, {}}};
  for (Side& side : sides) {
    side.source.resize(kPiece * writes);
    side.target.resize(kPiece * writes);
    for (size_t i = 0; i < side.source.size(); ++i) side.source[i] = static_cast<char>(i * 7 + i / kPiece + side.other);
    side.from = side.node->Reg(side.source.data(), side.source.size());
    side.to = side.node->Reg(side.target.data(), side.target.size());
  }
  const std::string keys[] = {b.Key(sides[1].to, 2), a.Key(sides[0].to, 1)};
  ASSERT_TRUE(Until(
      a, b,
      [&] {
        for (int i = 0; i < 2; ++i) {
          Side& side = sides[i];
          while (side.posted < writes) {
            const size_t at = side.posted * kPiece;
            const int32_t code = side.node->Write(side.other, side.from, &side.source[at], kPiece, keys[i], at,
                                                  side.posted, side.posted);
            if (code == BPS_TRANSPORT_AGAIN) break;
            EXPECT_EQ(code, BPS_OK);
            ++side.posted;
          }
        }
        return std::all_of(std::begin(sides), std::end(sides), [&](const Side& side) {
          return side.node->Count(BPS_EVENT_WRITTEN) == writes && side.node->Count(BPS_EVENT_IMMEDIATE) == writes;
        });
      },
      kPatience));
  EXPECT_EQ(sides[0].target, sides[1].source);
  EXPECT_EQ(sides[1].target, sides[0].source);
  for (Side& side : sides) {
    std::vector<bool> seen(writes);
    for (const bps_event& event : side.node->events()) {
      if (event.type != BPS_EVENT_WRITTEN) continue;
      EXPECT_EQ(event.code, BPS_OK);
      ASSERT_LT(event.user, writes);
      EXPECT_FALSE(seen[event.user]) << "ended twice";
      seen[event.user] = true;
    }
    side.node->Unreg(side.from);
    side.node->Unreg(side.to);
  }
}

TEST(Lanes, ShareTheWrites) {
  Node a(Lanes(4)), b(Lanes(4));
  Join(a, 1, b, 2);
  Exchange(a, b, 64);
  // Of 2 x 4 ends, each has carried something that is not small. 64 MiB went over them in all.
  const std::vector<uint64_t> sent = SentByConnections();
  ASSERT_EQ(sent.size(), 8U);
  EXPECT_GE(sent.back(), 1U << 20) << "a connection has hardly been used";
}

TEST(Lanes, WithoutThemThereIsOneConnection) {
  Node a(Lanes(1)), b(Lanes(1));
  Join(a, 1, b, 2);
  Exchange(a, b, 4);
  EXPECT_EQ(SentByConnections().size(), 2U);
}

TEST(Lanes, TwoSidesUseAsManyAsBothHave) {
  for (const auto& [ours, theirs] : {std::pair{4, 1}, {1, 4}, {3, 2}, {2, 4}}) {
    SCOPED_TRACE(std::to_string(ours) + " and " + std::to_string(theirs));
    Node a(Lanes(ours)), b(Lanes(theirs));
    Join(a, 1, b, 2);
    Exchange(a, b, 32);
    EXPECT_EQ(SentByConnections().size(), 2U * std::min(ours, theirs));
  }
}

// Whichever lane hears it first, on its thread or ours.
TEST(Lanes, WhatALaneSaysOfALossIsPassedOn) {
  for (int round = 0; round < 20; ++round) {
    Node a(Lanes(4));
    {
      Node b(Lanes(4));
      Join(a, 1, b, 2);
      Exchange(a, b, 4);
    }
    ASSERT_TRUE(a.Until([&] { return a.down(1); }, kPatience));
    EXPECT_NE(a.why(), "");
  }
}

TEST(Lanes, AnAddressThatIsCutOffIsRefused) {
  Node a(Lanes(2)), b(Lanes(2));
  std::string address = b.address();
  address.pop_back();
  EXPECT_EQ(a.Connect(1, 2, address), BPS_INVALID_ARGUMENT);
  EXPECT_NE(a.failure().find("is none of transport tcp"), std::string::npos) << a.failure();
  // And the peer may still be made known.
  EXPECT_EQ(a.Connect(1, 2, b.address()), BPS_OK);
}

TEST(Lanes, HowMany) {
  EXPECT_EQ(fabric::LanesFor(2, 0), 1U);
  EXPECT_EQ(fabric::LanesFor(15, 400'000), 1U) << "few cores";
  EXPECT_EQ(fabric::LanesFor(64, 10'000), 1U) << "a slow link";
  EXPECT_EQ(fabric::LanesFor(64, 25'000), 1U);
  EXPECT_EQ(fabric::LanesFor(64, 40'000), 2U);
  EXPECT_EQ(fabric::LanesFor(64, 100'000), 4U);
  EXPECT_EQ(fabric::LanesFor(16, 100'000), 2U);
  EXPECT_EQ(fabric::LanesFor(256, 0), 4U) << "a link of unknown rate";
}

}  // namespace
}  // namespace byteps::testing
