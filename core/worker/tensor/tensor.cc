#include "core/worker/tensor/tensor.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"
#include "core/reduce/dtype.h"
#include "core/wire/push_head.h"
#include "core/wire/wire.h"

namespace byteps {
namespace {

// Names travel in control messages and in errors.
constexpr size_t kMaxName = 4096;
constexpr size_t kMaxDimensions = wire::kMaxExtents;

absl::Status CheckName(std::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("the name of a tensor is empty");
  if (name.size() > kMaxName) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name of a tensor has ", name.size(), " bytes; at most ", kMaxName, " are allowed"));
  }
  if (!IsUtf8(name)) return absl::InvalidArgumentError("the name of a tensor is not UTF-8");
  return absl::OkStatus();
}

// Elements of a shape, or what is wrong with it. Bytes fit into 63 bits.
absl::StatusOr<uint64_t> CountElements(std::string_view name, uint32_t dtype, std::span<const int64_t> shape) {
  const absl::string_view text(name.data(), name.size());
  if (shape.size() > kMaxDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", text, "\": ", shape.size(), " dimensions; at most ", kMaxDimensions, " are allowed"));
  }
  const uint64_t limit = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / DtypeSize(dtype);
  uint64_t elements = 1;
  bool empty = false;
  bool overflow = false;
  for (int64_t extent : shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", text, "\": a dimension is ", extent));
    }
    const uint64_t size = static_cast<uint64_t>(extent);
    if (size == 0) {
      empty = true;
    } else if (elements > limit / size) {
      overflow = true;
    } else {
      elements *= size;
    }
  }
  if (empty) return 0;
  if (overflow) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", text, "\": the product of its dimensions is too large"));
  }
  return elements;
}

}  // namespace

Tensor::Tensor(const TensorTable* table, TensorName* name, uint32_t dtype, std::vector<int64_t> shape,
               uint64_t elements, int32_t mode)
    : table_(table),
      name_(name),
      dtype_(dtype),
      shape_(std::move(shape)),
      elements_(elements),
      element_bytes_(static_cast<uint32_t>(DtypeSize(dtype))),
      bytes_(elements * element_bytes_),
      mode_(mode) {}

std::string Tensor::Describe() const {
  return absl::StrCat("\"", name_->text(), "\" (", DtypeName(dtype_), ", ", DescribeShape(shape_), ")");
}

absl::StatusOr<Tensor*> TensorTable::Declare(std::string_view name, uint32_t dtype, std::span<const int64_t> shape,
                                             int32_t mode) {
  if (absl::Status status = CheckName(name); !status.ok()) return status;
  if (!IsDtype(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", absl::string_view(name.data(), name.size()),
                                                   "\": unknown data type 0x", absl::Hex(dtype)));
  }
  absl::StatusOr<uint64_t> elements = CountElements(name, dtype, shape);
  if (!elements.ok()) return elements.status();

  std::lock_guard<std::mutex> lock(mutex_);
  if (auto it = tensors_.find(Key{name, dtype, shape}); it != tensors_.end()) {
    Tensor* tensor = it->second.get();
    if (tensor->mode() == mode) return tensor;
    return absl::FailedPreconditionError(absl::StrCat(tensor->Describe(), " is declared ",
                                                      tensor->asynchronous() ? "asynchronous" : "synchronous",
                                                      " already; a tensor of the other mode needs a name of its own"));
  }
  TensorName* shared = NameLocked(name);
  if (mode == BPS_MODE_ASYNCHRONOUS) shared->asynchronous.store(true, std::memory_order_relaxed);
  auto tensor =
      std::make_unique<Tensor>(this, shared, dtype, std::vector<int64_t>(shape.begin(), shape.end()), *elements, mode);
  Tensor* raw = tensor.get();
  tensors_.emplace(Key{shared->text(), dtype, raw->shape()}, std::move(tensor));
  undeclared_.push_back(raw);
  undeclared_count_.store(undeclared_.size(), std::memory_order_release);
  return raw;
}

TensorName* TensorTable::Name(std::string_view name) {
  std::lock_guard<std::mutex> lock(mutex_);
  return NameLocked(name);
}

TensorName* TensorTable::NameLocked(std::string_view name) {
  std::unique_ptr<TensorName>& shared = names_[std::string(name)];
  if (shared == nullptr) shared = std::make_unique<TensorName>(std::string(name), names_.size() - 1);
  return shared.get();
}

Tensor* TensorTable::Find(std::string_view name, uint32_t dtype, std::span<const int64_t> shape) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = tensors_.find(Key{name, dtype, shape});
  return it == tensors_.end() ? nullptr : it->second.get();
}

std::vector<Tensor*> TensorTable::TakeUndeclared() {
  std::lock_guard<std::mutex> lock(mutex_);
  undeclared_count_.store(0, std::memory_order_release);
  return std::exchange(undeclared_, {});
}

}  // namespace byteps
