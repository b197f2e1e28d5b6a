// collectives.h - the operations that workers carry out among themselves, without servers.
//
//     Collectives collectives(options, open_transport, &sink, log);
//     collectives.Start(epoch, self);
//     absl::Status refused = collectives.Admit(asked);        // any thread
//     collectives.Submit(now, asked);                         // its request ends, whatever happens
//     while (collectives.Run(now)) ...
//
// The way of an operation (records in peer_records.h, steps in exchange_plan.h):
//
//   1. ANNOUNCE to all that take part, with what is small of the bytes. No permission is asked for, and
//      operations of different names need no order.
//   2. With the announcements of all, each rank compares them: a disagreement is seen by all alike, and names the
//      ranks and what each asks. Else each makes its plan, shows memory for what is large (READY), writes what others
//      have shown, folds what has come.
//   3. It is over when this rank has what it gets and has given what it owes. No last word is needed: no rank reads the
//      memory of another.
//
// Giving up. A rank that fails a round tells all others (ABORT), which fail it too. Its memory may still be written: so
// each says once more when its own writes have ended (ABORT, answer), and the memory of one that does not within a
// grace period is taken away: unregistering is the fence. A rank that has not submitted it yet is refused when it does.
// A peer that is lost while operations with it are in flight is fatal.
//
// Memory of GPUs. An operation on it is submitted at once, in its caller's order, and so has its place among those of
// its name, and its deadline; but it is held, and announces nothing, until its input is on the host. When its round is
// over, its result goes to the GPU, and the request ends (collective_copies.h).
//
// Names. Operations of all ranks under one name are one sequence with the push_pulls and broadcasts of that name, which
// go through stages: one at a time on each rank, counted together (TensorName). So ranks of which some go one way and
// some the other meet in a round of the same number: a rank that goes through stages sees it, by the ANNOUNCE of
// another, fails its operation, and tells all others by ABORT (BeginStaged, OnAnnounce). A round that is given up
// on one way ends on the other: FailStaged tells those that announce, an ABORT those in stages.
//
// Threads: Admit may be called by any thread; all else by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_COLLECTIVES_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_COLLECTIVES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "core/link/endpoint.h"
#include "core/worker/collectives/absent_part.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/collectives/collective_copies.h"
#include "core/worker/collectives/joins.h"
#include "core/worker/collectives/peer_links.h"
#include "core/worker/collectives/peer_round.h"
#include "core/worker/collectives/round_table.h"
#include "core/worker/tensor/flight_place.h"
#include "core/worker/tensor/operation.h"
#include "core/worker/tensor/tensor.h"

namespace byteps {

class CollectivesSink {
 public:
  virtual ~CollectivesSink() = default;
  virtual void OnCollectiveDone(std::shared_ptr<Request> request, const absl::Status& outcome) = 0;
  // Nothing can go on. `member`: of the job, whose loss it is; 0: none's.
  virtual void OnCollectivesFatal(const absl::Status& why, uint32_t member) = 0;
  virtual void OnTellPeers(const std::vector<uint32_t>& members, const control::Lane& lane) = 0;
  // As of JoinsHandler, of operations that are no collectives among workers.
  virtual bool OnTakePart(Time now, const AbsentPart& part) = 0;
  virtual void OnAbsent(Time now, uint32_t rank) = 0;
  virtual bool WaitsToGiveUp() const = 0;
  // What counts the rounds of this name; any thread.
  virtual TensorName* OnName(const std::string& text) = 0;
  // The operation in flight that goes through stages in this round of the name of this id; nullptr: there is none.
  virtual Operation* OnStaged(uint64_t id, uint64_t round) = 0;
  // Others ask in its round for an operation among workers, or have given such up: it is to be given up.
  virtual void OnClash(Time now, Operation* staged, const absl::Status& why) = 0;
};

struct CollectivesOptions {
  EndpointOptions endpoint;
  Time release_grace = 0;  // how long others are waited for after an operation was given up
};

class Collectives : private PeerLinksHandler, private JoinsHandler, private CollectiveCopiesSink {
 public:
  // `open`: see PeerLinks; never called by a worker alone.
  Collectives(CollectivesOptions options, PeerLinks::Open open, CollectivesSink* sink, Logger* log);
  ~Collectives() override;

  // The membership.
  void Start(const control::Epoch& epoch, const control::Member& self);
  // A worker alone.
  void StartAlone();
  uint32_t job_size() const { return job_size_; }
  int32_t own_rank() const { return own_rank_; }

  // What copies operations on memory of GPUs; before the first such operation.
  void UseCopies(std::unique_ptr<CollectiveCopies> copies);
  // Behind Stop.
  void DropCopies() { copies_.reset(); }

  // Checks an operation and takes its name's place in flight, or, of a round that is given up, waits for it. Not OK:
  // refused, nothing happened. Any thread.
  absl::Status Admit(const Collective& asked);
  // Gives the place back of one that was admitted and is not submitted. Any thread.
  void Withdraw(const Collective& asked);
  void Submit(Time now, Collective asked);
  // Which ranks count as zeros.
  Joins& joins() { return joins_; }
  const Joins& joins() const { return joins_; }
  // An operation that goes through stages takes a round of its name. Not OK: other ranks ask for an operation among
  // workers in this round; they have been told, and none may begin it.
  absl::Status BeginStaged(Time now, const Operation& staged);
  // It has failed: a rank that goes the other way in this round is told why, now or when it comes.
  void FailStaged(const Operation& staged, const absl::Status& why);
  // False: it has no such operation.
  bool Cancel(Time now, const Request* request, const absl::Status& why);
  void CancelAll(Time now, const absl::Status& why);
  // The coordinator passes on where a worker can be reached.
  void OnAddress(Time now, uint32_t member, const control::Lane& lane) { links_.OnAddress(now, member, lane); }

  bool Run(Time now);
  Time NextTimer() const;
  // Ends everything with this cause.
  void Stop(const absl::Status& why);
  // The same, but that nothing is called and nothing given back: the requests that end by it.
  std::vector<std::shared_ptr<Request>> Disown(const absl::Status& why) {
    std::vector<std::shared_ptr<Request>> requests;
    if (std::exchange(stopped_, true)) return requests;
    stop_cause_ = why;
    for (const PeerRound* round : rounds_.Submitted()) requests.push_back(round->asked().request);
    for (const Collective& asked : given_up_) requests.push_back(asked.request);
    if (copies_ != nullptr) {
      for (std::shared_ptr<Request>& request : copies_->Disown()) requests.push_back(std::move(request));
    }
    requests_.clear();  // they are not cancelled any more
    return requests;
  }

  size_t in_flight() const {
    return requests_.size() + given_up_.size() + (joins_.waits() ? 1 : 0) +
           (copies_ == nullptr ? 0 : copies_->in_flight());
  }
  // What an operation waits for; empty: it has none such.
  std::string DescribeWait(Time now, const Request* request) const;
  void AddEndpoints(std::vector<Endpoint*>* all) { links_.AddEndpoints(all); }

 private:
  // PeerLinksHandler.
  void OnTellAddress(const std::vector<uint32_t>& members, const control::Lane& lane) override;
  void OnPeerRecord(uint32_t rank, wire::RecordType type, std::span<const std::byte> body) override;
  void OnPeerLanded(uint64_t user) override;
  void OnPeerWritten(uint32_t rank, uint64_t user, int32_t code) override;
  void OnPeerLost(uint32_t rank, const absl::Status& why) override;
  void OnLinksFailed(const absl::Status& why) override;

  // JoinsHandler.
  bool OnTakePart(Time now, const AbsentPart& part) override;
  void OnAbsent(Time now, uint32_t rank) override;
  bool WaitsToGiveUp() const override { return !given_up_.empty() || sink_->WaitsToGiveUp(); }
  void OnJoinDone(std::shared_ptr<Request> request, const absl::Status& outcome) override;

  // CollectiveCopiesSink.
  void OnInputCopied(const Request* request, const std::byte* input) override;
  void OnCopiesFailed(const Request* request, const absl::Status& why) override;
  void OnCopiesEnded(std::shared_ptr<Request> request, const absl::Status& outcome) override;

  absl::Status Take(const Collective& asked);
  template <typename Use>
  bool WithPlace(const Collective& asked, const Use& use) const;
  void LeavePlace(const Collective& asked);
  void BeginRound(Time now, Collective asked);
  bool RunGivenUp(Time now);
  void Refuse(Time now, const AbsentPart& part, uint64_t number, const absl::Status& why);
  void OnAnnounce(uint32_t rank, std::span<const std::byte> body);
  bool PassedByStages(uint32_t rank, const PeerAnnouncement& announcement, const TensorName& name);
  absl::Status Clash(const PeerAnnouncement& announcement, const Operation& staged) const;
  void OnReady(uint32_t rank, std::span<const std::byte> body);
  void OnData(uint32_t rank, std::span<const std::byte> body);
  void OnAbort(uint32_t rank, std::span<const std::byte> body);
  void InvalidRecord(uint32_t rank, const char* what);

  void Announce(PeerRound* round);
  void Begin(PeerRound* round);
  absl::Status Prepare(PeerRound* round);
  void TakeDelivered(PeerRound* round);
  void Deliver(PeerRound* round, size_t place, uint32_t transfer, std::span<const std::byte> bytes);
  bool Pump(PeerRound* round);
  bool PumpTo(PeerRound* round, size_t place);
  bool PostWrite(PeerRound* round, size_t place, uint32_t step, const ShownMemory& to);
  std::vector<uint32_t> GroupsOf(const ProcessSet& set) const;

  void GiveUp(PeerRound* round, const absl::Status& why, const absl::Status& told);
  void SendAbort(uint32_t rank, uint64_t id, uint64_t number, const absl::Status& why, bool answer);
  absl::Status Told(const absl::Status& why) const;
  void MaybeLeave(PeerRound* round);
  void Leave(PeerRound* round, const absl::Status& outcome);
  std::string Names(const PeerRound& round) const;
  void Fatal(const absl::Status& why, uint32_t member);

  const CollectivesOptions options_;
  CollectivesSink* const sink_;
  PeerLinks links_;
  Joins joins_;
  std::unique_ptr<CollectiveCopies> copies_;  // nullptr: no operation was on memory of a GPU
  control::Epoch epoch_;
  uint32_t job_size_ = 1;
  int32_t own_rank_ = 0;

  mutable std::mutex names_mutex_;
  mutable std::map<uint64_t, FlightPlace> places_;  // of names that are no tensor's, while they are taken or waited for
  std::vector<Collective> given_up_;                // rounds that wait for their turn

  RoundTable rounds_;
  struct FailedRound {
    uint64_t number;
    absl::Status why;
  };
  absl::flat_hash_map<uint64_t, std::deque<FailedRound>> failed_staged_;  // by id: the last ones
  absl::flat_hash_map<const Request*, PeerRound*> requests_;
  std::set<std::pair<int64_t, uint64_t>> order_;  // of rounds that move: complement of the priority, serial
  std::set<std::pair<Time, uint64_t>> alarms_;    // deadlines and releases, by serial
  std::vector<uint32_t> writes_;                  // to each rank, that have not ended
  bool stopped_ = false;
  absl::Status stop_cause_;
  bool fatal_ = false;
  Time now_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_COLLECTIVES_H_
