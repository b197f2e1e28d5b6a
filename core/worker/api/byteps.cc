// The exported functions of abi/byteps.h, but for those of statuses and versions: each checks what it was given, and
// asks the session. Nothing is decided here.
#include "abi/byteps.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/block_stock.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/base/utf8.h"
#include "core/worker/api/boundary.h"
#include "core/worker/api/check_args.h"
#include "core/worker/api/device_calls.h"
#include "core/worker/api/handles.h"
#include "core/worker/api/read_args.h"
#include "core/worker/device/gpu_buffer.h"
#include "core/worker/memory/buffer.h"
#include "core/worker/session/driver.h"
#include "core/worker/session/session.h"
#include "core/worker/tensor/request.h"

using byteps::Boundary;
using byteps::BoundaryOr;

struct bps_buffer {
  std::shared_ptr<byteps::BufferTable> table;
  std::shared_ptr<byteps::Buffer> buffer;
  std::function<void()> release;  // back to the GPU; empty: it has no part in it
};

namespace {

using byteps::CheckDevice;
using byteps::CheckMayBlock;
using byteps::CheckNotNull;
using byteps::CheckReserved;
using byteps::CheckTimeout;
using byteps::FromMilliseconds;
using byteps::Now;
using byteps::Time;

byteps::Tensor* ToTensor(bps_tensor* tensor) { return reinterpret_cast<byteps::Tensor*>(tensor); }
bps_tensor* FromTensor(byteps::Tensor* tensor) { return reinterpret_cast<bps_tensor*>(tensor); }

// `name`: of the struct.
template <typename Args>
absl::Status CheckEnding(const char* name, const Args& args) {
  RETURN_IF_ERROR(CheckReserved(name, args.reserved));
  if (args.reserved2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".reserved2 is ", args.reserved2, ", must be 0"));
  }
  if (args.done_in_call == 0 || args.done_in_call == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ".done_in_call is ", args.done_in_call, ", not 0 or 1"));
}

// What push_pull and broadcast have in common: submits, and makes the handle.
template <typename Args>
absl::Status Start(bps_session* session, byteps::Submission asked, const Args& args, bps_request** request) {
  const byteps::Session& owner = *session->session;
  asked.timeout = args.timeout_ms == 0 ? owner.operation_timeout() : FromMilliseconds(args.timeout_ms);
  // Before the operation is accepted, so that no memory is needed afterwards.
  const auto handle = std::allocate_shared<bps_request>(byteps::StockAllocator<bps_request>(owner.request_stock()),
                                                        args.done, args.user, args.done_in_call != 0);
  asked.request = std::shared_ptr<byteps::Request>(handle, &handle->request);
  if (request != nullptr) {
    handle->session = session->session;
    handle->deadline = byteps::After(Now(), asked.timeout);
    handle->small = asked.tensor->bytes() <= owner.small_bytes();
    handle->gpu = asked.gpu;
  }
  if (asked.given_up.ok()) {
    asked.request->Hold(owner.buffers()->Use(asked.input, asked.input == nullptr ? 0 : asked.BytesInMemory()),
                        owner.buffers()->Use(asked.output, asked.BytesInMemory()));
  }
  RETURN_IF_ERROR(session->session->Submit(std::move(asked)));
  if (request != nullptr) {
    handle->held = handle;
    *request = handle.get();
  }
  return absl::OkStatus();
}

}  // namespace

bps_status* bps_open_versioned(int32_t abi_major, int32_t abi_minor, const bps_open_args* args,
                               bps_session** session) noexcept {
  return Boundary("bps_open", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckMayBlock("bps_open"));
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    if (abi_major != BPS_ABI_MAJOR) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the caller was compiled for version ", abi_major, ".", abi_minor, " of the BytePS ABI, this library has ",
          BPS_ABI_MAJOR, ".", BPS_ABI_MINOR, ": use builds of the same major version"));
    }
    absl::StatusOr<bps_open_args> known = byteps::ReadArgs(args);
    RETURN_IF_ERROR(known.status());
    absl::StatusOr<std::shared_ptr<byteps::Session>> opened = byteps::Session::Open(*known);
    RETURN_IF_ERROR(opened.status());
    *session = new bps_session{*std::move(opened)};
    return absl::OkStatus();
  });
}

bps_status* bps_shutdown(bps_session* session, int64_t timeout_ms) noexcept {
  return Boundary("bps_shutdown", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckMayBlock("bps_shutdown"));
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    RETURN_IF_ERROR(CheckTimeout(timeout_ms));
    return session->session->Shutdown(FromMilliseconds(timeout_ms));
  });
}

bps_status* bps_close(bps_session* session) noexcept {
  return Boundary("bps_close", [&]() -> absl::Status {
    if (session == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(session->session->CheckProcess());
    if (absl::Status status = CheckMayBlock("bps_close"); !status.ok()) {
      status = byteps::Annotate(status, "the session stays open, until another thread closes it");
      BPS_LOG(session->session->log(), kError) << status.message();
      return status;
    }
    session->session->Close();
    // A thread inside a plugin that does not come back still uses it.
    if (!session->session->stuck()) delete session;
    return absl::OkStatus();
  });
}

bps_status* bps_session_info(const bps_session* session, bps_info* info) noexcept {
  return Boundary("bps_session_info", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    RETURN_IF_ERROR(session->session->CheckProcess());
    return byteps::WriteOut(session->session->Info(), info);
  });
}

const char* bps_transport_name(const bps_session* session) noexcept {
  return session == nullptr ? "" : session->session->transport_name().c_str();
}

const char* bps_scheduler_name(const bps_session* session) noexcept {
  return session == nullptr ? "" : session->session->scheduler_name().c_str();
}

bps_status* bps_declare(bps_session* session, const bps_declare_args* args, bps_tensor** tensor) noexcept {
  return Boundary("bps_declare", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    RETURN_IF_ERROR(CheckNotNull(tensor, "tensor"));
    absl::StatusOr<bps_declare_args> known = byteps::ReadArgs(args);
    RETURN_IF_ERROR(known.status());
    RETURN_IF_ERROR(CheckNotNull(known->name, "bps_declare_args.name"));
    if (known->ndim < 0) return absl::InvalidArgumentError(absl::StrCat("bps_declare_args.ndim is ", known->ndim));
    if (known->ndim > 0) RETURN_IF_ERROR(CheckNotNull(known->shape, "bps_declare_args.shape"));
    if (known->mode != BPS_MODE_SYNCHRONOUS && known->mode != BPS_MODE_ASYNCHRONOUS) {
      return absl::UnimplementedError(absl::StrCat("bps_declare_args.mode is ", known->mode, ", which is none"));
    }
    if (known->staleness != 0) {
      return absl::UnimplementedError("bps_declare_args.staleness is reserved; BYTEPS_STALENESS is the session's");
    }
    absl::StatusOr<byteps::Tensor*> declared = session->session->Declare(
        known->name, known->dtype, {known->shape, static_cast<size_t>(known->ndim)}, known->mode);
    RETURN_IF_ERROR(declared.status());
    *tensor = FromTensor(*declared);
    return absl::OkStatus();
  });
}

bps_status* bps_push_pull(bps_session* session, const bps_push_pull_args* args, bps_request** request) noexcept {
  return Boundary("bps_push_pull", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    absl::StatusOr<bps_push_pull_args> known = byteps::ReadArgs(args);
    RETURN_IF_ERROR(known.status());
    RETURN_IF_ERROR(session->session->CheckOpen());
    RETURN_IF_ERROR(CheckNotNull(known->tensor, "bps_push_pull_args.tensor"));
    RETURN_IF_ERROR(CheckDevice("bps_push_pull_args.input_device", known->input_device, known->input_device_id, true));
    RETURN_IF_ERROR(
        CheckDevice("bps_push_pull_args.output_device", known->output_device, known->output_device_id, true));
    RETURN_IF_ERROR(CheckEnding("bps_push_pull_args", *known));
    RETURN_IF_ERROR(CheckTimeout(known->timeout_ms));
    byteps::Submission asked;
    asked.tensor = ToTensor(known->tensor);
    asked.kind = byteps::wire::Operation::kPushPull;
    asked.reduction = known->op;
    asked.priority = known->priority;
    RETURN_IF_ERROR(byteps::ReadMatch("bps_push_pull_args", known->ext, &asked.match));
    RETURN_IF_ERROR(byteps::ReadGiveUp("bps_push_pull_args", known->ext, &asked.given_up));
    if (!asked.given_up.ok()) return Start(session, std::move(asked), *known, request);
    asked.input = static_cast<const std::byte*>(known->input);
    asked.output = static_cast<std::byte*>(known->output);
    RETURN_IF_ERROR(byteps::PrepareDevices(*session->session, "bps_push_pull_args", *known, &asked));
    return Start(session, std::move(asked), *known, request);
  });
}

bps_status* bps_broadcast(bps_session* session, const bps_broadcast_args* args, bps_request** request) noexcept {
  return Boundary("bps_broadcast", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    absl::StatusOr<bps_broadcast_args> known = byteps::ReadArgs(args);
    RETURN_IF_ERROR(known.status());
    RETURN_IF_ERROR(session->session->CheckOpen());
    RETURN_IF_ERROR(CheckNotNull(known->tensor, "bps_broadcast_args.tensor"));
    RETURN_IF_ERROR(CheckDevice("bps_broadcast_args.input_device", known->input_device, known->input_device_id, true));
    RETURN_IF_ERROR(
        CheckDevice("bps_broadcast_args.output_device", known->output_device, known->output_device_id, true));
    RETURN_IF_ERROR(CheckEnding("bps_broadcast_args", *known));
    RETURN_IF_ERROR(CheckTimeout(known->timeout_ms));
    byteps::Submission asked;
    asked.tensor = ToTensor(known->tensor);
    asked.kind = byteps::wire::Operation::kBroadcast;
    asked.root = known->root;
    asked.priority = known->priority;
    RETURN_IF_ERROR(byteps::ReadMatch("bps_broadcast_args", known->ext, &asked.match));
    RETURN_IF_ERROR(byteps::ReadGiveUp("bps_broadcast_args", known->ext, &asked.given_up));
    if (!asked.given_up.ok()) return Start(session, std::move(asked), *known, request);
    // Elsewhere it may be anything.
    const bool root = session->session->Info().rank == known->root;
    asked.input = root ? static_cast<const std::byte*>(known->input) : nullptr;
    if (root && asked.tensor->bytes() != 0) RETURN_IF_ERROR(CheckNotNull(known->input, "bps_broadcast_args.input"));
    asked.output = static_cast<std::byte*>(known->output);
    RETURN_IF_ERROR(byteps::PrepareDevices(*session->session, "bps_broadcast_args", *known, &asked));
    return Start(session, std::move(asked), *known, request);
  });
}

bps_status* bps_barrier(bps_session* session, const bps_barrier_args* args) noexcept {
  return Boundary("bps_barrier", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckMayBlock("bps_barrier"));
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    absl::StatusOr<bps_barrier_args> known = byteps::ReadArgs(args);
    RETURN_IF_ERROR(known.status());
    RETURN_IF_ERROR(CheckTimeout(known->timeout_ms));
    if (known->name != nullptr && !byteps::IsUtf8(known->name)) {
      return absl::InvalidArgumentError("bps_barrier_args.name is not UTF-8");
    }
    return session->session->Barrier(known->name == nullptr ? "" : known->name, FromMilliseconds(known->timeout_ms));
  });
}

int32_t bps_request_state(const bps_request* request) noexcept {
  if (request == nullptr) return BPS_REQUEST_FAILED;
  const byteps::RequestState state = request->request.state();
  // Its operations are moved on, and a group is where the last one of them is.
  const bool in_streams = state < byteps::RequestState::kDone && !request->parts.empty() && request->OnDevice() &&
                          std::all_of(request->parts.begin(), request->parts.end(), [](const auto& part) {
                            // It says DONE before the request has ended; kEnqueued is above it.
                            return part->state() >= byteps::RequestState::kDone;
                          });
  return static_cast<int32_t>(in_streams ? byteps::RequestState::kEnqueued : state);
}

const char* bps_request_state_name(int32_t state) noexcept { return byteps::RequestStateName(state); }

bps_status* bps_wait(bps_request* request, int64_t timeout_ms) noexcept {
  return Boundary("bps_wait", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckMayBlock("bps_wait"));
    RETURN_IF_ERROR(CheckNotNull(request, "request"));
    RETURN_IF_ERROR(CheckTimeout(timeout_ms));
    const Time deadline = timeout_ms == 0 ? byteps::After(request->deadline, bps_request::kMargin)
                                          : byteps::After(Now(), FromMilliseconds(timeout_ms));
    bool ended;
    if (const std::shared_ptr<byteps::Session> session = request->session.lock()) {
      RETURN_IF_ERROR(session->CheckProcess());
      ended = session->Wait(request->request, deadline, request->small);
    } else {
      ended = request->request.WaitUntil(deadline);
    }
    if (ended) return request->request.outcome();
    std::string what;
    if (const std::shared_ptr<byteps::Session> session = request->session.lock()) {
      if (session->stuck()) return session->CheckOpen();
      what = session->DescribeWait(request->request);
      for (const std::shared_ptr<byteps::Request>& part : request->parts) {
        if (what.empty() && !part->ended()) what = session->DescribeWait(*part);
      }
    }
    if (request->request.ended()) return request->request.outcome();
    // The session ends it any moment, or has been closed.
    if (what.empty()) what = absl::StrCat("it is ", byteps::RequestStateName(bps_request_state(request)));
    // Bindings that wait in slices put their own duration before the colon.
    return byteps::Retryable(
        absl::DeadlineExceededError(absl::StrCat("the operation had not ended after ", timeout_ms, " ms: ", what)));
  });
}

bps_status* bps_test(bps_request* request, int32_t* done) noexcept {
  return Boundary("bps_test", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(request, "request"));
    RETURN_IF_ERROR(CheckNotNull(done, "done"));
    if (const std::shared_ptr<byteps::Session> session = request->session.lock()) {
      RETURN_IF_ERROR(session->CheckProcess());
      if (request->small) session->Look(request->request);
    }
    *done = request->request.ended() ? 1 : 0;
    return absl::OkStatus();
  });
}

bps_status* bps_cancel(bps_request* request) noexcept {
  return Boundary("bps_cancel", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(request, "request"));
    const std::shared_ptr<byteps::Session> session = request->session.lock();
    if (session == nullptr || request->request.ended()) return absl::OkStatus();
    for (const std::shared_ptr<byteps::Request>& part : request->parts) {
      if (absl::Status status = session->Cancel(part); !status.ok()) return status;
    }
    if (!request->parts.empty()) return absl::OkStatus();
    return session->Cancel(std::shared_ptr<byteps::Request>(request->held, &request->request));
  });
}

void bps_request_free(bps_request* request) noexcept {
  BoundaryOr(0, [&] {
    if (request == nullptr) return 0;
    // A forked child's copy: what it points to belongs to the parent.
    if (const std::shared_ptr<byteps::Session> session = request->session.lock();
        session != nullptr && !session->CheckProcess().ok()) {
      return 0;
    }
    std::exchange(request->held, nullptr);
    return 0;
  });
}

bps_status* bps_buffer_alloc(bps_session* session, const bps_buffer_args* args, bps_buffer** buffer) noexcept {
  return Boundary("bps_buffer_alloc", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    RETURN_IF_ERROR(CheckNotNull(buffer, "buffer"));
    RETURN_IF_ERROR(session->session->CheckOpen());
    absl::StatusOr<bps_buffer_args> known = byteps::ReadArgs(args);
    RETURN_IF_ERROR(known.status());
    RETURN_IF_ERROR(CheckDevice("bps_buffer_args.device", known->device, known->device_id, true));
    auto handle = std::make_unique<bps_buffer>();
    handle->table = session->session->buffers();
    if (const byteps::Device device = {known->device, known->device_id}; byteps::Gpus::Concerns(device)) {
      absl::StatusOr<byteps::GpuBuffer> on_gpu =
          byteps::MakeGpuBuffer(session->session->gpus().get(), handle->table.get(), device, known->size);
      RETURN_IF_ERROR(on_gpu.status());
      handle->buffer = std::move(on_gpu->buffer);
      handle->release = std::move(on_gpu->release);
      *buffer = handle.release();
      return absl::OkStatus();
    }
    absl::StatusOr<std::shared_ptr<byteps::Buffer>> made = handle->table->Allocate(known->size);
    RETURN_IF_ERROR(made.status());
    handle->buffer = *std::move(made);
    *buffer = handle.release();
    return absl::OkStatus();
  });
}

void* bps_buffer_data(const bps_buffer* buffer) noexcept {
  return buffer == nullptr ? nullptr : buffer->buffer->data();
}

bps_status* bps_buffer_free(bps_buffer* buffer) noexcept {
  return Boundary("bps_buffer_free", [&]() -> absl::Status {
    if (buffer == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(buffer->table->Free(buffer->buffer.get()));
    if (buffer->release != nullptr) buffer->release();
    delete buffer;
    return absl::OkStatus();
  });
}
