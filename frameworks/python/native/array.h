// array.h - the memory of an array of another library, for the length of an operation: whatever has the buffer protocol
// or DLPack.
//
//     array = _native.Array(numpy_array, writable=True)
//     session.push_pull(name, array.dtype, array.shape, array.address, array.address, SUM, buffers=array)
//
// The owner is held as its protocol asks for: a bytearray cannot be resized, a NumPy array cannot be reallocated, and a
// tensor that came by DLPack keeps its storage, until this is dropped.
//
// Threads: as Python's own objects; made and dropped with the GIL.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_ARRAY_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_ARRAY_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace byteps::python {

class Array {
 public:
  // Takes hold of the memory of `object`. Throws TypeError for what has neither protocol or elements that cannot be
  // reduced, and ValueError for memory that has gaps, is not in this process's memory, or is read-only where `writable`
  // is asked for.
  Array(const pybind11::object& object, bool writable);
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  uintptr_t address() const { return address_; }
  uint32_t dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }

 private:
  void TakeBuffer(const pybind11::object& object, bool writable);
  void TakeDlpack(const pybind11::object& object, bool writable);

  uintptr_t address_ = 0;
  uint32_t dtype_ = 0;
  std::vector<int64_t> shape_;
  std::unique_ptr<Py_buffer> buffer_;  // or
  pybind11::object capsule_;
};

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_ARRAY_H_
