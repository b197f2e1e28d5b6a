// The exported function of sparse reductions: checks what it was given, packs it, and asks the session.
#include <memory>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/block_stock.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/reduce/dtype.h"
#include "core/worker/api/boundary.h"
#include "core/worker/api/check_args.h"
#include "core/worker/api/handles.h"
#include "core/worker/api/read_args.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/collectives/sparse_rows.h"

namespace {

using byteps::CheckNotNull;
using byteps::Collective;
using byteps::Session;

absl::Status CheckFields(const bps_sparse_args& args) {
  RETURN_IF_ERROR(byteps::CheckReserved("bps_sparse_args", args.reserved));
  RETURN_IF_ERROR(byteps::CheckTimeout(args.timeout_ms));
  RETURN_IF_ERROR(CheckNotNull(args.name, "bps_sparse_args.name"));
  if (*args.name == '\0') return absl::InvalidArgumentError("bps_sparse_args.name is empty");
  if (args.ndim < 1) {
    return absl::InvalidArgumentError(absl::StrCat("bps_sparse_args.ndim is ", args.ndim, ": a scalar has no rows"));
  }
  RETURN_IF_ERROR(byteps::CheckDimensions("bps_sparse_args.ndim", args.ndim));
  RETURN_IF_ERROR(CheckNotNull(args.shape, "bps_sparse_args.shape"));
  if (args.num_rows >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("bps_sparse_args.num_rows is ", args.num_rows, ": negative"));
}

absl::StatusOr<Collective> Read(const Session& session, const bps_sparse_args& args) {
  Collective asked;
  asked.kind = byteps::CollectiveKind::kSparseAllReduce;
  asked.reduction = args.op;
  asked.name = args.name;
  asked.set = args.set != nullptr ? args.set->set : session.all_ranks();
  asked.dtype = args.dtype;
  asked.shape.assign(args.shape, args.shape + args.ndim);
  asked.all_rows = asked.shape[0];
  RETURN_IF_ERROR(byteps::ReadMatch("bps_sparse_args", args.ext, &asked.match));
  RETURN_IF_ERROR(byteps::ReadGiveUp("bps_sparse_args", args.ext, &asked.given_up));
  const int64_t rows = asked.given_up.ok() ? args.num_rows : 0;
  asked.shape[0] = rows;
  asked.priority = args.priority;
  asked.timeout = args.timeout_ms == 0 ? session.operation_timeout() : byteps::FromMilliseconds(args.timeout_ms);
  // Sizes are checked before anything is read, the rows then.
  RETURN_IF_ERROR(byteps::CheckRequest(asked, session.Info().rank));
  const auto alignment = byteps::DtypeAlignment(asked.dtype);
  if (reinterpret_cast<uintptr_t>(args.values) % alignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(asked.Describe(), ": values is not aligned to ", alignment, " bytes"));
  }
  absl::StatusOr<byteps::SparseRows> packed = byteps::SparseRows::Pack(
      asked.dtype, asked.row_bytes(), asked.all_rows, args.indices, args.values, static_cast<uint64_t>(rows));
  if (!packed.ok()) return byteps::Annotate(packed.status(), asked.Describe());
  asked.packed = std::make_shared<byteps::SparseRows>(*std::move(packed));
  asked.shape[0] = static_cast<int64_t>(asked.packed->count);
  asked.input = asked.packed->memory.data();
  asked.result = std::make_shared<byteps::CollectiveResult>();
  asked.indices = std::make_shared<byteps::SparseIndices>();
  return asked;
}

}  // namespace

bps_status* bps_sparse_all_reduce(bps_session* session, const bps_sparse_args* args, bps_request** request) noexcept {
  return byteps::Boundary("bps_sparse_all_reduce", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckNotNull(session, "session"));
    absl::StatusOr<bps_sparse_args> known = byteps::ReadArgs(args);
    RETURN_IF_ERROR(known.status());
    Session& owner = *session->session;
    RETURN_IF_ERROR(owner.CheckOpen());
    RETURN_IF_ERROR(CheckFields(*known));
    absl::StatusOr<Collective> asked = Read(owner, *known);
    RETURN_IF_ERROR(asked.status());
    const auto made = std::allocate_shared<bps_request>(byteps::StockAllocator<bps_request>(owner.request_stock()),
                                                        known->done, known->user);
    made->session = session->session;
    made->deadline = byteps::After(byteps::Now(), asked->timeout);
    made->small = asked->bytes() <= owner.small_bytes();
    made->results.push_back(asked->result);
    made->indices = asked->indices;
    asked->request = std::shared_ptr<byteps::Request>(made, &made->request);
    if (request != nullptr) made->held = made;
    if (absl::Status status = owner.Submit(*std::move(asked)); !status.ok()) {
      made->held.reset();
      return status;
    }
    if (request != nullptr) *request = made.get();
    return absl::OkStatus();
  });
}
