// send_order.h - in which order a worker sends the parts of a tensor.
//
//     const SendOrder order(cut, rank, workers);
//     for (uint32_t turn = 0; turn < cut.parts(); ++turn) Send(order.part(turn));
//
// All workers send the same parts at the same time. If all began with the first one, they would all write to the server
// that has it, whose link they would share, while the other servers' links stand still; each server in a row would
// begin its work one part of all workers later than the one before it, and end so much later. So every worker begins
// each row of parts (Cut::row) at another of its servers: at any time all links are in use, and all servers have the
// row at the same time. Of a tensor's transfer this saves up to the time of one row
// (docs/performance/notes/2026-11-22-turned-rows.md). The servers do the same with the results
// (ServedSession::first_served). Rows stay in their order, so that a prefix of what is sent is complete but for its
// last row. Each worker chooses by itself, without agreement: for a tensor that is alone when it begins
// (Operation::alone).
//
// Threads: immutable.
#ifndef BYTEPS_CORE_WORKER_TENSOR_SEND_ORDER_H_
#define BYTEPS_CORE_WORKER_TENSOR_SEND_ORDER_H_

#include <algorithm>
#include <cstdint>

#include "core/worker/tensor/cut.h"

namespace byteps {

class SendOrder {
 public:
  // Of the worker `rank` of so many.
  SendOrder(const Cut& cut, uint32_t rank, uint32_t workers)
      : parts_(cut.parts()),
        row_(cut.row()),
        begin_(workers == 0 ? 0 : static_cast<uint32_t>(uint64_t{rank} * row_ / workers)) {}

  uint32_t part(uint32_t turn) const {
    return Turned(turn, [&](uint32_t length) { return begin_ % length; });
  }
  uint32_t turn(uint32_t part) const {
    return Turned(part, [&](uint32_t length) { return length - begin_ % length; });
  }

 private:
  template <typename By>
  uint32_t Turned(uint32_t place, const By& by) const {
    const uint32_t first = place - place % row_;
    const uint32_t length = std::min(row_, parts_ - first);
    return first + (place - first + by(length)) % length;
  }

  uint32_t parts_;
  uint32_t row_;
  uint32_t begin_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_SEND_ORDER_H_
