// first_error.h - the first of several errors, which any thread may find.
//
//     if (error.Set(why)) ...          // it is the first
//     if (error.any()) return error.Get();
//
// Threads: any.
#ifndef BYTEPS_CORE_BASE_FIRST_ERROR_H_
#define BYTEPS_CORE_BASE_FIRST_ERROR_H_

#include <atomic>
#include <mutex>

#include "absl/status/status.h"

namespace byteps {

class FirstError {
 public:
  // `error` is not OK. True: there was none before.
  bool Set(const absl::Status& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_.ok()) return false;
    error_ = error;
    any_.store(true, std::memory_order_release);
    return true;
  }
  // Cheap.
  bool any() const { return any_.load(std::memory_order_acquire); }
  // OK: there is none.
  absl::Status Get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

 private:
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  absl::Status error_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_FIRST_ERROR_H_
