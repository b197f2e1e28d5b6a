#include "core/worker/engine/root_copies.h"

#include <algorithm>
#include <cstring>

namespace byteps {

bool RootCopies::Owes(const Operation& operation, uint32_t own_rank) {
  const Submission& asked = operation.asked;
  return asked.kind == wire::Operation::kBroadcast && static_cast<uint32_t>(asked.root) == own_rank &&
         asked.output != asked.input && asked.output_device.type != BPS_CUDA && asked.tensor->bytes() != 0;
}

Operation* RootCopies::Run() {
  if (copies_.empty()) return nullptr;
  Copy& copy = copies_.front();
  const Submission& asked = copy.operation->asked;
  const size_t bytes = std::min<size_t>(kStep, asked.tensor->bytes() - copy.done);
  std::memcpy(asked.output + copy.done, asked.input + copy.done, bytes);
  copy.done += bytes;
  if (copy.done != asked.tensor->bytes()) return nullptr;
  Operation* operation = copy.operation;
  copies_.pop_front();
  return operation;
}

bool RootCopies::Has(const Operation& operation) const {
  return std::any_of(copies_.begin(), copies_.end(), [&](const Copy& copy) { return copy.operation == &operation; });
}

}  // namespace byteps
