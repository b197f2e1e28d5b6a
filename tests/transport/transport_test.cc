#include "tests/transport/transport_test.h"

#include <algorithm>
#include <cstring>

#include "abi/byteps.h"

namespace byteps::testing {

Station& TransportTest::Open() {
  stations_.push_back(std::make_unique<Station>(world_.get(), world_->Open()));
  return *stations_.back();
}

void TransportTest::PollAll() {
  for (auto& station : stations_) {
    // Small and large batches: nothing may depend on it.
    const size_t capacity = random_() % 4 == 0 ? 1 : 16;
    station->Poll(capacity);
  }
}

bool TransportTest::Until(const std::function<bool()>& done, int seconds) {
  const int64_t deadline = world_->Now() + seconds * int64_t{1'000'000'000};
  while (true) {
    PollAll();
    if (done()) return true;
    if (world_->Now() > deadline) {
      ADD_FAILURE() << "not within " << seconds << " s\n" << State();
      return false;
    }
    world_->Pass();
  }
}

std::string TransportTest::State() const {
  std::string text;
  for (size_t i = 0; i < stations_.size(); ++i) {
    text += "station " + std::to_string(i) + ": " + stations_[i]->Describe() + "\n";
  }
  return text + world_->RecentLog();
}

void TransportTest::Settle(int64_t nanoseconds) {
  const int64_t end = world_->Now() + nanoseconds;
  Until([&] { return world_->Now() >= end; });
}

int32_t TransportTest::Post(const std::function<int32_t()>& post) {
  int32_t code = BPS_TRANSPORT_AGAIN;
  Until([&] { return (code = post()) != BPS_TRANSPORT_AGAIN; });
  return code;
}

Pair TransportTest::Join(Station& a, Station& b) {
  const Pair pair{&a, a.NewPeer(), &b, b.NewPeer()};
  a.Connect(pair.to_b, pair.to_a, b.address());
  b.Connect(pair.to_a, pair.to_b, a.address());
  Deliver(a, pair.to_b, b, pair.to_a, "hello from a");
  Deliver(b, pair.to_a, a, pair.to_b, "hello from b");
  return pair;
}

void TransportTest::Deliver(Station& from, bps_peer to, Station& at, bps_peer from_there, std::string_view text) {
  const size_t before = at.messages(from_there).size();
  ASSERT_EQ(Post([&] { return from.Send(to, text); }), BPS_OK);
  const uint64_t user = from.last_user();
  int32_t code = -1;
  ASSERT_TRUE(Until([&] { return at.messages(from_there).size() > before && from.Ended(user, &code); }));
  EXPECT_EQ(code, BPS_OK);
  EXPECT_EQ(at.messages(from_there).back(), text);
}

void TransportTest::ExpectWorks(const Pair& pair) {
  Deliver(*pair.a, pair.to_b, *pair.b, pair.to_a, "still here, a");
  Deliver(*pair.b, pair.to_a, *pair.a, pair.to_b, "still here, b");
  Memory& source = pair.a->NewMemory(Bytes(1000));
  Memory& target = pair.b->NewMemory(1000);
  const std::string key = pair.b->Key(target.region, pair.to_a);
  const size_t before = pair.b->immediates().size();
  ASSERT_EQ(Post([&] { return pair.a->Write(pair.to_b, source.region, source.at(0), 1000, key, 0, 77); }), BPS_OK);
  const uint64_t user = pair.a->last_user();
  ASSERT_TRUE(Until([&] { return pair.b->immediates().size() > before && pair.a->Ended(user); }));
  EXPECT_EQ(pair.b->immediates().back(), 77u);
  EXPECT_EQ(source.bytes, target.bytes);
  pair.a->Unregister(source.region);
  pair.b->Unregister(target.region);
}

std::vector<std::byte> TransportTest::Bytes(size_t size) {
  std::vector<std::byte> bytes(size);
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const uint64_t word = random_();
    std::memcpy(&bytes[i], &word, 8);
  }
  for (; i < size; ++i) bytes[i] = static_cast<std::byte>(random_());
  return bytes;
}

std::string TransportTest::Text(size_t size) {
  const std::vector<std::byte> bytes = Bytes(size);
  return std::string(reinterpret_cast<const char*>(bytes.data()), size);
}

}  // namespace byteps::testing
