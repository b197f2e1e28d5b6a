#include "frameworks/mxnet/native/completion.h"

#include <cstring>
#include <stdexcept>

// As MXNet declares it: the engine copies what it is given under this name, and finds it again by its type's name.
namespace dmlc {
struct __attribute__((visibility("default"))) Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace dmlc

namespace byteps::mxnet {

Completion::Completion(const void* callback) {
  static_assert(sizeof(Completion) == 3 * sizeof(void*), "the layout of mxnet::engine::CallbackOnComplete");
  std::memcpy(static_cast<void*>(this), callback, sizeof *this);
}

void Completion::Succeed() const { callback_(engine_, parameter_, nullptr); }

void Completion::Fail(const std::string& message) const {
  const dmlc::Error error(message);
  callback_(engine_, parameter_, &error);
}

}  // namespace byteps::mxnet
