#include "frameworks/common/collective.h"

#include <atomic>
#include <memory>
#include <utility>

#include "frameworks/common/submit.h"

namespace byteps::binding {
namespace {

// An operation from its call to its end. It ends when the call has returned, which brings the request, and the library
// has called back: the later of the two tells.
struct Pending {
  Pending(std::shared_ptr<const Library> of, CollectiveDone call) : library(std::move(of)), done(std::move(call)) {}

  std::shared_ptr<const Library> library;  // another session may be attached before the end
  CollectiveDone done;
  bps_request* request = nullptr;
  Outcome outcome;
  std::atomic<bool> other_was_here = false;
};

void Arrive(Pending* arrived) {
  if (!arrived->other_was_here.exchange(true, std::memory_order_acq_rel)) return;
  const std::unique_ptr<Pending> pending(arrived);
  CollectiveResult result;
  if (pending->outcome.ok()) {
    result = CollectiveResult(*pending->library, pending->request);
  } else {
    pending->library->bps_request_free(pending->request);
  }
  pending->done(pending->outcome, std::move(result));
}

void Finish(void* user, bps_status* error) {
  auto* pending = static_cast<Pending*>(user);
  pending->outcome = AttachedSession::Take(*pending->library, error);
  Arrive(pending);
}

// A round that is given up, until it has ended.
struct GivenUp {
  std::shared_ptr<const Library> library;
  Done ended;
};

void FinishGivenUp(void* user, bps_status* error) {
  const std::unique_ptr<GivenUp> pending(static_cast<GivenUp*>(user));
  pending->ended(AttachedSession::Take(*pending->library, error));
}

}  // namespace

CollectiveResult::CollectiveResult(const Library& library, bps_request* request)
    : request_(request, library.bps_request_free) {
  library.bps_status_free(library.bps_request_result(request, 0, &result_));
}

std::vector<int64_t> CollectiveResult::shape() const { return {result_.shape, result_.shape + result_.ndim}; }

std::vector<int64_t> CollectiveResult::splits() const {
  if (result_.splits == nullptr) return {};
  return {result_.splits, result_.splits + result_.num_splits};
}

bps_status* FillArgs(const AttachedSession& session, const CollectiveSpec& spec, bps_collective_args* args) {
  if (!spec.ranks.empty()) {
    if (bps_status* error = session.ProcessSet(spec.ranks, &args->set)) return error;
  }
  args->kind = spec.kind;
  args->name = spec.tensor.name;
  args->dtype = spec.tensor.dtype;
  args->shape = spec.tensor.shape;
  args->ndim = spec.tensor.ndim;
  args->input = spec.input;
  args->output = spec.output;
  args->output_bytes = spec.output_bytes;
  args->op = spec.op;
  args->root = spec.root;
  args->priority = spec.priority;
  if (spec.prescale != 1 || spec.postscale != 1) {
    args->scaled = 1;
    args->prescale = spec.prescale;
    args->postscale = spec.postscale;
  }
  if (!spec.splits.empty()) {
    args->splits = spec.splits.data();
    args->num_splits = static_cast<int32_t>(spec.splits.size());
  }
  return nullptr;
}

void Collective(const AttachedSession& session, const CollectiveSpec& spec, CollectiveDone done) {
  std::unique_ptr<Pending> pending;
  const Outcome outcome = session.Use([&](const Library& library, bps_session* open) -> bps_status* {
    bps_collective_args args = BPS_COLLECTIVE_ARGS_INIT;
    if (bps_status* error = FillArgs(session, spec, &args)) return error;
    pending = std::make_unique<Pending>(library.shared_from_this(), std::move(done));
    args.done = Finish;
    args.user = pending.get();
    const Match match(spec.tensor.match);
    args.ext = match.ext();
    return SubmitRound(library, args, &pending->request, [&](const bps_collective_args& with, bps_request** request) {
      return library.bps_collective(open, &with, request);
    });
  });
  if (outcome.ok()) {
    Arrive(pending.release());
    return;
  }
  if (pending != nullptr) done = std::move(pending->done);
  done(outcome, {});
}

void GiveUp(const AttachedSession& session, const CollectiveSpec& spec, const char* reason, Done ended) {
  std::unique_ptr<GivenUp> pending;
  const Outcome outcome = session.Use([&](const Library& library, bps_session* open) -> bps_status* {
    bps_collective_args args = BPS_COLLECTIVE_ARGS_INIT;
    if (bps_status* error = FillArgs(session, spec, &args)) return error;
    pending.reset(new GivenUp{library.shared_from_this(), std::move(ended)});
    args.done = FinishGivenUp;
    args.user = pending.get();
    const Match match(spec.tensor.match);
    args.ext = match.ext();
    bps_status* error = GiveUpRound(library, args, reason, [&](const bps_collective_args& with, bps_request** request) {
      return library.bps_collective(open, &with, request);
    });
    // Accepted: it may have ended already.
    if (error == nullptr) static_cast<void>(pending.release());
    return error;
  });
  if (outcome.ok()) return;
  if (pending != nullptr) ended = std::move(pending->ended);
  ended(outcome);
}

}  // namespace byteps::binding
