// completion.h - the callback by which an asynchronous operation of MXNet's engine ends.
//
// The engine hands a pointer into its own frame to the operation: this is a copy, which stays valid.
//
// Threads: any; called once.
#ifndef BYTEPS_FRAMEWORKS_MXNET_NATIVE_COMPLETION_H_
#define BYTEPS_FRAMEWORKS_MXNET_NATIVE_COMPLETION_H_

#include <string>

namespace byteps::mxnet {

class Completion {
 public:
  Completion() = default;

  // Copies the mxnet::engine::CallbackOnComplete at `callback`.
  explicit Completion(const void* callback);

  // The operation has ended. The engine hands what depends on it to its own threads.
  void Succeed() const;

  // ... with an MXNetError for the thread that waits for its arrays.
  void Fail(const std::string& message) const;

 private:
  void (*callback_)(void* engine, void* parameter, const void* error) = nullptr;
  void* engine_ = nullptr;
  void* parameter_ = nullptr;
};

}  // namespace byteps::mxnet

#endif  // BYTEPS_FRAMEWORKS_MXNET_NATIVE_COMPLETION_H_
