#include "frameworks/common/operation.h"

#include <memory>
#include <utility>

#include "frameworks/common/submit.h"

namespace byteps::binding {
namespace {

// What an accepted operation needs when it ends, which may be behind the end of the session.
struct Pending {
  std::shared_ptr<const Library> library;
  Done done;
};

void Finish(void* user, bps_status* error) {
  const std::unique_ptr<Pending> pending(static_cast<Pending*>(user));
  pending->done(AttachedSession::Take(*pending->library, error));
}

bps_status* Declare(const Library& library, bps_session* open, const TensorSpec& spec, bps_tensor** tensor) {
  bps_declare_args args = BPS_DECLARE_ARGS_INIT;
  args.name = spec.name;
  args.shape = spec.shape;
  args.ndim = spec.ndim;
  args.dtype = spec.dtype;
  args.mode = spec.asynchronous ? BPS_MODE_ASYNCHRONOUS : BPS_MODE_SYNCHRONOUS;
  return library.bps_declare(open, &args, tensor);
}

// Declares the tensor, then calls `start(library, session, tensor, pending)`, which submits an operation with Finish
// and `pending` as its callback.
template <typename F>
void Submit(const AttachedSession& session, const TensorSpec& spec, Done done, F start) {
  std::unique_ptr<Pending> pending;
  const Outcome outcome = session.Use([&](const Library& library, bps_session* open) -> bps_status* {
    bps_tensor* tensor = nullptr;
    if (bps_status* error = Declare(library, open, spec, &tensor)) return error;

    pending.reset(new Pending{library.shared_from_this(), std::move(done)});
    bps_status* error = start(library, open, tensor, pending.get());
    // Accepted: it may have ended already.
    if (error == nullptr) static_cast<void>(pending.release());
    return error;
  });
  if (outcome.ok()) return;
  if (pending != nullptr) done = std::move(pending->done);
  done(outcome);
}

}  // namespace

void PushPull(const AttachedSession& session, const TensorSpec& tensor, const void* input, void* output, int32_t op,
              int64_t priority, Done done) {
  Submit(session, tensor, std::move(done),
         [&](const Library& library, bps_session* open, bps_tensor* declared, Pending* pending) {
           bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
           args.tensor = declared;
           args.input = input;
           args.output = output;
           args.op = op;
           args.priority = priority;
           args.done = Finish;
           args.user = pending;
           args.done_in_call = tensor.done_in_call ? 1 : 0;
           const Match match(tensor.match);
           args.ext = match.ext();
           return SubmitRound(library, args, nullptr, [&](const bps_push_pull_args& with, bps_request** request) {
             return library.bps_push_pull(open, &with, request);
           });
         });
}

void Broadcast(const AttachedSession& session, const TensorSpec& tensor, const void* input, void* output, int32_t root,
               int64_t priority, Done done) {
  Submit(session, tensor, std::move(done),
         [&](const Library& library, bps_session* open, bps_tensor* declared, Pending* pending) {
           bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
           args.tensor = declared;
           args.input = input;
           args.output = output;
           args.root = root;
           args.priority = priority;
           args.done = Finish;
           args.user = pending;
           args.done_in_call = tensor.done_in_call ? 1 : 0;
           const Match match(tensor.match);
           args.ext = match.ext();
           return SubmitRound(library, args, nullptr, [&](const bps_broadcast_args& with, bps_request** request) {
             return library.bps_broadcast(open, &with, request);
           });
         });
}

void GiveUpPushPull(const AttachedSession& session, const TensorSpec& tensor, int32_t op, const char* reason,
                    Done ended) {
  Submit(session, tensor, std::move(ended),
         [&](const Library& library, bps_session* open, bps_tensor* declared, Pending* pending) {
           bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
           args.tensor = declared;
           args.op = op;
           args.done = Finish;
           args.user = pending;
           const Match match(tensor.match);
           args.ext = match.ext();
           return GiveUpRound(library, args, reason, [&](const bps_push_pull_args& with, bps_request** request) {
             return library.bps_push_pull(open, &with, request);
           });
         });
}

void GiveUpBroadcast(const AttachedSession& session, const TensorSpec& tensor, int32_t root, const char* reason,
                     Done ended) {
  Submit(session, tensor, std::move(ended),
         [&](const Library& library, bps_session* open, bps_tensor* declared, Pending* pending) {
           bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
           args.tensor = declared;
           args.root = root;
           args.done = Finish;
           args.user = pending;
           const Match match(tensor.match);
           args.ext = match.ext();
           return GiveUpRound(library, args, reason, [&](const bps_broadcast_args& with, bps_request** request) {
             return library.bps_broadcast(open, &with, request);
           });
         });
}

}  // namespace byteps::binding
