#include "frameworks/python/native/interruptible.h"

#include <pybind11/pybind11.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace byteps::python {

namespace py = pybind11;

namespace {

// What the two threads share; the last of them frees it.
struct Call {
  std::mutex mutex;
  std::condition_variable ended;
  bool is_ended = false;
  bool is_abandoned = false;
  std::exception_ptr error;
};

}  // namespace

void CheckSignals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void RunInterruptible(std::function<void()> call, std::function<void()> abandoned) {
  auto shared = std::make_shared<Call>();
  std::thread([shared, call = std::move(call), abandoned = std::move(abandoned)] {
    std::exception_ptr error;
    try {
      call();
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::unique_lock lock(shared->mutex);
      shared->error = error;
      shared->is_ended = true;
      shared->ended.notify_one();
      if (!shared->is_abandoned) return;
    }
    if (!error) abandoned();
  }).detach();

  for (;;) {
    {
      py::gil_scoped_release released;
      std::unique_lock lock(shared->mutex);
      if (shared->ended.wait_for(lock, kSignalInterval, [&] { return shared->is_ended; })) break;
    }
    try {
      CheckSignals();
    } catch (...) {
      std::unique_lock lock(shared->mutex);
      shared->is_abandoned = true;
      const bool clean_up_here = shared->is_ended && !shared->error;
      lock.unlock();
      if (clean_up_here) abandoned();
      throw;
    }
  }
  if (shared->error) std::rethrow_exception(shared->error);
}

}  // namespace byteps::python
