#include "frameworks/python/native/status_error.h"

#include <pybind11/pybind11.h>

namespace byteps::python {

namespace py = pybind11;

void Check(const Library& library, bps_status* status) {
  if (status == nullptr) return;
  StatusError error(library.bps_status_code(status), library.bps_status_message(status),
                    library.bps_status_retryable(status) != 0);
  library.bps_status_free(status);
  throw error;
}

void RegisterStatusError() {
  // NOLINTNEXTLINE(performance-unnecessary-value-param): so is the type of pybind11's.
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      try {
        py::object exception =
            py::module_::import("byteps.errors").attr("from_status")(error.code(), error.what(), error.retryable());
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
      } catch (py::error_already_set& while_building) {
        // For example a message that is not UTF-8: better that error than none.
        while_building.restore();
      }
    }
  });
}

}  // namespace byteps::python
