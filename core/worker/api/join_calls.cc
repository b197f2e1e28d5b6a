// The exported function of joins: checks what it was given, and asks the session.
#include <memory>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/block_stock.h"
#include "core/base/time.h"
#include "core/worker/api/boundary.h"
#include "core/worker/api/check_args.h"
#include "core/worker/api/handles.h"
#include "core/worker/api/read_args.h"
#include "core/worker/collectives/joins.h"

bps_status* bps_join(bps_session* session, const bps_join_args* args, bps_request** request) noexcept {
  return byteps::Boundary("bps_join", [&]() -> absl::Status {
    RETURN_IF_ERROR(byteps::CheckNotNull(session, "session"));
    absl::StatusOr<bps_join_args> known = byteps::ReadArgs(args);
    RETURN_IF_ERROR(known.status());
    RETURN_IF_ERROR(session->session->CheckOpen());
    RETURN_IF_ERROR(byteps::CheckTimeout(known->timeout_ms));
    const byteps::Session& owner = *session->session;
    const auto made = std::allocate_shared<bps_request>(byteps::StockAllocator<bps_request>(owner.request_stock()),
                                                        known->done, known->user);
    made->session = session->session;
    // It moves on while others work: the join itself ends the wait.
    made->deadline = byteps::kNever;
    byteps::JoinAsked asked;
    asked.request = std::shared_ptr<byteps::Request>(made, &made->request);
    asked.timeout = known->timeout_ms == 0 ? owner.operation_timeout() : byteps::FromMilliseconds(known->timeout_ms);
    asked.last_rank = known->last_rank;
    if (request != nullptr) made->held = made;
    if (absl::Status status = session->session->Submit(std::move(asked)); !status.ok()) {
      made->held.reset();
      return status;
    }
    if (request != nullptr) *request = made.get();
    return absl::OkStatus();
  });
}
