#include "core/worker/memory/buffer_regions.h"

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

// What a transport was told of memory.
struct Told {
  size_t registered = 0;  // ever
  std::set<std::string*> regions;
  std::vector<int> files;
  bool full = false;
};

Told* Unwrap(bps_transport* transport) { return reinterpret_cast<Told*>(transport); }

int32_t Register(bps_transport* transport, int fd, bps_region** region) {
  Told* told = Unwrap(transport);
  if (told->full) return BPS_RESOURCE_EXHAUSTED;
  ++told->registered;
  told->files.push_back(fd);
  *region = reinterpret_cast<bps_region*>(*told->regions.insert(new std::string).first);
  return BPS_OK;
}

bps_transport_table Table(bool shares) {
  bps_transport_table table{};
  table.struct_size = sizeof table;
  table.close = [](bps_transport*) {};
  table.caps = [](bps_transport*, bps_transport_caps*) {};
  table.reg = [](bps_transport* transport, void*, size_t, bps_region** region, bps_failure*) {
    return Register(transport, -1, region);
  };
  table.unreg = [](bps_transport* transport, bps_region* region) {
    auto* made = reinterpret_cast<std::string*>(region);
    Unwrap(transport)->regions.erase(made);
    delete made;
  };
  if (shares) {
    table.reg_shared = [](bps_transport* transport, void*, size_t, int32_t fd, bps_region** region, bps_failure*) {
      return Register(transport, fd, region);
    };
  }
  return table;
}

class BufferRegionsTest : public testing::TestWithParam<bool> {
 protected:
  BufferRegionsTest()
      : table_(Table(GetParam())), transport_(Transport::Adopt(&table_, reinterpret_cast<bps_transport*>(&told_))) {
    buffers_.Share([this] { ++freed_; });
  }

  Told told_;
  const bps_transport_table table_;
  Transport transport_;
  BufferTable buffers_;
  int freed_ = 0;
};

TEST_P(BufferRegionsTest, OneRegistrationForTheLifeOfABuffer) {
  BufferRegions regions(&transport_);
  const std::shared_ptr<Buffer> buffer = buffers_.Allocate(1 << 20).value();
  std::memset(buffer->data(), 0x31, 1 << 20);
  bps_region* first = nullptr;
  for (const uint64_t offset : {0, 64, 4096, 1000000}) {
    const BufferRegions::Place place = regions.Find(buffer, buffer->data() + offset, 4096).value();
    ASSERT_NE(place.region, nullptr);
    EXPECT_EQ(place.offset, offset);
    if (first == nullptr) first = place.region;
    EXPECT_EQ(place.region, first);
  }
  EXPECT_EQ(told_.registered, 1u);
  EXPECT_GE(buffer->fd(), 0);
  EXPECT_EQ(told_.files.at(0), GetParam() ? buffer->fd() : -1);
  // Steps that free nothing change nothing.
  for (int step = 0; step < 100; ++step) {
    regions.DropFreed();
    EXPECT_EQ(regions.Find(buffer, buffer->data(), 1 << 20).value().region, first);
  }
  EXPECT_EQ(told_.registered, 1u);
}

TEST_P(BufferRegionsTest, OnlyWhatLiesInItWhole) {
  BufferRegions regions(&transport_);
  const std::shared_ptr<Buffer> buffer = buffers_.Allocate(100'000).value();
  std::byte elsewhere[16];
  EXPECT_EQ(regions.Find(nullptr, buffer->data(), 1).value().region, nullptr);
  EXPECT_EQ(regions.Find(buffer, elsewhere, sizeof elsewhere).value().region, nullptr);
  EXPECT_EQ(regions.Find(buffer, buffer->data() + 99'999, 2).value().region, nullptr);
  EXPECT_EQ(regions.Find(buffer, buffer->data() - 1, 2).value().region, nullptr);
  EXPECT_EQ(regions.Find(buffer, buffer->data(), 0).value().region, nullptr);
  EXPECT_EQ(told_.registered, 0u);
  EXPECT_NE(regions.Find(buffer, buffer->data() + 99'999, 1).value().region, nullptr);
}

TEST_P(BufferRegionsTest, AFreedBufferIsHeldUntilItsRegistrationIsDropped) {
  BufferRegions regions(&transport_);
  std::shared_ptr<Buffer> buffer = buffers_.Allocate(1 << 20).value();
  const std::shared_ptr<Buffer> other = buffers_.Allocate(1 << 20).value();
  const std::weak_ptr<Buffer> memory = buffer;
  ASSERT_TRUE(regions.Find(buffer, buffer->data(), 1).ok());
  ASSERT_TRUE(regions.Find(other, other->data(), 1).ok());
  ASSERT_TRUE(buffers_.Free(buffer.get()).ok());
  EXPECT_EQ(freed_, 1);
  buffer.reset();
  EXPECT_FALSE(memory.expired()) << "somebody may still reach it";
  regions.DropFreed();
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(told_.regions.size(), 1u);
  EXPECT_EQ(regions.size(), 1u);
  // The fence takes one away, and the next use brings it back.
  regions.Drop(other);
  EXPECT_TRUE(told_.regions.empty());
  ASSERT_TRUE(regions.Find(other, other->data(), 1).ok());
  EXPECT_EQ(told_.registered, 3u);
  regions.Clear();
  EXPECT_TRUE(told_.regions.empty());
}

TEST_P(BufferRegionsTest, ARefusalIsTriedAgain) {
  BufferRegions regions(&transport_);
  const std::shared_ptr<Buffer> buffer = buffers_.Allocate(1 << 20).value();
  told_.full = true;
  EXPECT_EQ(regions.Find(buffer, buffer->data(), 1).status().code(), absl::StatusCode::kResourceExhausted);
  told_.full = false;
  EXPECT_NE(regions.Find(buffer, buffer->data(), 1).value().region, nullptr);
  EXPECT_EQ(told_.registered, 1u);
}

TEST_P(BufferRegionsTest, SmallBuffersAndThoseOfASessionWithoutSuchTransportsAreNoFiles) {
  EXPECT_LT(buffers_.Allocate(Buffer::kLeastShared - 1).value()->fd(), 0);
  EXPECT_GE(buffers_.Allocate(Buffer::kLeastShared).value()->fd(), 0);
  buffers_.Unshare();
  EXPECT_LT(buffers_.Allocate(Buffer::kLeastShared).value()->fd(), 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, BufferRegionsTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Sharing" : "Plain"; });

}  // namespace
}  // namespace byteps
