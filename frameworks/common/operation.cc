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

// Submits the operation that `args` say, of this tensor, by the library's function `call`. Given a reason, its round is
// given up instead.
template <typename Args, typename Call>
void Submit(const AttachedSession& session, const TensorSpec& spec, Args args, Call Library::*call, const char* reason,
            Done done) {
  std::unique_ptr<Pending> pending;
  const Outcome outcome = session.Use([&](const Library& library, bps_session* open) -> bps_status* {
    if (bps_status* error = Declare(library, open, spec, &args.tensor)) return error;

    pending.reset(new Pending{library.shared_from_this(), std::move(done)});
    args.done = Finish;
    args.user = pending.get();
    const Match match(spec.match);
    args.ext = match.ext();
    const auto submit = [&](const Args& with, bps_request** request) { return (library.*call)(open, &with, request); };
    bps_status* error =
        reason == nullptr ? SubmitRound(library, args, nullptr, submit) : GiveUpRound(library, args, reason, submit);
    // Accepted: it may have ended already.
    if (error == nullptr) static_cast<void>(pending.release());
    return error;
  });
  if (outcome.ok()) return;
  if (pending != nullptr) done = std::move(pending->done);
  done(outcome);
}

}  // namespace

bps_status* Declare(const Library& library, bps_session* open, const TensorSpec& spec, bps_tensor** tensor) {
  bps_declare_args args = BPS_DECLARE_ARGS_INIT;
  args.name = spec.name;
  args.shape = spec.shape;
  args.ndim = spec.ndim;
  args.dtype = spec.dtype;
  args.mode = spec.asynchronous ? BPS_MODE_ASYNCHRONOUS : BPS_MODE_SYNCHRONOUS;
  return library.bps_declare(open, &args, tensor);
}

void PushPull(const AttachedSession& session, const TensorSpec& tensor, const void* input, void* output, int32_t op,
              int64_t priority, Done done) {
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.input = input;
  args.output = output;
  args.op = op;
  args.priority = priority;
  args.done_in_call = tensor.done_in_call ? 1 : 0;
  Submit(session, tensor, args, &Library::bps_push_pull, nullptr, std::move(done));
}

void Broadcast(const AttachedSession& session, const TensorSpec& tensor, const void* input, void* output, int32_t root,
               int64_t priority, Done done) {
  bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  args.input = input;
  args.output = output;
  args.root = root;
  args.priority = priority;
  args.done_in_call = tensor.done_in_call ? 1 : 0;
  Submit(session, tensor, args, &Library::bps_broadcast, nullptr, std::move(done));
}

void GiveUpPushPull(const AttachedSession& session, const TensorSpec& tensor, int32_t op, const char* reason,
                    Done ended) {
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.op = op;
  Submit(session, tensor, args, &Library::bps_push_pull, reason, std::move(ended));
}

void GiveUpBroadcast(const AttachedSession& session, const TensorSpec& tensor, int32_t root, const char* reason,
                     Done ended) {
  bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  args.root = root;
  Submit(session, tensor, args, &Library::bps_broadcast, reason, std::move(ended));
}

}  // namespace byteps::binding
