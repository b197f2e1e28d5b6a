// tensor.h - declared tensors: handles by (name, dtype, shape), and what the handles of one name share.
//
//     TensorTable table;
//     absl::StatusOr<Tensor*> tensor = table.Declare("layer1.weight", BPS_FLOAT32, shape);   // any thread
//     if (!tensor->name().place().Enter()) ...   // an operation on this name is in flight already
//     for (Tensor* fresh : table.TakeUndeclared()) ...   // to be told to the coordinator
//
// The subtle parts:
//
// Names.    A name is not bound to one shape: declaring it with another gives another handle, and both stay valid.
//           Rounds are counted per name, whatever the handle, and at most one operation per name is in flight.
// Threads.  Declare, place() and what is const may be called by any thread. Everything said to belong to the engine is
//           touched by the thread that drives it.
// Lifetime. Handles live as long as the table; they are never moved.
#ifndef BYTEPS_CORE_WORKER_TENSOR_TENSOR_H_
#define BYTEPS_CORE_WORKER_TENSOR_TENSOR_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/worker/memory/huge_pages.h"
#include "core/worker/tensor/cut.h"
#include "core/worker/tensor/flight_place.h"

namespace byteps {

struct Operation;
class TensorTable;

// What the handles of one name share, and all operations of all ranks under it: also those that go from worker to
// worker (core/worker/collectives) count as its rounds, and take its place in flight.
class TensorName {
 public:
  TensorName(std::string text, uint64_t order) : text_(std::move(text)), order_(order) {}

  const std::string& text() const { return text_; }
  // Position in the order of declaration.
  uint64_t order() const { return order_; }

  // Of the one operation in flight.
  FlightPlace& place() { return place_; }

  // Are there asynchronous tensors of this name? Their rounds are each rank's own.
  std::atomic<bool> asynchronous{false};

  // The engine's: accepted submissions so far, and the operation in flight, if it goes through stages.
  uint64_t rounds = 0;
  Operation* operation = nullptr;

 private:
  const std::string text_;
  const uint64_t order_;
  FlightPlace place_;
};

// A handle.
class Tensor {
 public:
  Tensor(const TensorTable* table, TensorName* name, uint32_t dtype, std::vector<int64_t> shape, uint64_t elements,
         int32_t mode = BPS_MODE_SYNCHRONOUS);

  const TensorTable* table() const { return table_; }
  TensorName& name() const { return *name_; }
  uint32_t dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  uint64_t elements() const { return elements_; }
  // Its value stays with the servers, and each push is added to it.
  bool asynchronous() const { return mode_ == BPS_MODE_ASYNCHRONOUS; }
  int32_t mode() const { return mode_; }
  uint64_t bytes() const { return bytes_; }
  uint32_t element_bytes() const { return element_bytes_; }
  // "layer1.weight" (float32, 3x4)
  std::string Describe() const;

  // The engine's: the coordinator's answer.
  std::optional<Cut> cut;
  absl::Status refusal;         // or why there is none
  std::optional<Cut> next_cut;  // what follows it, from round cut->next_cut() on
  bool asked_next = false;      // for that

  // The engine's: rounds given up before the cut was known; the servers are told when it is.
  struct Owed {
    uint64_t round;
    uint64_t fingerprint;
    absl::Status why;
  };
  std::vector<Owed> owed;

  // Of its buffers.
  HugePages input_pages, output_pages;

 private:
  const TensorTable* const table_;
  TensorName* const name_;
  const uint32_t dtype_;
  const std::vector<int64_t> shape_;
  const uint64_t elements_;
  const uint32_t element_bytes_;
  const uint64_t bytes_;
  const int32_t mode_;
};

class TensorTable {
 public:
  TensorTable() = default;
  TensorTable(const TensorTable&) = delete;
  TensorTable& operator=(const TensorTable&) = delete;

  // The handle of these three; a new one if there is none. INVALID_ARGUMENT says what is wrong with them;
  // FAILED_PRECONDITION: it is there in another mode.
  absl::StatusOr<Tensor*> Declare(std::string_view name, uint32_t dtype, std::span<const int64_t> shape,
                                  int32_t mode = BPS_MODE_SYNCHRONOUS);

  // What the handles of this name share, or will; any text. It is not declared by that.
  TensorName* Name(std::string_view name);

  // The handle the coordinator means; nullptr if it was not declared here.
  Tensor* Find(std::string_view name, uint32_t dtype, std::span<const int64_t> shape) const;

  // Handles declared since the last call.
  std::vector<Tensor*> TakeUndeclared();
  bool HasUndeclared() const { return undeclared_count_.load(std::memory_order_acquire) != 0; }

 private:
  TensorName* NameLocked(std::string_view name);

  // What a handle is found by; a view of a name or a shape is what it views.
  struct Key {
    std::string_view name;
    uint32_t dtype;
    std::span<const int64_t> shape;

    bool operator==(const Key& other) const {
      return name == other.name && dtype == other.dtype && std::ranges::equal(shape, other.shape);
    }
    template <typename H>
    friend H AbslHashValue(H hash, const Key& key) {
      hash = H::combine(std::move(hash), absl::string_view(key.name.data(), key.name.size()), key.dtype);
      return H::combine(H::combine_contiguous(std::move(hash), key.shape.data(), key.shape.size()), key.shape.size());
    }
  };

  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, std::unique_ptr<TensorName>> names_;
  absl::flat_hash_map<Key, std::unique_ptr<Tensor>> tensors_;  // the keys are views of them
  std::vector<Tensor*> undeclared_;
  std::atomic<size_t> undeclared_count_{0};
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_TENSOR_H_
