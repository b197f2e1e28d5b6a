// What make_corpus.py writes for peers_fuzz is what workers say: where its layout is not that of peer_records.h any
// more, the fuzzer would begin with records that the first check refuses.

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/wire/message.h"
#include "core/wire/wire.h"
#include "core/worker/collectives/absent_part.h"
#include "core/worker/collectives/peer_announcement.h"
#include "core/worker/collectives/peer_records.h"
#include "gtest/gtest.h"
#include "tests/fuzz/input.h"

namespace byteps::fuzz {
namespace {

// As many bytes as the struct at its beginning says; 0: it is too short for that.
template <typename Body>
size_t Told(std::span<const std::byte> bytes, size_t (*rest)(const Body&)) {
  Body body;
  return ReadStruct(bytes, &body) ? sizeof body + rest(body) : 0;
}

size_t Told(wire::RecordType type, std::span<const std::byte> bytes) {
  switch (type) {
    case wire::RecordType::kAnnounce: {
      const absl::StatusOr<PeerAnnouncement> decoded = PeerAnnouncement::Decode(bytes);
      EXPECT_TRUE(decoded.ok()) << decoded.status();
      if (!decoded.ok()) return 0;
      EXPECT_EQ(decoded->body.rank, 1);
      return decoded->Encode(decoded->payload).size();
    }
    case wire::RecordType::kTakePart: {
      const absl::StatusOr<AbsentPart> decoded = AbsentPart::Decode(bytes);
      EXPECT_TRUE(decoded.ok()) << decoded.status();
      return decoded.ok() ? decoded->Encode().size() : 0;
    }
    case wire::RecordType::kReady:
      return Told<wire::ReadyBody>(bytes, [](const wire::ReadyBody& body) {
        return 2 * size_t{body.key_size} + body.count * sizeof(wire::ReadyEntry);
      });
    case wire::RecordType::kData:
      return Told<wire::DataBody>(bytes, [](const wire::DataBody& body) { return size_t{body.size}; });
    case wire::RecordType::kAbort:
      return Told<wire::AbortBody>(bytes, [](const wire::AbortBody& body) { return size_t{body.text}; });
    default:
      return Told<wire::JoinBody>(bytes, [](const wire::JoinBody&) { return size_t{0}; });
  }
}

TEST(Corpus, TheRecordsOfPeersAreSuchAsWorkersSend) {
  // Not all that is in the folder: what a fuzzer has found is there, too.
  for (const char* const name : {"sum", "large_sum", "gather", "swap", "root", "disagreement", "joined", "take_part",
                                 "take_part_of_a_far_round"}) {
    SCOPED_TRACE(name);
    std::ifstream file(std::string("tests/fuzz/corpus/peers/") + name, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    Input input(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    input.Byte();  // whether the worker has joined
    ASSERT_FALSE(input.empty());
    while (!input.empty()) {
      const auto type = static_cast<wire::RecordType>(input.Byte());
      const std::span<const std::byte> body = input.Piece();
      EXPECT_EQ(Told(type, body), body.size()) << "a record of type " << static_cast<int>(type);
    }
  }
}

}  // namespace
}  // namespace byteps::fuzz
