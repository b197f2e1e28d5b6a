#include "frameworks/common/gpu_operation.h"

#include <algorithm>
#include <optional>

#include "frameworks/common/submit.h"

namespace byteps::binding {
namespace {

// How long one wait for the end of an operation is. It ends the wait and not the operation: there is another.
constexpr int64_t kPatienceMs = 10'000;

bool HasEnded(const Library& library, const bps_request* request) {
  const int32_t state = library.bps_request_state(request);
  return state == BPS_REQUEST_DONE || state == BPS_REQUEST_FAILED;
}

// Asks the library to give the operation up, and returns when it has ended. Its own deadline may be over already, and
// then bounds no wait. What bounds this one is the session: it ends its operations when it fails or is closed.
void End(const Library& library, bps_request* request) {
  AttachedSession::Take(library, library.bps_cancel(request));
  while (!HasEnded(library, request)) {
    Outcome waited = AttachedSession::Take(library, library.bps_wait(request, kPatienceMs));
    // Any other answer (in a forked child, of a session whose thread is stuck) would come again at once, for ever.
    if (waited.code != BPS_DEADLINE_EXCEEDED) return;
  }
}

bool IsEmpty(const TensorSpec& tensor) {
  return std::find(tensor.shape, tensor.shape + tensor.ndim, 0) != tensor.shape + tensor.ndim;
}

// In `args`: input and output, where there is memory, are the GPU's, in its stream. `streams` is to live as long.
template <typename Args>
void Place(const GpuPlace& place, bool input, bool output, bps_streams* streams, Args* args) {
  streams->input = streams->output = place.stream;
  streams->output_later = 1;
  if (input) {
    args->input_device = BPS_CUDA;
    args->input_device_id = place.gpu;
  }
  if (output) {
    args->output_device = BPS_CUDA;
    args->output_device_id = place.gpu;
  }
  if (input || output) args->ext = &streams->ext;
}

// Waits until the result is in the stream, or the operation has ended.
Outcome Await(const Library& library, bps_request* request, void* stream) {
  // 0: until the operation's own deadline.
  Outcome waited = AttachedSession::Take(library, library.bps_wait_on_stream(request, stream, /*timeout_ms=*/0));
  // It may be the stream's failure, or the end of the wait, and not the operation's: that has to end before its memory
  // is given back.
  if (!waited.ok()) End(library, request);
  return waited;
}

// Declares the tensor, fills in what all operations have, calls the library's function `call`, and waits.
template <typename Args, typename Call>
Outcome Run(const AttachedSession& session, const TensorSpec& tensor, const GpuPlace& place, Args args,
            const void* input, void* output, Call Library::*call) {
  bps_request* request = nullptr;
  // A copy: another session may be attached while this call waits.
  std::optional<Library> library;
  Outcome submitted = session.Use([&](const Library& attached, bps_session* open) -> bps_status* {
    library = attached;
    if (bps_status* error = Declare(attached, open, tensor, &args.tensor)) return error;

    bps_streams streams = BPS_STREAMS_INIT;
    Place(place, !IsEmpty(tensor), !IsEmpty(tensor), &streams, &args);
    args.input = input;
    args.output = output;
    return SubmitRound(attached, args, &request,
                       [&](const Args& with, bps_request** made) { return (attached.*call)(open, &with, made); });
  });
  if (!submitted.ok()) return submitted;
  Outcome outcome = Await(*library, request, place.stream);
  library->bps_request_free(request);
  return outcome;
}

}  // namespace

Outcome PushPullOnGpu(const AttachedSession& session, const TensorSpec& tensor, const GpuPlace& place,
                      const void* input, void* output, int32_t op, int64_t priority) {
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.op = op;
  args.priority = priority;
  return Run(session, tensor, place, args, input, output, &Library::bps_push_pull);
}

Outcome BroadcastOnGpu(const AttachedSession& session, const TensorSpec& tensor, const GpuPlace& place,
                       const void* input, void* output, int32_t root, int64_t priority) {
  bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  args.root = root;
  args.priority = priority;
  return Run(session, tensor, place, args, input, output, &Library::bps_broadcast);
}

Outcome CollectiveOnGpu(const AttachedSession& session, const CollectiveSpec& spec, const GpuPlace& place,
                        uint64_t* bytes) {
  bps_request* request = nullptr;
  std::optional<Library> library;
  Outcome submitted = session.Use([&](const Library& attached, bps_session* open) -> bps_status* {
    library = attached;
    bps_collective_args args = BPS_COLLECTIVE_ARGS_INIT;
    if (bps_status* error = FillArgs(session, spec, &args)) return error;
    bps_streams streams = BPS_STREAMS_INIT;
    Place(place, !IsEmpty(spec.tensor), spec.output_bytes != 0, &streams, &args);
    return SubmitRound(attached, args, &request, [&](const bps_collective_args& with, bps_request** made) {
      return attached.bps_collective(open, &with, made);
    });
  });
  if (!submitted.ok()) return submitted;
  Outcome outcome = Await(*library, request, place.stream);
  if (outcome.ok()) {
    bps_result result = BPS_RESULT_INIT;
    outcome = AttachedSession::Take(*library, library->bps_request_result(request, 0, &result));
    *bytes = result.bytes;
  }
  library->bps_request_free(request);
  return outcome;
}

}  // namespace byteps::binding
