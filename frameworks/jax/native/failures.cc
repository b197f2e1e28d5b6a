#include "frameworks/jax/native/failures.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace byteps::jax {
namespace {

// More are not kept, but the first and the latest: a program that is never told of its errors, and goes on, must not
// fill the memory.
constexpr size_t kMost = 4096;

}  // namespace

void Failures::Add(binding::Outcome failure) {
  const std::lock_guard lock(mutex_);
  if (untold_.size() == kMost) untold_.erase(untold_.begin() + 1);
  untold_.push_back(std::move(failure));
}

void Failures::Told(std::string_view text) {
  const std::lock_guard lock(mutex_);
  const bool told = std::any_of(untold_.begin(), untold_.end(), [&](const binding::Outcome& failure) {
    return text.find(failure.message) != std::string_view::npos;
  });
  if (told) untold_.clear();
}

bool Failures::First(binding::Outcome* failure) const {
  const std::lock_guard lock(mutex_);
  if (untold_.empty()) return false;
  *failure = untold_.front();
  return true;
}

Failures& TheFailures() {
  static auto* const kFailures = new Failures;
  return *kFailures;
}

}  // namespace byteps::jax
