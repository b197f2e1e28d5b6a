#include "core/worker/engine/admission.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/reduce/dtype.h"

namespace byteps {
namespace {

absl::Status CheckBuffer(const Submission& asked, const char* which, const void* address) {
  const Tensor& tensor = *asked.tensor;
  if (tensor.bytes() == 0) return absl::OkStatus();
  if (address == nullptr) return absl::InvalidArgumentError(absl::StrCat(tensor.Describe(), ": ", which, " is NULL"));
  const uint64_t alignment = DtypeAlignment(asked.DtypeInMemory());
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.Describe(), ": ", which, " is not aligned to ", alignment, " bytes"));
  }
  return absl::OkStatus();
}

bool Overlap(const std::byte* a, const std::byte* b, uint64_t bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y ? y - x < bytes : x - y < bytes;
}

}  // namespace

absl::Status CheckSubmission(const Submission& asked, uint32_t size) {
  const Tensor& tensor = *asked.tensor;
  bool reads_input = asked.given_up.ok();
  if (asked.kind == wire::Operation::kPushPull) {
    if (absl::Status status = CheckReduction(tensor.dtype(), asked.reduction); !status.ok()) {
      return Annotate(status, tensor.Describe());
    }
    if (tensor.asynchronous() && asked.reduction != BPS_SUM) {
      return absl::InvalidArgumentError(absl::StrCat(
          tensor.Describe(), " is asynchronous: what is pushed is added to its value, so BPS_SUM is all there is"));
    }
  } else if (tensor.asynchronous()) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.Describe(), " is asynchronous: it can be pushed and pulled, not broadcast"));
  } else {
    if (asked.root < 0 || static_cast<uint32_t>(asked.root) >= size) {
      return absl::InvalidArgumentError(absl::StrCat(tensor.Describe(), ": root ", asked.root,
                                                     " is no rank of this job, which has ", size, " workers"));
    }
    // On the other ranks the caller has set it to NULL or to anything.
    reads_input = asked.given_up.ok() && asked.input != nullptr;
  }
  if (reads_input) {
    if (absl::Status status = CheckBuffer(asked, "input", asked.input); !status.ok()) return status;
    if (asked.input != asked.output && Overlap(asked.input, asked.output, asked.BytesInMemory())) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor.Describe(), ": input and output overlap without being equal"));
    }
  }
  if (asked.given_up.ok()) {
    if (absl::Status status = CheckBuffer(asked, "output", asked.output); !status.ok()) return status;
  } else if (tensor.asynchronous()) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.Describe(), " is asynchronous: no rank waits for a round of another that gives it up"));
  }
  if (asked.match != 0 && tensor.asynchronous()) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.Describe(), " is asynchronous: its rounds meet none of other ranks, so no numbers either"));
  }
  return absl::OkStatus();
}

}  // namespace byteps
