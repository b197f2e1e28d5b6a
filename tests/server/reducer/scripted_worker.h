// scripted_worker.h - the other side of a Reducer in tests: says on the wire what the test asks, right or wrong.
//
//     ScriptedWorker worker(std::move(transport), options);
//     worker.Join(now, epoch, server_member);
//     Ask ask = {.key = 1 << 16, .round = 1, .dtype = BPS_FLOAT32, .input = bytes};
//     worker.Push(ask);                                   // when a slot is free, if it needs one
//     worker.answer(ask)->result / ->code / ->text
//
// Inputs are kept and pushed again when the server says SEND_AGAIN. Results come inline, into a buffer shown to the
// server for this push, or into slots lent to it, or where the server itself has written them (Ask::in_place).
#ifndef BYTEPS_TESTS_SERVER_REDUCER_SCRIPTED_WORKER_H_
#define BYTEPS_TESTS_SERVER_REDUCER_SCRIPTED_WORKER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "abi/byteps.h"
#include "core/base/log.h"
#include "core/control/control.pb.h"
#include "core/link/endpoint.h"
#include "core/plugin/transport.h"
#include "core/wire/landing_table.h"

namespace byteps {

using Bytes = std::vector<std::byte>;

enum class ResultPlace { kDirect, kLentSlot };

struct Ask {
  uint64_t key = 1 << 16;
  uint64_t fingerprint = 77;
  uint64_t round = 1;
  uint32_t part = 0;
  uint32_t parts = 1;
  uint32_t dtype = BPS_FLOAT32;
  int32_t reduction = BPS_SUM;
  wire::Operation operation = wire::Operation::kPushPull;
  int32_t root = 0;
  uint64_t elements = 0;
  Bytes input;              // empty: nothing is sent (broadcast, not the root)
  bool in_record = false;   // the payload goes inline; else into a slot
  bool in_place = false;    // or stays where it is, in a copy of `input`
  bool over_input = false;  // in place: the result is written over it
  int64_t priority = 0;
  uint32_t rate = 0;
  ResultPlace place = ResultPlace::kDirect;
  uint32_t timeout_ms = 0;
  std::optional<std::vector<int64_t>> shape;  // as it is told
  std::optional<uint32_t> checksum;           // likewise, of the input
};

struct Answer {
  int results = 0;
  int errors = 0;
  int again = 0;
  int stalls = 0;
  std::string stall;
  Bytes result;
  std::optional<uint32_t> checksum;  // as RESULT has told it
  uint32_t rate = 0;
  int32_t code = BPS_OK;
  std::string text;
  uint32_t flags = 0;
  bool ended() const { return results + errors > 0; }
};

struct ScriptedWorkerOptions {
  std::string node;
  uint32_t member = 0;
  uint32_t rank = 0;
  uint64_t slot_bytes = 0;
  uint32_t lent_slots = 2;
  std::string transport_name = "sim";
  EndpointOptions endpoint;
};

class ScriptedWorker : private EndpointHandler {
 public:
  ScriptedWorker(Transport transport, const ScriptedWorkerOptions& options);
  ~ScriptedWorker() override;

  // For the epoch.
  control::Member member() const;
  absl::Status Join(Time now, const control::Epoch& epoch, uint32_t own_lane_of_server = 0);
  bool ready() const { return ready_; }
  void Poll(Time now);

  void Push(const Ask& ask);
  void Cancel(const Ask& ask, int32_t code, const std::string& text);
  // What came back; nullptr before the first thing did. Asks are told apart by key, round and part.
  const Answer* answer(const Ask& ask) const;
  bool ended(const Ask& ask) const { return answer(ask) != nullptr && answer(ask)->ended(); }
  size_t waiting() const { return queue_.size(); }

  // Any record.
  void SendRaw(wire::RecordType type, std::span<const std::byte> body, std::span<const std::byte> payload = {});
  // The header Push would send.
  wire::DataHeader HeaderOf(const Ask& ask) const;
  // Header and shape.
  static Bytes HeadOf(const Ask& ask, const wire::DataHeader& header);
  Endpoint& endpoint() { return *endpoint_; }
  PeerId server() const { return server_; }

  // Takes away what an Ask has shown, whatever the server is doing. Its output as it is then.
  Bytes TakeBack(const Ask& ask);
  // False: the server has said that it does not reach this worker's memory any more. Nothing is in place from then on.
  bool reached() const { return reached_; }
  // Keys of asks in the order in which their results came.
  const std::vector<uint64_t>& order() const { return order_; }

  // Results in lent slots are not taken out, so that the server runs out of them.
  bool hold_slots = false;
  // SEND_AGAIN is not answered.
  bool ignore_again = false;
  // A RESULT that no Ask has asked for is dropped (SendRaw may have).
  bool takes_anything = false;
  std::optional<absl::Status> down;

 private:
  using Name = std::tuple<uint64_t, uint64_t, uint32_t>;
  struct Pushed {
    Ask ask;
    Bytes output;
    bps_region* region = nullptr;
    Bytes source;  // in place
    bps_region* source_region = nullptr;
    std::optional<uint32_t> immediate;
    Answer answer;
  };

  void OnReady(PeerId peer) override;
  void OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) override;
  void OnLanded(uint32_t immediate) override;
  void OnWritten(PeerId, uint64_t, int32_t) override {}
  void OnRoom(PeerId) override {}
  void OnPeerDown(PeerId, const absl::Status& why) override { down = why; }
  void OnRemoved(PeerId) override {}

  bool TryPush(Pushed* pushed);
  void Landed(uint32_t immediate, uint64_t cookie);
  void TakeHeld();
  void EndExposure(Pushed* pushed);

  const ScriptedWorkerOptions options_;
  Logger log_;
  std::unique_ptr<Endpoint> endpoint_;
  std::string address_;
  PeerId server_ = 0;
  bool ready_ = false;
  bool reached_ = true;
  LandingTable table_;
  Bytes window_;
  bps_region* window_region_ = nullptr;
  uint32_t first_slot_ = 0;
  std::vector<std::unique_ptr<Pushed>> all_;
  std::map<Name, Pushed*> by_name_;
  std::deque<Pushed*> queue_;
  std::vector<std::pair<uint32_t, uint64_t>> held_;
  std::vector<uint64_t> order_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SERVER_REDUCER_SCRIPTED_WORKER_H_
