// joins.h - join: a rank that has no data left counts as zeros until all ranks have joined.
//
//     absl::Status refused = joins.Admit();                    // any thread: one join at a time
//     joins.Submit(now, {request, timeout, &last_rank});       // this rank has joined
//     if (joins.any_absent()) joins.Tell(now, rank, part);     // of each operation that this rank submits
//     while (joins.Run(now)) ...
//
// How it goes. There is no negotiation that a rank without data could answer, so the others tell it what to take part
// in:
//
//   1. JOINED goes to all, when no round that this rank gives up waits for its turn any more: ranks that have joined
//      hear of it from this one, and behind JOINED it tells nothing. (So two ranks each of which has such a round
//      behind an operation that the other never comes to wait until the deadlines of these.) Each rank then tells the
//      joined one of its operations in flight (TAKE_PART), and of those that have failed, answers with SEEN, and tells
//      it of every operation that it submits from then on. All ranks tell it, so that it hears of what one has
//      submitted and another has not; rounds are counted alike everywhere, so the second word is ignored.
//   2. The joined rank takes part as if its user had called, with zeros: by the same ways, through servers, among the
//      workers of a host, or among workers. So nothing else knows of joins. What has no result with zeros it gives up,
//      in words for all.
//   3. Rank 0 tells all the last (ALL_JOINED): of those that knew of the longest chain of others the one whose JOINED
//      came last. So a rank that went on when another had joined comes behind it. A join is over when that is
//      known, every other rank has joined and has said SEEN (links keep their order: no TAKE_PART comes afterwards),
//      and what was taken part in has ended.
//
// What has failed. A round that ends well, all ranks have submitted. One that fails, some may never come to, and no one
// else tells them: so each rank remembers the latest that has failed of each name (the joined one counts those before
// it, too) until its next join is over, when all have counted it.
//
// Joins are numbered. A rank may join for the next time while others have not ended the join before: it counts as
// absent for them when they have.
//
// Threads: Admit, Withdraw and joined may be called by any thread; all else by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_JOINS_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_JOINS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/aligned_memory.h"
#include "core/base/time.h"
#include "core/wire/wire.h"
#include "core/worker/collectives/absent_part.h"
#include "core/worker/collectives/peer_links.h"
#include "core/worker/tensor/request.h"

namespace byteps {

class JoinsHandler {
 public:
  virtual ~JoinsHandler() = default;
  // This rank is joined: takes part with zeros. False: not now, since the round before has not ended; again later.
  virtual bool OnTakePart(Time now, const AbsentPart& part) = 0;
  // All operations that this rank's user has submitted and that have not ended are to be told to `rank`, which has
  // joined.
  virtual void OnAbsent(Time now, uint32_t rank) = 0;
  // Do rounds that this rank gives up wait for the end of operations in flight?
  virtual bool WaitsToGiveUp() const = 0;
  virtual void OnJoinDone(std::shared_ptr<Request> request, const absl::Status& outcome) = 0;
};

struct JoinAsked {
  std::shared_ptr<Request> request;
  Time timeout = 0;              // since the last operation that this rank was told of
  int32_t* last_rank = nullptr;  // written before the request ends well
};

class Joins {
 public:
  Joins(PeerLinks* links, JoinsHandler* handler) : links_(links), handler_(handler) {}

  // The membership.
  void Start(uint32_t job_size, int32_t own_rank);

  // Any thread. From Admit on this rank has joined and may submit nothing; ALREADY_EXISTS: a caller waits already.
  absl::Status Admit();
  void Withdraw();
  bool joined() const { return joined_.load(std::memory_order_acquire); }
  // FAILED_PRECONDITION while this rank has joined.
  absl::Status CheckMaySubmit() const;

  // An admitted one. After a deadline or a cancel this rank is still joined; joining again waits on.
  void Submit(Time now, JoinAsked asked);
  // False: it is no join.
  bool Cancel(const Request* request, const absl::Status& why);
  void CancelAll(const absl::Status& why);
  bool waits() const { return asked_.request != nullptr; }
  std::string DescribeWait(const Request* request) const;

  // Ranks that have joined while this one has not, as far as its operations go: its caller may have been admitted to a
  // join before the engine has come to what it submitted earlier.
  bool any_absent() const { return !absent_.empty() && !told_; }
  const std::vector<uint32_t>& absent() const { return absent_; }
  // FAILED_PRECONDITION while there are any.
  absl::Status CheckAllPresent() const;
  void Tell(Time now, uint32_t rank, const AbsentPart& part);
  // A round of this rank has failed: ranks that join later are told of it, too.
  void Remember(AbsentPart part);

  // The memory of an operation that this rank takes part in, until Drop.
  std::byte* Hold(const Request* request, uint64_t bytes);
  // The operation has ended. False: it is none such.
  // Is it one of those?
  bool Holds(const Request* request) const { return held_.contains(request); }
  bool Drop(const Request* request) { return !held_.empty() && held_.erase(request) != 0; }

  // False: it breaks the protocol.
  bool OnRecord(Time now, uint32_t rank, wire::RecordType type, std::span<const std::byte> body);
  // Can this rank not go on without that one?
  bool Needs(uint32_t rank) const;
  bool Run(Time now);
  Time NextTimer() const;
  void Stop(const absl::Status& why);

 private:
  bool TellJoined(Time now);
  bool OnJoined(Time now, uint32_t rank, const wire::JoinBody& join);
  void Absent(Time now, uint32_t rank);
  void NoteArrival(Time now, uint32_t rank, const wire::JoinBody& join);
  void MaybeEnd(Time now);
  std::string Missing() const;
  void End(const absl::Status& outcome);

  PeerLinks* const links_;
  JoinsHandler* const handler_;
  uint32_t own_rank_ = 0;
  std::atomic<bool> joined_{false};
  std::atomic<bool> waited_for_{false};
  bool to_tell_ = false;  // JOINED is to go to all
  bool told_ = false;     // it has

  uint64_t ended_ = 0;                // joins of this rank that have ended
  std::vector<uint64_t> joins_;       // of each rank, that were heard of
  std::vector<uint64_t> seen_;        // the latest join of this rank that each has answered
  std::map<uint64_t, int32_t> last_;  // by join
  // Ranks that have come to a join.
  struct Come {
    uint32_t ranks = 0;
    int64_t place = 0;  // the largest of theirs: a logical clock
    uint32_t last = 0;  // who has that, and came last
  };
  std::map<uint64_t, Come> come_;  // by join
  std::vector<uint32_t> absent_;
  std::map<uint64_t, AbsentPart> failed_;  // by id: the latest round, since the last join
  JoinAsked asked_;
  Time heard_ = 0;                  // when this rank was last told of an operation
  std::deque<AbsentPart> waiting_;  // for the end of earlier rounds
  absl::flat_hash_map<const Request*, AlignedMemory> held_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_JOINS_H_
