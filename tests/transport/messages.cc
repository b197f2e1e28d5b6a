// Messages: whole, in order, copied at the post, in buffers that are the receiver's until it releases them.

#include <algorithm>
#include <cstring>
#include <string>

#include "abi/byteps.h"
#include "tests/transport/transport_test.h"

namespace byteps::testing {
namespace {

TEST_P(TransportTest, CapsKeepTheirPromises) {
  Station& a = Open();
  EXPECT_GE(a.caps().immediate_bits, 24u);
  EXPECT_LE(a.caps().immediate_bits, 32u);
  EXPECT_GE(a.caps().max_message, 16384u);
  EXPECT_GE(a.caps().receive_pool, 16u);
  EXPECT_GE(a.caps().tx_depth, 1u);
  EXPECT_LE(a.caps().key_size, uint32_t{BPS_TRANSPORT_MAX_KEY});
  EXPECT_GE(a.caps().alignment, 1u);
  ASSERT_NE(a.caps().provider, nullptr);
  EXPECT_STRNE(a.caps().provider, "");
  EXPECT_EQ(a.has(BPS_TRANSPORT_WAIT_FD), a.has(BPS_TRANSPORT_WAIT_FD) && a.table().wait_fd != nullptr);
  if (a.has(BPS_TRANSPORT_READ)) {
    EXPECT_NE(a.table().post_read, nullptr);
  }
}

TEST_P(TransportTest, CapsFillNoMoreThanTheCallersStruct) {
  Station& a = Open();
  bps_transport_caps caps;
  std::memset(&caps, 0x77, sizeof caps);
  caps.struct_size = offsetof(bps_transport_caps, max_message);
  a.table().caps(a.transport(), &caps);
  EXPECT_EQ(caps.immediate_bits, a.caps().immediate_bits);
  EXPECT_EQ(caps.max_message, 0x77777777u);
}

TEST_P(TransportTest, MessagesOfEverySizeArriveWhole) {
  const Pair pair = Join();
  std::vector<size_t> sizes = {1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 127, 255, 256, 257, 1000, 1023, 1024, 1025};
  for (size_t size = 2048; size < pair.a->caps().max_message; size *= 2) {
    sizes.insert(sizes.end(), {size - 1, size, size + 1});
  }
  sizes.insert(sizes.end(), {pair.a->caps().max_message - 1, size_t{pair.a->caps().max_message}});
  for (int i = 0; i < 20; ++i) sizes.push_back(1 + random()() % pair.a->caps().max_message);
  for (const size_t size : sizes) {
    SCOPED_TRACE(size);
    Deliver(*pair.a, pair.to_b, *pair.b, pair.to_a, Text(size));
    if (HasFatalFailure()) return;
  }
}

TEST_P(TransportTest, MessagesOfNoByteAndOfTooManyAreRefusedAndNothingHappens) {
  if (!world().RealTime()) GTEST_SKIP() << "the simulated fabric ends a program that violates the contract";
  const Pair pair = Join();
  const size_t before = pair.b->messages(pair.to_a).size();
  const size_t outstanding = pair.a->outstanding();
  for (const size_t size : {size_t{0}, size_t{pair.a->caps().max_message} + 1}) {
    SCOPED_TRACE(size);
    EXPECT_EQ(pair.a->Send(pair.to_b, Text(size)), BPS_INVALID_ARGUMENT);
    EXPECT_EQ(pair.a->outstanding(), outstanding);
  }
  Deliver(*pair.a, pair.to_b, *pair.b, pair.to_a, Text(100));
  EXPECT_EQ(pair.b->messages(pair.to_a).size(), before + 1);
}

TEST_P(TransportTest, MessagesOfOnePeerArriveInOrderBothWaysAtOnce) {
  const Pair pair = Join();
  const size_t base_a = pair.a->messages(pair.to_b).size(), base_b = pair.b->messages(pair.to_a).size();
  const size_t count = 1000;
  size_t from_a = 0, from_b = 0;
  auto text = [](char who, size_t n) { return who + std::to_string(n) + std::string(n * 37 % 3000, who); };
  auto feed = [&](Station* from, bps_peer to, Station* at, bps_peer back, char who, size_t base, size_t* sent) {
    // No more than the pool holds, as the owners would agree.
    while (*sent < count && *sent - (at->messages(back).size() - base) < at->caps().receive_pool) {
      const int32_t code = from->Send(to, text(who, *sent));
      if (code == BPS_TRANSPORT_AGAIN) return;
      ASSERT_EQ(code, BPS_OK);
      ++*sent;
    }
  };
  ASSERT_TRUE(Until(
      [&] {
        feed(pair.a, pair.to_b, pair.b, pair.to_a, 'a', base_b, &from_a);
        feed(pair.b, pair.to_a, pair.a, pair.to_b, 'b', base_a, &from_b);
        return pair.b->messages(pair.to_a).size() == base_b + count &&
               pair.a->messages(pair.to_b).size() == base_a + count && pair.a->outstanding() == 0 &&
               pair.b->outstanding() == 0;
      },
      60));
  for (size_t n = 0; n < count; ++n) {
    ASSERT_EQ(pair.b->messages(pair.to_a)[base_b + n], text('a', n));
    ASSERT_EQ(pair.a->messages(pair.to_b)[base_a + n], text('b', n));
  }
}

TEST_P(TransportTest, AMessageKeepsItsBufferUntilReleaseAndThePoolComesBack) {
  const Pair pair = Join();
  const size_t pool = pair.b->caps().receive_pool;
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    pair.b->Hold(true);
    const size_t before = pair.b->messages(pair.to_a).size();
    std::vector<std::string> sent;
    for (size_t i = 0; i < pool; ++i) {
      sent.push_back(Text(1 + random()() % 500));
      ASSERT_EQ(Post([&] { return pair.a->Send(pair.to_b, sent.back()); }), BPS_OK);
    }
    ASSERT_TRUE(Until([&] { return pair.b->messages(pair.to_a).size() == before + pool; }));
    // All of them are held, and nothing has written over the first when the last came.
    ASSERT_EQ(pair.b->held().size(), pool);
    for (size_t i = 0; i < pool; ++i) {
      EXPECT_EQ(std::string_view(pair.b->held()[i].data, pair.b->held()[i].size), sent[i]);
    }
    // Released in any order.
    std::shuffle(pair.b->held().begin(), pair.b->held().end(), random());
    for (const Station::Held& held : pair.b->held()) pair.b->Release(held.lease);
    pair.b->held().clear();
    pair.b->Hold(false);
  }
  ExpectWorks(pair);
}

TEST_P(TransportTest, ASlowReceiverHoldsUpNoOther) {
  Station& slow = Open();
  Station& sender = Open();
  Station& quick = Open();
  const Pair to_slow = Join(sender, slow);
  const Pair to_quick = Join(sender, quick);
  slow.Hold(true);
  const size_t pool = slow.caps().receive_pool;
  const size_t before = slow.messages(to_slow.to_a).size();
  for (size_t i = 0; i < pool; ++i) {
    ASSERT_EQ(Post([&] { return sender.Send(to_slow.to_b, Text(slow.caps().max_message)); }), BPS_OK);
  }
  for (int i = 0; i < 50; ++i) {
    Deliver(sender, to_quick.to_b, quick, to_quick.to_a, Text(100));
    if (HasFatalFailure()) return;
  }
  EXPECT_TRUE(Until([&] { return slow.messages(to_slow.to_a).size() == before + pool; }));
}

}  // namespace
}  // namespace byteps::testing
