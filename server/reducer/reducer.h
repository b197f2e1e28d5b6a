// reducer.h - one lane of the reduction server, as a step function: takes contributions, folds them, gives results out.
//
//     auto reducer = Reducer::Make(std::move(transport), options, &log);
//     reducer->AddSession(now, epoch, own_member);          // Epoch: connects to all its workers
//     while (reducer->Poll(now)) ...                        // until NextTimer(), or WaitFd() is readable
//     for (const BrokenSession& broken : reducer->TakeBroken()) tell the coordinator
//     reducer->EndSession(now, session);                    // SessionEnded, Failure: forgets it
//
// The data plane half of docs/protocol.md is the contract; round.h has the states of a round.
//
// The subtle parts:
//
// Arrival.   A contribution waits in the slot where it landed, and all are folded in one pass into the result when the
//            last one is there. It is moved only when its worker has no slot left, and at once if it is small or a
//            moment later if it is not: into the round's accumulator if it has one and it is this rank's turn, into a
//            block of the pool, or, without memory, nowhere: dropped, and asked for again (SEND_AGAIN). So a slow
//            worker holds the landing slots of the others for a moment only (windows.h).
// In place.  What is announced in place stays at its worker until the round is folded: with the last announcement the
//            round stands in a queue, by priority; one round is folded in each Poll, block by block out of every
//            member's memory and slots, and written straight into the outputs of those whose contribution was in place.
//            Within one Poll nothing else happens to it, so a worker that hears ERROR, or RESULT, knows that its memory
//            is left alone. Memory that can be mapped may be announced before it is here: its rounds stand aside until
//            it is. A worker whose memory is not reached any more is asked for what the round has not folded yet
//            (SEND_AGAIN).
// Progress.  Rounds that all have announced and that lack memory stand in a queue. The first gets an accumulator,
//            from the pool or the reserve, and is folded one contribution at a time. One accumulator, one slot per
//            worker: with that much memory, every round completes.
// Rounds.    Of one part at most one round gathers. A PUSH of a later round means that its sender has given the earlier
//            one up, which then fails for every member. Results of rounds that are over stay until they are written to
//            every member, however far the others are (deliveries.h).
// Asynchronous. Each worker has rounds of its own, of one contribution, which is added to the value that is kept
//            (kept_value.h) and answered with it.
// Failure.   A round that fails tells all that have contributed, and is remembered for those that come to it later.
//            One that fails since a worker has taken its memory away waits a moment for that worker's own words.
//            Every CANCEL is answered: by ERROR, unless the result is on its way already. A worker that is lost, or
//            sends nonsense, breaks its session and no other.
// Exceptions. A defect, or no memory, while something of a session is worked on breaks that session; what cannot be
// laid
//            to one goes through Poll, and the lane breaks all of its sessions (BreakAll) and goes on.
//
// Threads:   none; driven by one thread at a time.
// Errors:    AddSession says RESOURCE_EXHAUSTED when the lane's memory is too small for the session's landing slots.
#ifndef BYTEPS_SERVER_REDUCER_REDUCER_H_
#define BYTEPS_SERVER_REDUCER_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "core/link/endpoint.h"
#include "core/link/memory_probe.h"
#include "core/plugin/scheduler.h"
#include "core/plugin/transport.h"
#include "core/wire/push_head.h"
#include "core/wire/wire.h"
#include "server/reducer/awaited_rounds.h"
#include "server/reducer/deliveries.h"
#include "server/reducer/holdings.h"
#include "server/reducer/kept_value.h"
#include "server/reducer/pool.h"
#include "server/reducer/ready_rounds.h"
#include "server/reducer/round.h"
#include "server/reducer/served_session.h"
#include "server/reducer/windows.h"
#include "server/reducer/worker_memory.h"

namespace byteps {

struct ReducerOptions {
  EndpointOptions endpoint;
  uint32_t lane = 0;            // number of this lane within its server
  std::string transport;        // its plugin's name, as in the workers' lanes
  uint64_t memory = 0;          // bytes for landing slots, what waits, and results
  uint64_t slot_bytes = 0;      // as in Hello
  uint32_t slots_per_peer = 8;  // fewer where memory is short
  uint64_t inline_bytes = 0;    // results up to this size travel inside the record
  size_t most_idle_parts = 1 << 17;
  Time stall_warning = kNever;  // those that have contributed are told which have not for so long
  // Makes what orders the results (BYTEPS_SERVER_ENABLE_SCHEDULE); empty: they go as they come.
  std::function<absl::StatusOr<Scheduler>()> make_scheduler;
};

// A session that cannot go on, for the coordinator.
struct BrokenSession {
  uint64_t session = 0;
  uint32_t member = 0;  // which was lost; 0: none in particular
  absl::Status why;
};

struct ReducerStats {
  uint64_t rounds = 0;  // folded
  uint64_t bytes = 0;   // of their results
  uint64_t failed = 0;
  uint64_t in_place = 0;    // contributions that were read where they were
  uint64_t mapped = 0;      // of these: without a copy, out of memory that is mapped here
  uint64_t landed = 0;      // contributions that came by a slot
  uint64_t parked = 0;      // contributions that were moved out of their slots
  uint64_t dropped = 0;     // contributions
  uint64_t sent_again = 0;  // SEND_AGAIN
  uint64_t open = 0;        // rounds now
  uint64_t parts = 0;       // known
  PoolStats pool;
};

class Reducer : private EndpointHandler {
 public:
  static absl::StatusOr<std::unique_ptr<Reducer>> Make(Transport transport, const ReducerOptions& options, Logger* log);
  ~Reducer() override;

  // Joins the session of this membership. After an error nothing of it is left.
  absl::Status AddSession(Time now, const control::Epoch& epoch, uint32_t own_member);
  // Forgets the session: its workers are disconnected, then its memory is free. An unknown one is ignored.
  void EndSession(Time now, uint64_t session);

  // One round of progress. True if anything happened.
  bool Poll(Time now);
  Time NextTimer() const;
  int WaitFd() { return endpoint_.WaitFd(); }
  bool Arm() { return endpoint_.Arm(); }

  // An exception came out of Poll, AddSession or EndSession: no session of this lane can go on.
  void BreakAll(const char* what);
  // Sessions that broke since the last call.
  std::vector<BrokenSession> TakeBroken() { return std::exchange(broken_, {}); }
  // Sessions that are there, also those whose workers are being disconnected.
  size_t sessions() const { return sessions_.size(); }

  const bps_transport_caps& caps() const { return endpoint_.caps(); }
  absl::StatusOr<std::string> Address() { return endpoint_.transport().Address(); }
  ReducerStats stats() const;
  // Sessions and open rounds, one per line.
  std::string Describe() const;

 private:
  static constexpr uint32_t kNobody = UINT32_MAX;

  struct Link {
    ServedSession* session = nullptr;
    uint32_t rank = 0;
    uint32_t contributor = 0;  // that it speaks for
  };

  Reducer(Transport transport, const ReducerOptions& options, Logger* log);

  // To the scheduler of the results.
  void TellPeers();

  void OnReady(PeerId peer) override;
  void OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) override;
  void OnLanded(uint32_t immediate) override;
  void OnWritten(PeerId peer, uint64_t user, int32_t code) override;
  void OnRoom(PeerId peer) override;
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  void OnRemoved(PeerId peer) override;

  // Contributions.
  void OnRecordOf(PeerId peer, const Link& link, wire::RecordType type, std::span<const std::byte> body);
  void OnPush(PeerId peer, const Link& link, std::span<const std::byte> body);
  // The round a PUSH belongs to, begun if need be; nullptr if it is past: then `why`.
  Round* RoundOf(const Link& link, const Push& push, absl::Status* why);
  void Take(Round* round, const Link& link, const wire::DataHeader& header, std::span<const std::byte> payload);
  void Settle(Round* round);
  // False: these are not the bytes that the worker has sent; the round has failed.
  bool Unaltered(Round* round, uint32_t index, const std::byte* payload);
  void Arrived(Round* round, uint32_t index, const std::byte* payload);

  // Completion.
  bool CompleteInOnePass(Round* round, uint32_t last, const std::byte* payload);
  bool FoldReady();
  void Complete(Round* round);
  bool CompleteInPlace(Round* round);
  // Is what was announced in place here? If not, the round stands aside, or is no more.
  bool Reach(Round* round);
  void GoOn(Round* round);
  void Unreachable(Round* round, const WorkerMemory::Result& result);
  bool Refused(Round* round, const WorkerMemory::Result& result);
  void CompleteFromAccumulator(Round* round);
  void Finish(Round* round, Block block);
  void Deliver(Round* round, Block block);
  void DeliverInline(Round* round);
  void Over(Round* round);

  // Asynchronous tensors.
  void Apply(Round* round, const std::byte* payload);
  void ApplyInPlace(Round* round);
  void AskAgain(Round* round);
  void AnswerWaiting(KeptValue* value);
  bool Answer(Round* round);
  bool AnswerUnanswered();

  // Short of memory.
  void AwaitMemory(Round* round);
  void Recall(Round* round);
  bool ResumeAwaitingMemory();
  bool FoldRest(Round* round);

  // Failure.
  void OnCancel(PeerId peer, const Link& link, std::span<const std::byte> body);
  void Discard(const wire::DataHeader& header);
  void Fail(Round* round, const absl::Status& why);
  void FailMismatch(Round* round, uint32_t rank, const Push& push);
  // Fails round `number` of a partition, whether or not any member has come to it; tells `link` in any case.
  void FailNumber(PeerId peer, const Link& link, const wire::RoundBody& round, const absl::Status& why);
  void Violation(PeerId peer, const Link& link, const absl::Status& what);
  void Break(ServedSession* session, uint32_t member, const absl::Status& why);
  absl::Status Unexpected(const char* what) const;
  // Works on something of `session`.
  template <typename Body>
  void Guarded(ServedSession* session, Body&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      Break(session, 0, Unexpected(error.what()));
    }
  }
  void SendError(PeerId peer, wire::RoundBody round, const absl::Status& why);
  bool CheckDeadlines();
  // When the round is looked at next: its deadline, or its stall.
  Time DueAt(const Round& round) const;
  void TellStall(Round* round);

  Round* NewRound(const Link& link, Part* part, const Push& push);
  void Unlist(Round* round);
  void Close(Round* round);
  void ForgetRounds(const ServedSession* session);
  void Erase(uint64_t session);

  const ReducerOptions options_;
  Logger* const log_;
  Endpoint endpoint_;
  Pool pool_;  // behind the endpoint: regions go before the transport
  Windows windows_;
  Holdings holdings_;
  Deliveries deliveries_;
  MemoryProbe probe_;
  WorkerMemory memory_;
  uint64_t inline_bytes_ = 0;
  const Contributors one_{1};  // of rounds of asynchronous tensors

  absl::flat_hash_map<uint64_t, std::unique_ptr<ServedSession>> sessions_;
  using Kept = std::pair<uint64_t, uint64_t>;  // key and round
  Kept kept_;                                  // of the last result that a worker did not get in its time
  absl::flat_hash_map<PeerId, Link> links_;
  std::vector<std::unique_ptr<Round>> rounds_;
  std::vector<Round*> free_rounds_;
  std::vector<Round*> open_;  // neither over nor failed
  std::deque<Round*> awaiting_memory_;
  std::deque<Round*> unanswered_;  // of asynchronous tensors: added, and no memory for the answer
  ReadyRounds ready_;
  AwaitedRounds awaited_;            // ready or recalling
  std::vector<const void*> inputs_;  // scratch of the folds
  std::vector<uint64_t> scratch_;    // results that travel inside the record, and payloads that are not aligned
  std::vector<uint64_t> aligned_;
  std::vector<BrokenSession> broken_;
  Time next_deadline_ = kNever;
  Time now_ = 0;
  ReducerStats stats_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_REDUCER_H_
