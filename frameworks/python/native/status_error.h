// status_error.h - a failed call of the library as a C++ exception, which Python then sees as byteps.BytePSError.
//
//     Check(library, library.bps_declare(session, &args, &tensor));
//
// A status is freed as soon as its contents are copied into the exception.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_STATUS_ERROR_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_STATUS_ERROR_H_

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "abi/byteps.h"
#include "frameworks/common/library.h"

namespace byteps::python {

using binding::Library;

class StatusError : public std::exception {
 public:
  StatusError(int32_t code, std::string message, bool retryable)
      : code_(code), message_(std::move(message)), retryable_(retryable) {}

  const char* what() const noexcept override { return message_.c_str(); }
  int32_t code() const { return code_; }
  bool retryable() const { return retryable_; }

 private:
  int32_t code_;
  std::string message_;
  bool retryable_;
};

// Takes ownership of `status`; throws StatusError unless it is NULL.
void Check(const Library& library, bps_status* status);

// Makes Python see a StatusError as the exception that byteps.errors.from_status builds from it.
void RegisterStatusError();

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_STATUS_ERROR_H_
