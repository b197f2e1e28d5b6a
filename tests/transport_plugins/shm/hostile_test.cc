// A peer that breaks the rules of its channel: it rewrites what lies there while it is read, and announces what it must
// not. It harms its own traffic, and nothing else.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/shm/end.h"
#include "transport_plugins/shm/channel.h"

namespace byteps::testing {
namespace {

using shm::ChannelMemory;
using shm::Descriptor;
using shm::Request;

// The channel that holds `text` as a message: the memory of a peer that has sent it.
ChannelMemory* ChannelWith(const std::string& text) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("byteps-channel") == std::string::npos) continue;
    std::istringstream words(line);
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    words >> std::hex >> begin >> dash >> end;
    if (end - begin < sizeof(ChannelMemory)) continue;
    auto* memory = reinterpret_cast<ChannelMemory*>(begin);
    for (const auto& slot : memory->slots) {
      if (std::memcmp(slot, text.data(), text.size()) == 0) return memory;
    }
  }
  return nullptr;
}

// Two ends that know each other, and the channel of the second, which is hostile.
struct Pair {
  explicit Pair(const std::string& process_vm = "1") : victim({{"BYTEPS_SHM_PROCESS_VM", process_vm}}) {
    EXPECT_EQ(victim.Connect(hostile.address()), BPS_OK);
    EXPECT_EQ(hostile.Connect(victim.address()), BPS_OK);
    EXPECT_EQ(hostile.Send("made by the hostile end"), BPS_OK);
    EXPECT_TRUE(victim.Until([&] { return hostile.Poll(), !victim.messages.empty(); }));
    channel = ChannelWith("made by the hostile end");
  }
  End victim, hostile;
  ChannelMemory* channel = nullptr;
};

TEST(ShmHostile, ARequestThatIsAnnouncedAgainAndAgainFillsNoMemory) {
  Pair pair("0");  // payloads have to be brought
  ASSERT_NE(pair.channel, nullptr);
  std::vector<std::byte> landing(1 << 20);
  const std::string key = pair.victim.Key(pair.victim.Reg(landing.data(), landing.size()));
  Request& request = pair.channel->requests[0];
  request.body = {};
  request.body.kind = Request::kWrite;
  request.body.size = landing.size();
  std::memcpy(&request.body.key, key.data(), sizeof request.body.key);
  request.state.store(Request::kPosted);
  // Its bytes never come: the hostile end does not know of it.
  uint32_t head = pair.channel->header.head.load();
  for (int i = 0; i < 100 && pair.victim.down == BPS_OK; ++i) {
    while (head - pair.channel->header.tail.load() < shm::kDescriptors / 2) {
      pair.channel->descriptors[head++ % shm::kDescriptors] = {Descriptor::kOperation, 0, 0, 0};
    }
    pair.channel->header.head.store(head);
    pair.victim.Poll();
  }
  EXPECT_EQ(pair.victim.down, BPS_UNAVAILABLE);
  EXPECT_NE(pair.victim.why.find("more requests than there are"), std::string::npos) << pair.victim.why;
}

// A slot that its owner still reads is not handed out again, nor is one that there is not, or more than it holds.
TEST(ShmHostile, AMessageThatMakesNoSenseEndsTheConnection) {
  for (const Descriptor& wrong :
       {Descriptor{Descriptor::kMessage, 0, 8, 0}, Descriptor{Descriptor::kMessage, shm::kSlots, 8, 0},
        Descriptor{Descriptor::kMessage, 1, shm::kMaxMessage + 1, 0}, Descriptor{Descriptor::kMessage, 1, 0, 0},
        Descriptor{77, 0, 8, 0}}) {
    SCOPED_TRACE(std::to_string(wrong.kind) + " " + std::to_string(wrong.index) + " " + std::to_string(wrong.size));
    Pair pair;
    ASSERT_NE(pair.channel, nullptr);
    // The first of them is good, where the slot is free, and stays with its owner: no peer releases it.
    uint32_t head = pair.channel->header.head.load();
    if (wrong.index == 0) pair.channel->descriptors[head++ % shm::kDescriptors] = {Descriptor::kMessage, 0, 8, 0};
    pair.channel->descriptors[head++ % shm::kDescriptors] = wrong;
    pair.channel->header.head.store(head);
    pair.victim.Poll();
    EXPECT_EQ(pair.victim.down, BPS_UNAVAILABLE);
    EXPECT_NE(pair.victim.why.find("invalid"), std::string::npos) << pair.victim.why;
  }
}

// Another process's accesses to what is shared, of which ThreadSanitizer would not know either.
__attribute__((no_sanitize_thread, noinline)) uint32_t Read(const volatile uint32_t* word) { return *word; }
__attribute__((no_sanitize_thread, noinline)) void Write(volatile uint32_t* word, uint32_t value) { *word = value; }

TEST(ShmHostile, WhatIsRewrittenWhileItIsReadHarmsItsWriterOnly) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Pair pair;
    ASSERT_NE(pair.channel, nullptr);
    End friendly, bystander;
    ASSERT_EQ(friendly.Connect(bystander.address()), BPS_OK);
    ASSERT_EQ(bystander.Connect(friendly.address()), BPS_OK);
    // What is written belongs into the first half; the second is not lent.
    std::vector<std::byte> source(1 << 16, std::byte{0x5a}), landing(2 << 16);
    const std::string key = pair.victim.Key(pair.victim.Reg(landing.data(), source.size()));
    std::atomic<bool> over{false};
    std::thread rewriter([&] {
      std::mt19937 random(seed);
      // What carries structure: all in front of the ledger.
      auto* words = reinterpret_cast<volatile uint32_t*>(pair.channel->descriptors);
      const size_t count = (reinterpret_cast<std::byte*>(pair.channel->ledger) -
                            reinterpret_cast<std::byte*>(pair.channel->descriptors)) /
                           sizeof(uint32_t);
      constexpr uint32_t kBad[] = {0, 1, 2, 63, 64, 255, 256, 0x7fffffff, 0x80000000, 0xffffffff};
      while (!over.load(std::memory_order_relaxed)) {
        volatile uint32_t* const word = words + random() % count;
        const uint32_t was = Read(word);
        Write(word, random() % 2 == 0 ? kBad[random() % std::size(kBad)] : was ^ (1u << random() % 32));
        Write(word, was);
      }
    });
    const auto end = Clock::now() + std::chrono::milliseconds(300);
    while (Clock::now() < end && pair.victim.down == BPS_OK && pair.hostile.down == BPS_OK) {
      pair.hostile.Send("again");
      pair.hostile.Write(source.data(), source.size(), key, 1);
      pair.victim.Poll();
      pair.hostile.Poll();
    }
    over = true;
    rewriter.join();
    // Another peer is served as ever.
    ASSERT_EQ(friendly.Send("hello"), BPS_OK);
    EXPECT_TRUE(bystander.Until([&] { return friendly.Poll(), !bystander.messages.empty(); }));
    EXPECT_TRUE(std::all_of(landing.begin() + static_cast<ptrdiff_t>(source.size()), landing.end(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

}  // namespace
}  // namespace byteps::testing
