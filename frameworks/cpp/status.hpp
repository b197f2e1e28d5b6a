// Errors as exceptions or values; part of byteps.hpp.
#ifndef BYTEPS_FRAMEWORKS_CPP_STATUS_HPP_
#define BYTEPS_FRAMEWORKS_CPP_STATUS_HPP_

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "abi/byteps.h"

namespace byteps {

namespace internal {

// A struct of the C interface as its ..._INIT macro makes it, without the warnings that those have in strict C++.
template <typename Struct>
Struct Initialised() {
  Struct made{};
  made.struct_size = sizeof(Struct);
  return made;
}

}  // namespace internal

// The outcome of a call, as a value.
class Status {
 public:
  // Success.
  Status() = default;
  // Takes ownership of `status`; NULL is success.
  explicit Status(bps_status* status) {
    if (status == nullptr) return;
    code_ = bps_status_code(status);
    message_ = bps_status_message(status);
    retryable_ = bps_status_retryable(status) != 0;
    bps_status_free(status);
  }
  Status(int32_t code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == BPS_OK; }
  // BPS_UNAVAILABLE and so on.
  int32_t code() const { return code_; }
  // The library's words; empty for success.
  const std::string& message() const { return message_; }
  // Whether the same call may succeed when tried again on this session.
  bool retryable() const { return retryable_; }

 private:
  int32_t code_ = BPS_OK;
  std::string message_;
  bool retryable_ = false;
};

// A failed call, in the library's own words.
class Error : public std::runtime_error {
 public:
  // `status` is not success.
  explicit Error(const Status& status) : std::runtime_error(status.message()), status_(status) {}
  // Takes ownership of `status`, which is not NULL.
  explicit Error(bps_status* status) : Error(Status(status)) {}

  const Status& status() const { return status_; }
  int32_t code() const { return status_.code(); }
  bool retryable() const { return status_.retryable(); }

 private:
  Status status_;
};

// Throws unless `status` is success.
inline void Check(bps_status* status) {
  if (status != nullptr) throw Error(status);
}
inline void Check(const Status& status) {
  if (!status.ok()) throw Error(status);
}

// A value, or why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}           // NOLINT(google-explicit-constructor)
  Result(Status failure) : content_(std::move(failure)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(content_); }
  explicit operator bool() const { return ok(); }
  // Success if there is a value.
  Status status() const { return ok() ? Status() : std::get<Status>(content_); }
  // The value; throws Error if there is none.
  T value() && {
    if (!ok()) throw Error(std::get<Status>(content_));
    return std::get<T>(std::move(content_));
  }
  T& operator*() & { return std::get<T>(content_); }
  T* operator->() { return &std::get<T>(content_); }

 private:
  std::variant<T, Status> content_;
};

// Deadlines of the calls below; zero is the session's default.
using Timeout = std::chrono::milliseconds;

}  // namespace byteps

#endif  // BYTEPS_FRAMEWORKS_CPP_STATUS_HPP_
