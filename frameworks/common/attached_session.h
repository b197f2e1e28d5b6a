// attached_session.h - the process's session as a framework's shared object sees it: the one that byteps.init() opened.
//
//     bps_status* error = TheSession().Use([&](const Library& library, bps_session* session) {
//       return library.bps_push_pull(session, &args, nullptr);
//     });
//
// A kernel of a framework has no argument for a session, and the framework calls it on any thread, also while another
// thread calls byteps.shutdown(). The package byteps attaches the session after init() and detaches it before it closes
// it (byteps/shim.py); Use() keeps a session open for the length of one call, which must not block.
//
// Threads: all members may be called concurrently.
#ifndef BYTEPS_FRAMEWORKS_COMMON_ATTACHED_SESSION_H_
#define BYTEPS_FRAMEWORKS_COMMON_ATTACHED_SESSION_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/common/library.h"

namespace byteps::binding {

// How a call or an operation ended.
struct Outcome {
  int32_t code = BPS_OK;  // numerically that of absl, gRPC, TensorFlow and XLA
  std::string message;

  bool ok() const { return code == BPS_OK; }
};

class AttachedSession {
 public:
  AttachedSession() = default;
  AttachedSession(const AttachedSession&) = delete;
  AttachedSession& operator=(const AttachedSession&) = delete;

  // From now on calls go to `session`, which `library` has opened.
  void Attach(std::shared_ptr<const Library> library, bps_session* session);

  // After it has returned no call is inside `session`, and none comes. Does nothing if another session is attached.
  void Detach(const bps_session* session);

  // How many sessions have been attached until now, which tells them apart.
  uint64_t Number() const { return number_.load(std::memory_order_acquire); }

  // Calls `call(const Library&, bps_session*)`, which returns a bps_status*, and takes the status. FAILED_PRECONDITION
  // if no session is attached.
  template <typename F>
  Outcome Use(F call) const {
    std::shared_lock lock(attaching_);
    if (session_ == nullptr) {
      return {BPS_FAILED_PRECONDITION, "BytePS is not initialized: call bps.init() first"};
    }
    return Take(*library_, call(*library_, session_));
  }

  // Inside of Use(): the set of these ranks of the attached session, made by the first call. It is the same set as that
  // of any other part of the process that names the same ranks. Freed by Detach().
  bps_status* ProcessSet(const std::vector<int32_t>& ranks, bps_process_set** set) const;

  // The outcome that `status` stands for; frees it.
  static Outcome Take(const Library& library, bps_status* status);

 private:
  void FreeSets();

  mutable std::shared_mutex attaching_;  // shared: inside a call; exclusive: another session
  std::shared_ptr<const Library> library_;
  bps_session* session_ = nullptr;
  std::atomic<uint64_t> number_ = 0;
  mutable std::mutex making_sets_;
  mutable std::map<std::vector<int32_t>, bps_process_set*> sets_;  // by ranks
  std::vector<bps_process_set*> left_;  // of earlier sessions; operations in flight have kept them
};

// The one of this shared object. It is never destroyed: threads of the framework may outlive main().
AttachedSession& TheSession();

}  // namespace byteps::binding

#endif  // BYTEPS_FRAMEWORKS_COMMON_ATTACHED_SESSION_H_
