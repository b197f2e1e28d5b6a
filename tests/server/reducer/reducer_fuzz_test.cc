// A worker that lies as well as it can: valid records with bits changed, records of random bytes, messages below the
// endpoint. The server must not fall, nor the other session notice. Meant for AddressSanitizer.
#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/wire/message.h"
#include "gtest/gtest.h"
#include "tests/server/reducer/reduction_world.h"
#include "tests/server/reducer/together.h"

namespace byteps {
namespace {

class ReducerFuzzTest : public testing::TestWithParam<uint64_t> {};

// Values at which comparisons and sums break.
template <typename T>
T Awkward(std::mt19937_64& random) {
  const T values[] = {0,
                      1,
                      2,
                      3,
                      static_cast<T>(~T{0}),
                      static_cast<T>(~T{0} - 1),
                      static_cast<T>(T{1} << (sizeof(T) * 8 - 1)),
                      static_cast<T>((T{1} << (sizeof(T) * 8 - 1)) - 1),
                      static_cast<T>(random())};
  return values[random() % std::size(values)];
}

wire::DataHeader RandomPush(ScriptedWorker& liar, std::mt19937_64& random) {
  Ask ask;
  ask.key = (1 + random() % 3) << 16 | random() % 2;
  ask.round = 1 + random() % 4;
  ask.fingerprint = random() % 8 == 0 ? 1 : 77;
  ask.parts = 2;
  ask.part = random() % 2;
  ask.dtype = random() % 2 == 0 ? BPS_FLOAT32 : BPS_FLOAT16;
  ask.reduction = static_cast<int32_t>(random() % 5);
  ask.elements = random() % 500;
  ask.timeout_ms = random() % 3 == 0 ? 1 : 0;
  ask.operation = random() % 4 == 0 ? wire::Operation::kBroadcast : wire::Operation::kPushPull;
  ask.input.resize(ask.elements * (ask.dtype == BPS_FLOAT32 ? 4 : 2));
  ask.in_record = true;
  wire::DataHeader header = liar.HeaderOf(ask);
  if (ask.input.empty()) header.way = wire::PayloadWay::kNone;
  if (random() % 3 == 0) {
    // A place for the result that does not exist.
    header.memory.key_size = static_cast<uint16_t>(liar.endpoint().caps().key_size);
    for (uint8_t& byte : header.memory.key) byte = static_cast<uint8_t>(random());
    header.memory.immediate = Awkward<uint32_t>(random);
    header.memory.offset = Awkward<uint64_t>(random);
  }
  return header;
}

void Mutate(wire::DataHeader* header, std::mt19937_64& random) {
  auto* bytes = reinterpret_cast<std::byte*>(header);
  switch (random() % 12) {
    case 0:
      bytes[random() % sizeof *header] ^= static_cast<std::byte>(1u << random() % 8);
      break;
    case 1:
      header->elements = Awkward<uint64_t>(random);
      break;
    case 2:
      header->payload_bytes = Awkward<uint64_t>(random);
      break;
    case 3:
      header->offset = Awkward<uint64_t>(random);
      break;
    case 4:
      header->part = Awkward<uint32_t>(random);
      break;
    case 5:
      header->round = Awkward<uint64_t>(random);
      break;
    case 6:
      header->immediate = Awkward<uint32_t>(random), header->way = wire::PayloadWay::kLanded;
      break;
    case 7:
      header->root = static_cast<int32_t>(Awkward<uint32_t>(random)), header->operation = wire::Operation::kBroadcast;
      break;
    case 8:
      header->way = static_cast<wire::PayloadWay>(random());
      break;
    case 9:
      header->memory.key_size = Awkward<uint16_t>(random);
      break;
    case 10:
      header->dtype = Awkward<uint32_t>(random);
      break;
    default:
      break;
  }
}

TEST_P(ReducerFuzzTest, LiesHurtTheirOwnSessionOnly) {
  std::mt19937_64 random(GetParam() * 7919);
  ReductionWorldOptions options;
  options.memory = 1 << 20;
  options.slot_bytes = 4096;
  ReductionWorld world(options);
  ReductionSession* honest = world.Open(2);
  ASSERT_NE(honest, nullptr);
  uint64_t honest_round = 0;
  for (int life = 0; life < 25; ++life) {
    ReductionSession* session = world.Open(2);
    ASSERT_NE(session, nullptr);
    const bool both = random() % 2 == 0;
    std::optional<Together> round;
    for (int step = 0; step < 60; ++step) {
      ScriptedWorker& liar = session->worker(both ? random() % 2 : 0);
      switch (random() % 10) {
        case 0: {
          Bytes junk(random() % 300);
          for (std::byte& byte : junk) byte = static_cast<std::byte>(random());
          liar.SendRaw(static_cast<wire::RecordType>(random() % 16), junk);
          break;
        }
        case 1:
        case 2: {
          wire::RoundBody body{};
          body.key = (1 + random() % 3) << 16;
          body.round = random() % 3 == 0 ? Awkward<uint64_t>(random) : random() % 5;
          body.part = random() % 2;
          body.rank = random() % 20 == 0 ? Awkward<uint32_t>(random) : (&liar == &session->worker(0) ? 0 : 1);
          body.code = static_cast<int32_t>(random() % 20);
          body.text = random() % 10 == 0 ? Awkward<uint32_t>(random) : 5;
          liar.SendRaw(wire::RecordType::kCancel, BytesOf(body), Bytes(5, std::byte{'x'}));
          break;
        }
        case 3: {
          // A real slot, written or not, with a header that is right or not.
          if (auto slot = liar.endpoint().TakeSlot(liar.server())) {
            wire::DataHeader header = RandomPush(liar, random);
            header.way = wire::PayloadWay::kLanded;
            header.immediate = slot->immediate;
            if (random() % 4 == 0) Mutate(&header, random);
            static const Bytes data(4096, std::byte{3});
            if (random() % 4 != 0) {
              liar.endpoint().WriteSlot(liar.server(), {nullptr, const_cast<std::byte*>(data.data())}, random() % 4096,
                                        *slot, 1);
            }
            liar.SendRaw(wire::RecordType::kPush, BytesOf(header));
          }
          break;
        }
        default: {
          wire::DataHeader header = RandomPush(liar, random);
          const uint64_t payload = header.payload_bytes;
          if (random() % 6 == 0) Mutate(&header, random);
          liar.SendRaw(wire::RecordType::kPush, BytesOf(header), Bytes(random() % 10 == 0 ? payload / 2 : payload));
          break;
        }
      }
      if (step % 10 == 0) {
        if (!round || round->Home(honest)) {
          if (round) round->Check(honest);
          Ask ask;
          ask.round = ++honest_round;
          ask.elements = 1000;
          round.emplace(ask, 2, std::vector<uint32_t>{}, honest_round);
          round->PushAll(honest);
        }
        world.Run([] { return false; }, kMillisecond);
      }
    }
    world.Run([] { return false; }, 20 * kMillisecond);
    if (round) {
      ASSERT_TRUE(world.Run([&] { return round->Home(honest); }));
      round->Check(honest);
    }
    for (const BrokenSession& broken : world.reducer().TakeBroken()) EXPECT_EQ(broken.session, session->id());
    world.reducer().EndSession(world.now(), session->id());
    ASSERT_TRUE(world.Run([&] { return world.reducer().sessions() == 1; }));
    EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0; })) << world.reducer().Describe();
    EXPECT_EQ(world.reducer().stats().open, 0u);
    world.Remove(session);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ReducerFuzzTest, testing::Range<uint64_t>(0, 12));

}  // namespace
}  // namespace byteps
