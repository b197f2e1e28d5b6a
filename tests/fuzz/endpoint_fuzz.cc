// A link whose other side says anything behind its HELLO, HELLO included. Its slots are taken and written as they come:
// none is ever taken twice, and no write goes where nothing was lent.
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/link/endpoint.h"
#include "core/wire/message.h"
#include "core/wire/offer.h"
#include "core/wire/push_head.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/rogue.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps::fuzz {
namespace {

class Victim : public EndpointHandler {
 public:
  explicit Victim(const sim::SimTransport& opened) {
    Transport transport = Transport::Adopt(opened.table, opened.transport);
    address = *transport.Address();
    endpoint = std::make_unique<Endpoint>(std::move(transport), LinkOptions(), this, &log_);
  }
  void OnReady(PeerId) override { ready = true; }
  void OnRecord(PeerId, wire::RecordType type, std::span<const std::byte> body) override {
    if (type != wire::RecordType::kOffer) return;
    Offer offer;
    if (ReadOffer(body, &offer)) DescribeOffer(offer.body, offer.shape);
  }
  void OnLanded(uint32_t) override {}
  void OnWritten(PeerId, uint64_t, int32_t) override {}
  void OnRoom(PeerId) override {}
  void OnPeerDown(PeerId, const absl::Status&) override { down = true; }
  void OnRemoved(PeerId) override {}

  std::string address;
  std::unique_ptr<Endpoint> endpoint;
  bool ready = false, down = false;

 private:
  Logger log_{LogOptions{.level = LogLevel::kFatal}};
};

// What RETURN gives back is free again; as far as the record reaches.
void GiveBack(std::span<const std::byte> body, std::set<uint32_t>* taken) {
  wire::ReturnBody header;
  if (!ReadStruct(body, &header)) return;
  for (size_t i = 0; i < header.count && sizeof header + 4 * i + 4 <= body.size(); ++i) {
    uint32_t immediate = 0;
    std::memcpy(&immediate, body.data() + sizeof header + 4 * i, sizeof immediate);
    taken->erase(wire::ImmediateSlot(immediate));
  }
}

void Run(Input input) {
  sim::SimFabric fabric(Fabric());
  Victim victim(fabric.Open("victim"));
  Rogue rogue(fabric.Open("rogue"));
  const auto run = [&](Time limit) {
    const Time end = fabric.now() + limit;
    bool over = false;
    fabric.Timer(end, [&over] { over = true; });
    while (!over) {
      victim.endpoint->Poll(fabric.now());
      rogue.Poll(fabric.now());
      fabric.Step();
    }
  };
  BPS_FUZZ_CHECK(victim.endpoint->AddPeer(fabric.now(), Spec(1, 2, 2, 1, rogue.address())).ok());
  rogue.Meet(fabric.now(), Spec(2, 1, 1, 2, victim.address));
  for (int i = 0; i < 100 && !victim.ready; ++i) run(kMillisecond / 10);
  BPS_FUZZ_CHECK(victim.ready);

  std::set<uint32_t> taken;
  std::byte source[64] = {};
  while (!input.empty() && !victim.down) {
    const auto type = static_cast<wire::RecordType>(input.Byte());
    const std::span<const std::byte> body = input.Piece();
    rogue.Say(1, type, body);
    run(kMillisecond / 20);
    if (!victim.endpoint->Ready(2)) break;
    if (type == wire::RecordType::kReturn) GiveBack(body, &taken);
    while (const std::optional<RemoteSlot> slot = victim.endpoint->TakeSlot(2)) {
      BPS_FUZZ_CHECK(taken.insert(wire::ImmediateSlot(slot->immediate)).second);
      BPS_FUZZ_CHECK(taken.size() <= size_t{1} << wire::kSlotBits);
      if (taken.size() > 8) continue;
      victim.endpoint->WriteSlot(2, {nullptr, source}, std::min<uint64_t>(slot->bytes, sizeof source), *slot, 1);
    }
  }
  run(kMillisecond);
}

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  byteps::fuzz::Run(byteps::fuzz::Input(data, size));
  return 0;
}
