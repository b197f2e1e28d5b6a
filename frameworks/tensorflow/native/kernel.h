// kernel.h - the kernels BytepsPushPull and BytepsBroadcast: one of them, made by TensorFlow for one node of a graph.
//
// A kernel starts its operation and returns. The library's thread then tells TensorFlow that the node has ended, and
// TensorFlow runs what depends on it on threads of its own.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_KERNEL_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_KERNEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/common/operation.h"
#include "frameworks/tensorflow/native/c_api.h"
#include "frameworks/tensorflow/native/iteration.h"
#include "frameworks/tensorflow/native/step_member.h"

namespace byteps::tensorflow {

enum class Kind { kPushPull, kBroadcast };

class Kernel {
 public:
  // Reads the node's attributes. What is wrong with them is told to `construction`.
  Kernel(const CApi& api, Kind kind, TF_OpKernelConstruction* construction);

  // Starts the operation; `done`, which is valid during this call only, is called when it has ended.
  void Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);

 private:
  // Where the operation reads and writes.
  struct Memory {
    std::vector<int64_t> shape;
    const void* input = nullptr;
    void* output = nullptr;
  };

  // The input, and the output in its memory if nothing else needs that. Returns false if TensorFlow could give none,
  // and has heard so.
  bool Allocate(TF_OpKernelContext* context, Memory& memory) const;
  void Send(const Memory& memory, const Iteration& iteration, const binding::Done& finish) const;

  const CApi& api_;
  const Kind kind_;
  std::string name_;
  uint32_t dtype_ = 0;
  int64_t priority_ = 0;
  int64_t op_ = 0;  // of a push_pull
  bool asynchronous_ = false;
  int64_t root_ = 0;  // of a broadcast
  Iterations iterations_;
  StepMember member_;
};

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_KERNEL_H_
