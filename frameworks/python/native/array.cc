#include "frameworks/python/native/array.h"

#include <string>
#include <utility>

#include "abi/byteps.h"

namespace byteps::python {

namespace py = pybind11;

namespace {

// The structs of DLPack (github.com/dmlc/dlpack, dlpack.h), as far as they are read here. Their layout is a promise.
struct DLTensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor tensor;
  void* manager;
  void (*deleter)(DLManagedTensor*);
};

struct DLManagedTensorVersioned {
  uint32_t major;
  uint32_t minor;
  void* manager;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor tensor;
};

constexpr uint64_t kDlpackReadOnly = 1;

std::string TypeName(const py::object& object) { return py::str(py::type::of(object).attr("__name__")); }

[[noreturn]] void ThrowElements(const py::object& object, const std::string& what) {
  throw py::type_error(
      "an array of type " + TypeName(object) + " has elements " + what +
      ", which cannot be reduced; int8, int16, int32, int64, uint8, float16, bfloat16, float32, float64, "
      "complex64, complex128 and bool can");
}

bool IsKnown(uint32_t dtype) {
  for (uint32_t known : {BPS_INT8, BPS_INT16, BPS_INT32, BPS_INT64, BPS_UINT8, BPS_FLOAT16, BPS_FLOAT32, BPS_FLOAT64,
                         BPS_BFLOAT16, BPS_COMPLEX64, BPS_COMPLEX128, BPS_BOOL}) {
    if (dtype == known) return true;
  }
  return false;
}

// The dtype of a format of the struct module, of elements of `size` bytes; 0 for what is none.
uint32_t DtypeOfFormat(std::string format, py::ssize_t size) {
  // In this machine's order, or of one byte, where it does not matter.
  if (!format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<')) format.erase(0, 1);
  if (format == "?") return BPS_BOOL;
  if (format == "B") return BPS_UINT8;
  if (format == "e") return BPS_FLOAT16;
  if (format == "f") return BPS_FLOAT32;
  if (format == "d") return BPS_FLOAT64;
  if (format == "Zf") return BPS_COMPLEX64;
  if (format == "Zd") return BPS_COMPLEX128;
  if (format.size() == 1 && std::string("bhilqn").find(format[0]) != std::string::npos) {
    return BPS_DTYPE(0, 8 * static_cast<uint32_t>(size));
  }
  return 0;
}

// Row-major and without gaps? Absent strides say so.
bool IsDense(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

// A NumPy array of the bfloat16 of ml_dtypes: neither the buffer protocol nor DLPack gives its memory out.
bool IsNumpyBfloat16(const py::object& object) {
  return TypeName(object) == "ndarray" && PyObject_CheckBuffer(object.ptr()) != 0 && py::hasattr(object, "dtype") &&
         std::string(py::str(object.attr("dtype"))) == "bfloat16";
}

// The capsule of an object's tensor: versioned where its library knows that, which can say "read-only".
py::object DlpackCapsule(const py::object& object) {
  try {
    return object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")();
}

}  // namespace

Array::Array(const py::object& object, bool writable) {
  if (IsNumpyBfloat16(object)) {
    TakeBuffer(object.attr("view")("int16"), writable);
    dtype_ = BPS_BFLOAT16;
    return;
  }
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    try {
      TakeBuffer(object, writable);
      return;
    } catch (py::error_already_set& error) {
      // NumPy's arrays of other libraries' elements (bfloat16) have no format; DLPack may know them.
      if (!py::hasattr(object, "__dlpack__") || error.matches(PyExc_TypeError)) throw;
    }
  }
  if (!py::hasattr(object, "__dlpack__")) {
    throw py::type_error("an array is needed: something with the buffer protocol or with __dlpack__, not " +
                         TypeName(object));
  }
  TakeDlpack(object, writable);
}

void Array::TakeBuffer(const py::object& object, bool writable) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_FORMAT | PyBUF_STRIDES) != 0) throw py::error_already_set();
  // Released by the destructor alone from here on, which does not run if this constructor throws.
  struct Release {
    void operator()(Py_buffer* held) const { PyBuffer_Release(held); }
  };
  std::unique_ptr<Py_buffer, Release> held(view.get());
  if (writable && view->readonly != 0) {
    throw py::value_error("the array of type " + TypeName(object) + " is read-only: a result cannot be written there");
  }
  if (PyBuffer_IsContiguous(view.get(), 'C') == 0) {
    throw py::value_error("the array of type " + TypeName(object) +
                          " is not contiguous (row-major, without gaps): copy it first");
  }
  const std::string format = view->format == nullptr ? "B" : view->format;
  dtype_ = DtypeOfFormat(format, view->itemsize);
  if (!IsKnown(dtype_)) ThrowElements(object, "of format \"" + format + "\"");
  address_ = reinterpret_cast<uintptr_t>(view->buf);
  shape_.assign(view->shape, view->shape + view->ndim);
  (void)held.release();
  buffer_ = std::move(view);
}

void Array::TakeDlpack(const py::object& object, bool writable) {
  py::object capsule = DlpackCapsule(object);
  const DLTensor* tensor = nullptr;
  bool read_only = false;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* managed =
        static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->major != 1) {
      throw py::value_error("the array of type " + TypeName(object) + " speaks DLPack " +
                            std::to_string(managed->major) + "; 0 and 1 are known here");
    }
    tensor = &managed->tensor;
    read_only = (managed->flags & kDlpackReadOnly) != 0;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    tensor = &static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  } else {
    throw py::type_error("__dlpack__ of " + TypeName(object) + " gives no capsule of DLPack");
  }
  if (tensor->device_type != BPS_CPU && tensor->device_type != BPS_CUDA_HOST) {
    throw py::value_error("the array of type " + TypeName(object) + " is on device type " +
                          std::to_string(tensor->device_type) + " of DLPack; memory of the host (1) is needed");
  }
  if (writable && read_only) {
    throw py::value_error("the array of type " + TypeName(object) + " is read-only: a result cannot be written there");
  }
  if (!IsDense(*tensor)) {
    throw py::value_error("the array of type " + TypeName(object) +
                          " is not contiguous (row-major, without gaps): copy it first");
  }
  dtype_ = tensor->code | static_cast<uint32_t>(tensor->bits) << 8 | static_cast<uint32_t>(tensor->lanes) << 16;
  if (!IsKnown(dtype_)) {
    ThrowElements(object,
                  "of DLPack's code " + std::to_string(tensor->code) + ", " + std::to_string(tensor->bits) + " bits");
  }
  address_ = reinterpret_cast<uintptr_t>(tensor->data) + tensor->byte_offset;
  shape_.assign(tensor->shape, tensor->shape + tensor->ndim);
  // A capsule that was not renamed deletes its tensor when it goes.
  capsule_ = std::move(capsule);
}

Array::~Array() {
  if (buffer_ != nullptr) PyBuffer_Release(buffer_.get());
}

}  // namespace byteps::python
