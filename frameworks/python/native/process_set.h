// process_set.h - a subset of the ranks, as Python sees it; freed with its last reference.
//
// Threads: any thread that holds the GIL.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_PROCESS_SET_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_PROCESS_SET_H_

#include <memory>

#include "abi/byteps.h"
#include "frameworks/python/native/session_handle.h"

namespace byteps::python {

class ProcessSet {
 public:
  // Takes ownership of `set`.
  ProcessSet(std::shared_ptr<SessionHandle> handle, bps_process_set* set) : handle_(std::move(handle)), set_(set) {}
  // An operation that still uses it keeps what it needs of it.
  ~ProcessSet() { Free(); }
  ProcessSet(const ProcessSet&) = delete;
  ProcessSet& operator=(const ProcessSet&) = delete;

  // nullptr: it was freed.
  bps_process_set* get() const { return set_; }
  // Throws FAILED_PRECONDITION while an operation uses it.
  void Remove();

 private:
  void Free();

  const std::shared_ptr<SessionHandle> handle_;
  bps_process_set* set_;
};

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_PROCESS_SET_H_
