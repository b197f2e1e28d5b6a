// The exported functions of process sets and collectives: each checks what it was given, and asks the session.
// Reductions and broadcasts of all ranks go the way of bps_push_pull where that costs least; everything else goes among
// workers.
#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/block_stock.h"
#include "core/base/status.h"
#include "core/reduce/dtype.h"
#include "core/worker/api/boundary.h"
#include "core/worker/api/check_args.h"
#include "core/worker/api/device_calls.h"
#include "core/worker/api/handles.h"
#include "core/worker/api/read_args.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/collectives/scale.h"

using byteps::Boundary;

namespace {

using byteps::CheckDevice;
using byteps::CheckDimensions;
using byteps::CheckNotNull;
using byteps::CheckReserved;
using byteps::CheckTimeout;
using byteps::Collective;
using byteps::CollectiveKind;
using byteps::CollectiveResult;
using byteps::Request;
using byteps::Session;
using byteps::Submission;

absl::Status CheckCounts(const bps_collective_args& args) {
  if (args.kind < BPS_ALL_REDUCE || args.kind > BPS_BARRIER)
    return absl::InvalidArgumentError(absl::StrCat("unknown kind ", args.kind));
  RETURN_IF_ERROR(CheckDimensions("bps_collective_args.ndim", args.ndim));
  if (args.ndim > 0) RETURN_IF_ERROR(CheckNotNull(args.shape, "bps_collective_args.shape"));
  if (args.num_splits < 0) {
    return absl::InvalidArgumentError(absl::StrCat("bps_collective_args.num_splits is ", args.num_splits));
  }
  if (args.num_splits > 0) RETURN_IF_ERROR(CheckNotNull(args.splits, "bps_collective_args.splits"));
  if (args.scaled != 0 && args.scaled != 1) {
    return absl::InvalidArgumentError(absl::StrCat("bps_collective_args.scaled is ", args.scaled, ", not 0 or 1"));
  }
  RETURN_IF_ERROR(CheckTimeout(args.timeout_ms));
  RETURN_IF_ERROR(CheckDevice("bps_collective_args.input_device", args.input_device, args.input_device_id, true));
  return CheckDevice("bps_collective_args.output_device", args.output_device, args.output_device_id, true);
}

// What the caller asks, as the engine takes it.
absl::StatusOr<Collective> Read(const Session& session, const bps_collective_args* given) {
  absl::StatusOr<bps_collective_args> known = byteps::ReadArgs(given);
  if (!known.ok()) return known.status();
  const bps_collective_args& args = *known;
  RETURN_IF_ERROR(CheckCounts(args));
  const int32_t own_rank = session.Info().rank;
  Collective asked;
  asked.kind = static_cast<CollectiveKind>(args.kind);
  asked.reduction = args.op;
  asked.set = args.set != nullptr ? args.set->set : session.all_ranks();
  if (byteps::IsPairwise(asked.kind)) {
    if (!asked.set->PlaceOf(own_rank) || !asked.set->PlaceOf(args.peer)) {
      return absl::InvalidArgumentError(absl::StrCat(asked.set->PlaceOf(own_rank) ? "peer " : "this rank, ",
                                                     asked.set->PlaceOf(own_rank) ? args.peer : own_rank,
                                                     ", is not in ", asked.set->Describe()));
    }
    if (args.peer == own_rank) return absl::InvalidArgumentError(absl::StrCat("peer ", args.peer, " is this rank"));
    // Messages of a set meet within it.
    if (!asked.set->is_all()) asked.name = absl::StrCat(asked.set->id());
    const int32_t pair[] = {own_rank, args.peer};
    auto both = byteps::ProcessSet::Make("", pair, session.size());
    if (!both.ok()) return both.status();
    asked.set = *std::move(both);
  } else {
    RETURN_IF_ERROR(CheckNotNull(args.name, "bps_collective_args.name"));
    asked.name = args.name;
    if (asked.name.empty()) return absl::InvalidArgumentError("bps_collective_args.name is empty");
  }
  asked.dtype = asked.kind == CollectiveKind::kBarrier ? BPS_UINT8 : args.dtype;
  if (asked.kind != CollectiveKind::kBarrier) {
    asked.shape.assign(args.shape, args.shape + args.ndim);
    asked.input = static_cast<const std::byte*>(args.input);
    asked.output = static_cast<std::byte*>(args.output);
    asked.capacity = args.output == nullptr ? 0 : args.output_bytes;
  } else {
    asked.shape = {0};
  }
  // More than ranks are not read: the caller may not have them.
  if (static_cast<size_t>(args.num_splits) > asked.set->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(asked.Describe(), ": it has ", args.num_splits, " splits for ", asked.set->size(), " ranks"));
  }
  asked.splits.assign(args.splits, args.splits + args.num_splits);
  asked.root = args.root;
  asked.peer = args.peer;
  asked.tag = args.tag;
  asked.scaled = args.scaled != 0;
  if (asked.scaled) {
    asked.prescale = args.prescale;
    asked.postscale = args.postscale;
  }
  asked.priority = args.priority;
  asked.timeout = args.timeout_ms == 0 ? session.operation_timeout() : byteps::FromMilliseconds(args.timeout_ms);
  asked.result = std::make_shared<CollectiveResult>();
  RETURN_IF_ERROR(byteps::ReadMatch("bps_collective_args", args.ext, &asked.match));
  RETURN_IF_ERROR(byteps::ReadGiveUp("bps_collective_args", args.ext, &asked.given_up));
  if (!asked.given_up.ok()) {
    asked.input = nullptr;
    asked.output = nullptr;
    asked.capacity = 0;
    RETURN_IF_ERROR(byteps::CheckRequest(asked, own_rank));
    return asked;
  }
  RETURN_IF_ERROR(byteps::Check(asked, own_rank));
  RETURN_IF_ERROR(byteps::PrepareDevices(session, args, &asked));
  return asked;
}

// Its input and output, and what has come is known beforehand.
absl::StatusOr<Submission> ToSubmission(Session* session, const Collective& asked) {
  absl::StatusOr<byteps::Tensor*> tensor = session->Declare(asked.name, asked.dtype, asked.shape);
  if (!tensor.ok()) return tensor.status();
  CollectiveResult& result = *asked.result;
  const bool takes_part = asked.given_up.ok();
  if (asked.output != nullptr && asked.capacity < asked.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(asked.Describe(), ": the output has ", asked.capacity,
                                                   " bytes; it gets ", asked.bytes(), " bytes"));
  }
  if (asked.output == nullptr && takes_part) result.memory = byteps::AlignedMemory(asked.bytes());
  result.data = asked.output != nullptr ? asked.output : result.memory.data();
  result.bytes = asked.bytes();
  result.shape = asked.shape;
  Submission submission;
  submission.tensor = *tensor;
  submission.kind = asked.kind == CollectiveKind::kAllReduce ? byteps::wire::Operation::kPushPull
                                                             : byteps::wire::Operation::kBroadcast;
  // What has no meaning for a kind is not compared.
  if (asked.kind == CollectiveKind::kAllReduce) submission.reduction = asked.reduction;
  if (asked.kind == CollectiveKind::kBroadcast) submission.root = asked.root;
  submission.group_size = asked.group_size;
  submission.group_index = asked.group_index;
  submission.match = asked.match;
  submission.scaled = asked.scaled;
  submission.prescale = asked.prescale;
  submission.postscale = asked.postscale;
  const bool reads = asked.kind == CollectiveKind::kAllReduce || session->Info().rank == asked.root;
  submission.input = reads ? asked.input : nullptr;
  submission.output = result.data;
  submission.priority = asked.priority;
  submission.timeout = asked.timeout;
  submission.given_up = asked.given_up;
  submission.request = asked.request;
  submission.gpu = asked.gpu;
  if (reads) submission.input_device = asked.input_device;
  submission.output_device = asked.output_device;
  // (With memory of GPUs the device stage multiplies.)
  if (takes_part && asked.gpu == nullptr && asked.scaled && asked.prescale != 1 && asked.bytes() != 0) {
    byteps::Scale(asked.dtype, asked.prescale, asked.input, result.data, asked.elements());
    submission.input = result.data;
  }
  return submission;
}

// Several operations as one: ends the caller's request when all have ended.
struct Together {
  std::shared_ptr<Request> whole;
  std::weak_ptr<Session> session;
  std::vector<std::shared_ptr<Request>> parts;
  std::mutex mutex;
  size_t left = 0;
  absl::Status first;  // error
};

// One of them.
struct Part {
  std::shared_ptr<Together> together;
  std::shared_ptr<CollectiveResult> result;
  uint32_t dtype = 0;
  double postscale = 1;
};

void OnPartEnded(void* user, bps_status* error) {
  const std::unique_ptr<Part> part(static_cast<Part*>(user));
  const absl::Status outcome = byteps::TakeStatus(error);
  if (outcome.ok() && part->postscale != 1 && part->result->bytes != 0) {
    byteps::Scale(part->dtype, part->postscale, part->result->data, part->result->data,
                  part->result->bytes / byteps::DtypeSize(part->dtype));
  }
  Together& together = *part->together;
  std::unique_lock<std::mutex> lock(together.mutex);
  const bool first_failure = !outcome.ok() && together.first.ok();
  if (first_failure) together.first = outcome;
  const bool last = --together.left == 0;
  lock.unlock();
  if (first_failure && !last) {
    // All or nothing. What has ended by then has an output, which counts for nothing.
    if (const std::shared_ptr<Session> session = together.session.lock()) {
      const absl::Status cause = byteps::Annotate(outcome, "another operation of its group has failed");
      for (const std::shared_ptr<Request>& other : together.parts) (void)session->Cancel(other, cause);
    }
  }
  if (last) together.whole->Complete(together.first);
}

absl::Status Start(bps_session* handle, std::vector<Collective> all, bps_done_fn done, void* user,
                   bps_request** request) {
  const std::shared_ptr<Session>& session = handle->session;
  const auto made =
      std::allocate_shared<bps_request>(byteps::StockAllocator<bps_request>(session->request_stock()), done, user);
  const std::shared_ptr<Request> whole(made, &made->request);
  const bool scaled_behind = all[0].gpu == nullptr && all[0].scaled && all[0].postscale != 1;
  const bool direct = all.size() == 1 && !(session->TakesStages(all[0]) && scaled_behind);
  if (direct) made->gpu = all[0].gpu;
  made->session = session;
  byteps::Time timeout = 0;
  for (const Collective& asked : all) {
    timeout = std::max(timeout, asked.timeout);
    made->results.push_back(asked.result);
  }
  made->deadline = byteps::After(byteps::Now(), timeout);
  made->small = direct && all[0].bytes() <= session->small_bytes();
  auto together = std::make_shared<Together>();
  together->whole = whole;
  together->session = session;
  together->left = all.size();
  std::vector<Part*> parts;  // each freed when it ends
  for (Collective& asked : all) {
    if (direct) {
      asked.request = whole;
      continue;
    }
    auto part = std::make_unique<Part>();
    part->together = together;
    part->result = asked.result;
    part->dtype = asked.dtype;
    // (With memory of GPUs the device stage multiplies.)
    const bool behind = session->TakesStages(asked) && asked.gpu == nullptr;
    if (behind && asked.scaled) part->postscale = asked.postscale;
    asked.request = std::make_shared<Request>(OnPartEnded, part.get());
    parts.push_back(part.release());
    together->parts.push_back(asked.request);
    made->gpus_of_parts.push_back(asked.gpu);
  }
  made->parts = together->parts;
  std::vector<Session::Asked> ready;
  for (Collective& asked : all) {
    asked.request->Hold(session->buffers()->Use(asked.input, asked.input == nullptr ? 0 : asked.bytes()),
                        session->buffers()->Use(asked.output, asked.capacity));
    if (!session->TakesStages(asked)) {
      ready.emplace_back(std::move(asked));
      continue;
    }
    absl::StatusOr<Submission> submission = ToSubmission(session.get(), asked);
    if (!submission.ok()) {
      for (Part* part : parts) delete part;
      return submission.status();
    }
    ready.emplace_back(*std::move(submission));
  }
  if (request != nullptr) {
    made->held = made;
  }
  absl::Status status;
  if (ready.size() > 1) {
    status = session->SubmitAll(std::move(ready));
  } else if (auto* submission = std::get_if<Submission>(&ready[0])) {
    status = session->Submit(std::move(*submission));
  } else {
    status = session->Submit(std::move(std::get<Collective>(ready[0])));
  }
  if (!status.ok()) {
    made->held.reset();
    for (Part* part : parts) delete part;
    return status;
  }
  if (request != nullptr) *request = made.get();
  return absl::OkStatus();
}

}  // namespace

bps_status* bps_process_set_create(bps_session* session, const bps_process_set_args* args,
                                   bps_process_set** set) noexcept {
  return Boundary("bps_process_set_create", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    RETURN_IF_ERROR(CheckNotNull(set, "set"));
    RETURN_IF_ERROR(session->session->CheckProcess());
    absl::StatusOr<bps_process_set_args> known = byteps::ReadArgs(args);
    RETURN_IF_ERROR(known.status());
    RETURN_IF_ERROR(CheckReserved("bps_process_set_args", known->reserved));
    if (known->num_ranks > 0) RETURN_IF_ERROR(CheckNotNull(known->ranks, "bps_process_set_args.ranks"));
    if (known->num_ranks < 0) {
      return absl::InvalidArgumentError(absl::StrCat("bps_process_set_args.num_ranks is ", known->num_ranks));
    }
    if (known->num_ranks > static_cast<int32_t>(session->session->size())) {
      return absl::InvalidArgumentError(absl::StrCat("a process set of ", known->num_ranks, " ranks in a job of ",
                                                     session->session->size(), ": each can be in it once"));
    }
    auto made =
        byteps::ProcessSet::Make(known->name == nullptr ? "" : known->name,
                                 {known->ranks, static_cast<size_t>(known->num_ranks)}, session->session->size());
    RETURN_IF_ERROR(made.status());
    *set = new bps_process_set{*std::move(made)};
    return absl::OkStatus();
  });
}

bps_status* bps_process_set_free(bps_process_set* set) noexcept {
  return Boundary("bps_process_set_free", [&]() -> absl::Status {
    if (set == nullptr) return absl::OkStatus();
    if (const int64_t users = set->set->in_flight(); users != 0) {
      return byteps::Retryable(absl::FailedPreconditionError(
          absl::StrCat(set->set->Describe(), ": ", users, " operations of this rank use it and have not ended")));
    }
    delete set;
    return absl::OkStatus();
  });
}

bps_status* bps_collective(bps_session* session, const bps_collective_args* args, bps_request** request) noexcept {
  return Boundary("bps_collective", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    RETURN_IF_ERROR(session->session->CheckOpen());
    absl::StatusOr<Collective> asked = Read(*session->session, args);
    RETURN_IF_ERROR(asked.status());
    std::vector<Collective> all;
    all.push_back(*std::move(asked));
    return Start(session, std::move(all), args->done, args->user, request);
  });
}

bps_status* bps_group(bps_session* session, const bps_group_args* args, bps_request** request) noexcept {
  return Boundary("bps_group", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    RETURN_IF_ERROR(session->session->CheckOpen());
    absl::StatusOr<bps_group_args> known = byteps::ReadArgs(args);
    RETURN_IF_ERROR(known.status());
    RETURN_IF_ERROR(CheckReserved("bps_group_args", known->reserved));
    if (known->num_operations < 1) {
      return absl::InvalidArgumentError(absl::StrCat("bps_group_args.num_operations is ", known->num_operations));
    }
    RETURN_IF_ERROR(CheckNotNull(known->operations, "bps_group_args.operations"));
    std::vector<Collective> all;
    for (int32_t i = 0; i < known->num_operations; ++i) {
      const bps_collective_args* each = known->operations[i];
      const std::string which = absl::StrCat("operation ", i, " of the group");
      absl::StatusOr<Collective> asked = Read(*session->session, each);
      if (!asked.ok()) return byteps::Annotate(asked.status(), which);
      if (each->done != nullptr || each->user != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(which, " has a callback of its own"));
      }
      asked->group_size = static_cast<uint32_t>(known->num_operations);
      asked->group_index = static_cast<uint32_t>(i);
      all.push_back(*std::move(asked));
    }
    return Start(session, std::move(all), known->done, known->user, request);
  });
}

bps_status* bps_request_result(const bps_request* request, int32_t index, bps_result* result) noexcept {
  return Boundary("bps_request_result", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(request, "request"));
    if (request->results.empty()) {
      return absl::FailedPreconditionError("the request is none of bps_collective or bps_group");
    }
    const auto results = static_cast<int32_t>(request->results.size()) + (request->indices != nullptr ? 1 : 0);
    if (index < 0 || index >= results) {
      return absl::InvalidArgumentError(absl::StrCat("index is ", index, "; the request has ", results, " results"));
    }
    const int32_t state = bps_request_state(request);
    if (state != BPS_REQUEST_DONE && state != BPS_REQUEST_ENQUEUED) {
      return absl::FailedPreconditionError(absl::StrCat("the request is ", byteps::RequestStateName(state)));
    }
    bps_result filled = BPS_RESULT_INIT;
    if (static_cast<size_t>(index) == request->results.size()) {
      const byteps::SparseIndices& indices = *request->indices;
      if (!indices.dense) {
        filled.data = indices.data;
        filled.bytes = static_cast<uint64_t>(indices.count) * sizeof(int64_t);
        filled.shape = &indices.count;
        filled.ndim = 1;
      }
      return byteps::WriteOut(filled, result);
    }
    const CollectiveResult& from = *request->results[static_cast<size_t>(index)];
    filled.data = from.data;
    filled.bytes = from.bytes;
    filled.shape = from.shape.data();
    filled.ndim = static_cast<int32_t>(from.shape.size());
    filled.splits = from.splits.empty() ? nullptr : from.splits.data();
    filled.num_splits = static_cast<int32_t>(from.splits.size());
    return byteps::WriteOut(filled, result);
  });
}
