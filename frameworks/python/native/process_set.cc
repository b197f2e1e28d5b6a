#include "frameworks/python/native/process_set.h"

#include <utility>

#include "frameworks/python/native/status_error.h"

namespace byteps::python {

void ProcessSet::Remove() {
  Check(handle_->library(), handle_->library().bps_process_set_free(set_));
  set_ = nullptr;
}

// Where an operation still uses it, its memory (some dozen bytes) stays.
void ProcessSet::Free() {
  if (set_ != nullptr) handle_->library().bps_status_free(handle_->library().bps_process_set_free(set_));
}

}  // namespace byteps::python
