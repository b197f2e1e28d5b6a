// Writes and reads: whole before their immediate, exactly where they were sent, one event for each that was accepted.

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "abi/byteps.h"
#include "tests/transport/transport_test.h"

namespace byteps::testing {
namespace {

TEST_P(TransportTest, AWriteIsWholeWhenItsImmediateIsSeen) {
  const Pair pair = Join();
  const size_t slot = std::min<uint64_t>(256 * 1024, pair.a->caps().max_transfer), slots = 8;
  Memory& window = pair.b->NewMemory(slot * slots);
  Memory& source = pair.a->NewMemory(Bytes(slot * slots));
  const std::string key = pair.b->Key(window.region, pair.to_a);
  std::map<uint32_t, size_t> under_way;  // slot, size
  size_t landed = 0;
  pair.b->on_immediate = [&](uint32_t immediate) {
    ASSERT_EQ(under_way.count(immediate), 1u) << "immediate " << immediate;
    EXPECT_EQ(std::memcmp(window.at(immediate * slot), source.at(immediate * slot), under_way[immediate]), 0)
        << under_way[immediate] << " bytes in slot " << immediate;
    under_way.erase(immediate);
    ++landed;
  };
  std::map<uint32_t, uint64_t> owner;  // slot, last operation on it
  const size_t count = 300;
  size_t posted = 0;
  ASSERT_TRUE(Until(
      [&] {
        for (uint32_t i = 0; i < slots && posted < count; ++i) {
          // A slot is used again when the last write has landed and given its source back.
          if (under_way.count(i) != 0 || (owner.count(i) != 0 && !pair.a->Ended(owner[i]))) continue;
          const std::vector<std::byte> fresh = Bytes(64);
          std::copy(fresh.begin(), fresh.end(), source.at(i * slot));
          const size_t size = random()() % 2 == 0 ? slot : random()() % slot;
          const int32_t code = pair.a->Write(pair.to_b, source.region, source.at(i * slot), size, key, i * slot, i);
          if (code == BPS_TRANSPORT_AGAIN) break;
          EXPECT_EQ(code, BPS_OK);
          under_way[i] = size;
          owner[i] = pair.a->last_user();
          ++posted;
        }
        return landed == count && pair.a->outstanding() == 0;
      },
      60));
  pair.b->on_immediate = nullptr;
}

TEST_P(TransportTest, WritesTouchNothingBeside) {
  const Pair pair = Join();
  Memory& target = pair.b->NewMemory(4096, std::byte{0xee});
  Memory& source = pair.a->NewMemory(Bytes(4096));
  const std::string key = pair.b->Key(target.region, pair.to_a);
  const size_t step = std::max<size_t>(pair.a->caps().alignment, 8);
  const size_t offset = 40 * step % 1024 / step * step, size = 1001;
  ASSERT_EQ(Post([&] { return pair.a->Write(pair.to_b, source.region, source.at(step), size, key, offset, 5); }),
            BPS_OK);
  ASSERT_TRUE(Until([&] { return pair.b->immediates().size() == 1 && pair.a->outstanding() == 0; }));
  for (size_t i = 0; i < target.bytes.size(); ++i) {
    const bool inside = i >= offset && i < offset + size;
    ASSERT_EQ(target.bytes[i], inside ? source.bytes[step + i - offset] : std::byte{0xee}) << i;
  }
}

TEST_P(TransportTest, AZeroByteWriteIsAnImmediate) {
  const Pair pair = Join();
  Memory& target = pair.b->NewMemory(64, std::byte{0xee});
  Memory& source = pair.a->NewMemory(64);
  const std::string key = pair.b->Key(target.region, pair.to_a);
  for (const uint64_t offset : {0, 64}) {  // also at the very end
    ASSERT_EQ(Post([&] { return pair.a->Write(pair.to_b, source.region, source.at(0), 0, key, offset, 9); }), BPS_OK);
  }
  ASSERT_TRUE(Until([&] { return pair.b->immediates().size() == 2 && pair.a->outstanding() == 0; }));
  EXPECT_EQ(pair.b->immediates(), (std::vector<uint32_t>{9, 9}));
  EXPECT_EQ(target.bytes, std::vector<std::byte>(64, std::byte{0xee}));
}

TEST_P(TransportTest, EveryBitOfAnImmediateArrives) {
  const Pair pair = Join();
  Memory& target = pair.b->NewMemory(64 * 8);
  Memory& source = pair.a->NewMemory(64);
  const std::string key = pair.b->Key(target.region, pair.to_a);
  std::multiset<uint32_t> sent = {0, 0xffffffffu >> (32 - pair.a->caps().immediate_bits)};
  for (uint32_t bit = 0; bit < pair.a->caps().immediate_bits; ++bit) sent.insert(1u << bit);
  uint64_t place = 0;  // each has its own: they may land at once
  for (const uint32_t immediate : sent) {
    ASSERT_EQ(Post([&] { return pair.a->Write(pair.to_b, source.region, source.at(0), 8, key, place, immediate); }),
              BPS_OK);
    place += 8;
  }
  ASSERT_TRUE(Until([&] { return pair.b->immediates().size() == sent.size() && pair.a->outstanding() == 0; }));
  EXPECT_EQ(std::multiset<uint32_t>(pair.b->immediates().begin(), pair.b->immediates().end()), sent);
}

TEST_P(TransportTest, EveryAcceptedPostEndsOnceAndAgainMeansNothingHappened) {
  constexpr size_t kBursts = 10, kBurst = 300, kMost = 64 << 7;
  const Pair pair = Join();
  // Each has a place of its own: they land in any order, and at once.
  Memory& target = pair.b->NewMemory(kBursts * kBurst * kMost);
  Memory& source = pair.a->NewMemory(Bytes(kMost));
  const std::string key = pair.b->Key(target.region, pair.to_a);
  std::set<uint32_t> accepted;
  uint32_t next = 0;
  size_t again = 0;
  // Bursts without a poll: into AGAIN where the transport has a limit.
  for (size_t burst = 0; burst < kBursts; ++burst) {
    for (size_t i = 0; i < kBurst; ++i) {
      const uint32_t immediate = next++;
      const int32_t code = pair.a->Write(pair.to_b, source.region, source.at(0), size_t{64} << random()() % 8, key,
                                         immediate * kMost, immediate);
      ASSERT_TRUE(code == BPS_OK || code == BPS_TRANSPORT_AGAIN) << code;
      if (code == BPS_OK) accepted.insert(immediate);
      again += code == BPS_TRANSPORT_AGAIN;
    }
    Until([&] { return pair.a->outstanding() < pair.a->caps().tx_depth / 2 + 1; });
  }
  RecordProperty("again", static_cast<int>(again));
  ASSERT_TRUE(Until([&] { return pair.a->outstanding() == 0 && pair.b->immediates().size() >= accepted.size(); }));
  Settle(10'000'000);
  EXPECT_EQ(std::set<uint32_t>(pair.b->immediates().begin(), pair.b->immediates().end()), accepted);
  EXPECT_EQ(pair.b->immediates().size(), accepted.size());
}

TEST_P(TransportTest, ALargeTransferArrivesWhole) {
  const Pair pair = Join();
  const size_t size = std::min<uint64_t>(pair.a->caps().max_transfer, uint64_t{32} << 20);
  Memory& target = pair.b->NewMemory(size);
  Memory& source = pair.a->NewMemory(Bytes(size));
  const std::string key = pair.b->Key(target.region, pair.to_a);
  ASSERT_EQ(Post([&] { return pair.a->Write(pair.to_b, source.region, source.at(0), size, key, 0, 1); }), BPS_OK);
  // Both ways at once: neither waits for the other.
  const std::string back = pair.a->Key(pair.a->NewMemory(64).region, pair.to_b);
  Memory& small = pair.b->NewMemory(64);
  ASSERT_EQ(Post([&] { return pair.b->Write(pair.to_a, small.region, small.at(0), 64, back, 0, 2); }), BPS_OK);
  ASSERT_TRUE(Until([&] { return pair.b->immediates().size() == 1 && pair.a->immediates().size() == 1; }, 60));
  EXPECT_TRUE(target.bytes == source.bytes);
  ASSERT_TRUE(Until([&] { return pair.a->outstanding() == 0 && pair.b->outstanding() == 0; }));
}

TEST_P(TransportTest, UnregisteredMemoryMayBeWrittenFromWhereAnnounced) {
  const Pair pair = Join();
  if (!pair.a->has(BPS_TRANSPORT_LOCAL_ANY)) GTEST_SKIP() << "BPS_TRANSPORT_LOCAL_ANY is not announced";
  Memory& target = pair.b->NewMemory(100'000);
  const std::vector<std::byte> source = Bytes(100'000);
  const std::string key = pair.b->Key(target.region, pair.to_a);
  ASSERT_EQ(Post([&] { return pair.a->Write(pair.to_b, nullptr, source.data(), source.size(), key, 0, 1); }), BPS_OK);
  ASSERT_TRUE(Until([&] { return pair.b->immediates().size() == 1 && pair.a->outstanding() == 0; }));
  EXPECT_TRUE(target.bytes == source);
}

TEST_P(TransportTest, AReadFetchesWhatIsThereWhereAnnounced) {
  const Pair pair = Join();
  if (!pair.a->has(BPS_TRANSPORT_READ)) GTEST_SKIP() << "BPS_TRANSPORT_READ is not announced";
  Memory& remote = pair.b->NewMemory(Bytes(50'000));
  Memory& local = pair.a->NewMemory(50'000, std::byte{0xee});
  const std::string key = pair.b->Key(remote.region, pair.to_a);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{40'000}}) {
    SCOPED_TRACE(size);
    std::fill(local.bytes.begin(), local.bytes.end(), std::byte{0xee});
    ASSERT_EQ(Post([&] { return pair.a->Read(pair.to_b, local.region, local.at(64), size, key, 128); }), BPS_OK);
    const uint64_t user = pair.a->last_user();
    int32_t code = -1;
    ASSERT_TRUE(Until([&] { return pair.a->Ended(user, &code); }));
    EXPECT_EQ(code, BPS_OK);
    EXPECT_EQ(std::memcmp(local.at(64), remote.at(128), size), 0);
    EXPECT_EQ(local.bytes[63], std::byte{0xee});
    EXPECT_EQ(local.bytes[64 + size], std::byte{0xee});
  }
  EXPECT_TRUE(pair.b->immediates().empty()) << "a read shows the other side nothing";
}

TEST_P(TransportTest, MessagesAndWritesDoNotDisturbEachOther) {
  const Pair pair = Join();
  constexpr size_t kCount = 400, kSize = 4096;
  // Each has a place of its own: two may land at once.
  Memory& target = pair.b->NewMemory(kCount * kSize);
  Memory& source = pair.a->NewMemory(Bytes(kCount * kSize));
  const std::string key = pair.b->Key(target.region, pair.to_a);
  const size_t base = pair.b->messages(pair.to_a).size();
  size_t messages = 0, writes = 0;
  ASSERT_TRUE(Until(
      [&] {
        while (messages < kCount &&
               messages - (pair.b->messages(pair.to_a).size() - base) < pair.b->caps().receive_pool &&
               pair.a->Send(pair.to_b, std::to_string(messages)) == BPS_OK) {
          ++messages;
        }
        while (writes < kCount && writes < messages &&
               pair.a->Write(pair.to_b, source.region, source.at(writes * kSize), kSize, key, writes * kSize,
                             static_cast<uint32_t>(writes)) == BPS_OK) {
          ++writes;
        }
        return pair.b->messages(pair.to_a).size() == base + kCount && pair.b->immediates().size() == kCount &&
               pair.a->outstanding() == 0;
      },
      60));
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(pair.b->messages(pair.to_a)[base + i], std::to_string(i));
  EXPECT_TRUE(target.bytes == source.bytes);
}

TEST_P(TransportTest, AReceiverOfWritesThatStandsStillHoldsUpNoOther) {
  Station& still = Open();
  Station& sender = Open();
  Station& quick = Open();
  const Pair to_still = Join(sender, still);
  const Pair to_quick = Join(sender, quick);
  constexpr size_t kCount = 200, kSize = 64 << 10;
  Memory& source = sender.NewMemory(Bytes(kCount * kSize));
  Memory& at_still = still.NewMemory(kCount * kSize);
  Memory& at_quick = quick.NewMemory(kSize);
  const std::string still_key = still.Key(at_still.region, to_still.to_a);
  const std::string quick_key = quick.Key(at_quick.region, to_quick.to_a);
  // As much as the transport takes.
  uint32_t posted = 0;
  const auto flood = [&] {
    while (posted < kCount && sender.Write(to_still.to_b, source.region, source.at(posted * kSize), kSize, still_key,
                                           posted * kSize, posted) == BPS_OK) {
      ++posted;
    }
  };
  const int64_t deadline = world().Now() + 60'000'000'000;
  for (uint32_t i = 0; i < 50; ++i) {
    bool accepted = false;
    while (quick.immediates().size() == i) {
      ASSERT_LT(world().Now(), deadline) << "after " << i << " writes";
      flood();
      if (!accepted) {
        const int32_t code =
            sender.Write(to_quick.to_b, source.region, source.at(i * kSize), kSize, quick_key, 0, 1000 + i);
        ASSERT_TRUE(code == BPS_OK || code == BPS_TRANSPORT_AGAIN) << code;
        accepted = code == BPS_OK;
      }
      sender.Poll();
      quick.Poll();
      world().Pass();
    }
    ASSERT_EQ(std::memcmp(at_quick.at(0), source.at(i * kSize), kSize), 0);
  }
  EXPECT_TRUE(still.immediates().empty());
  ASSERT_TRUE(Until([&] {
    flood();
    return still.immediates().size() == kCount && sender.outstanding() == 0;
  }));
  EXPECT_TRUE(at_still.bytes == source.bytes);
}

// Messages by themselves, writes by themselves, and both as one, all at once.
TEST_P(TransportTest, AMessageAndAWriteGoAsOneWhereTheyCan) {
  const Pair pair = Join();
  constexpr size_t kCount = 400, kSize = 48 << 10;
  Memory& target = pair.b->NewMemory(kCount * kSize);
  Memory& source = pair.a->NewMemory(Bytes(kCount * kSize));
  const std::string key = pair.b->Key(target.region, pair.to_a);
  std::vector<std::string> sent;
  size_t writes = 0, together = 0;
  bool owed = false;  // a write whose message has been posted by itself
  const size_t base = pair.b->messages(pair.to_a).size(), before = pair.a->completed();
  ASSERT_TRUE(Until(
      [&] {
        while (writes < kCount && sent.size() - (pair.b->messages(pair.to_a).size() - base) < 12) {
          const std::string text = "message " + std::to_string(sent.size()) + std::string(sent.size() % 700, '.');
          const void* from = source.at(writes * kSize);
          const uint32_t immediate = static_cast<uint32_t>(writes);
          int32_t code = BPS_UNIMPLEMENTED;
          if (!owed) {
            code = pair.a->SendAndWrite(pair.to_b, text, source.region, from, kSize, key, writes * kSize, immediate);
            if (code == BPS_OK) ++together;
            if (code == BPS_UNIMPLEMENTED) {
              if (pair.a->Send(pair.to_b, text) != BPS_OK) break;
              owed = true;
            }
            if (code == BPS_OK || owed) sent.push_back(text);
          }
          if (owed) code = pair.a->Write(pair.to_b, source.region, from, kSize, key, writes * kSize, immediate);
          if (code != BPS_OK) {
            EXPECT_EQ(code, BPS_TRANSPORT_AGAIN);
            break;
          }
          owed = false;
          ++writes;
        }
        return pair.b->messages(pair.to_a).size() == base + sent.size() && pair.b->immediates().size() == kCount &&
               pair.a->outstanding() == 0;
      },
      60));
  for (size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(pair.b->messages(pair.to_a)[base + i], sent[i]);
  EXPECT_TRUE(target.bytes == source.bytes);
  EXPECT_EQ(pair.a->completed() - before, writes + sent.size() - together)
      << "an end for each post, and one for two as one";
  if (GetParam().together) {
    EXPECT_GT(together, 0u);
  }
}

}  // namespace
}  // namespace byteps::testing
