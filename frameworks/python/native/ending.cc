#include "frameworks/python/native/ending.h"

#include <pybind11/pybind11.h>

#include <exception>

#include "frameworks/python/native/session.h"

namespace byteps::python {

void Sweeping::Ask() noexcept {
  if (asked_.exchange(true)) return;
  try {
    auto self = std::make_unique<std::shared_ptr<Sweeping>>(shared_from_this());
    // (0 behind the end of Python, whose process frees everything.)
    if (Py_IsInitialized() != 0 && Py_AddPendingCall(&Sweeping::Sweep, self.get()) == 0) {
      (void)self.release();
      return;
    }
  } catch (const std::exception&) {  // no memory
  }
  asked_ = false;
}

int Sweeping::Sweep(void* user) {
  const std::unique_ptr<std::shared_ptr<Sweeping>> self(static_cast<std::shared_ptr<Sweeping>*>(user));
  // First: an end that comes from here on asks anew.
  (*self)->asked_ = false;
  const std::shared_ptr<Session> session = (*self)->session_.lock();
  if (session == nullptr || session->IsForkedChild()) return 0;
  try {
    session->Sweep();
  } catch (const std::exception&) {  // no memory: the next sweep does it
  }
  return 0;
}

}  // namespace byteps::python
