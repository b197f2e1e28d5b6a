// collective_kernel.h - the kernel BytepsCollective: any collective of the library, over all ranks or a set.
//
// As of kernel.h; but the result has the size that it has, and becomes the output in the library's memory.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_COLLECTIVE_KERNEL_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_COLLECTIVE_KERNEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/common/collective.h"
#include "frameworks/tensorflow/native/c_api.h"
#include "frameworks/tensorflow/native/iteration.h"
#include "frameworks/tensorflow/native/step_member.h"

namespace byteps::tensorflow {

class CollectiveKernel {
 public:
  // An input tensor. The context holds its memory as well, until the kernel has ended.
  struct Input {
    std::vector<int64_t> shape;
    const void* data = nullptr;
  };

  // Reads the node's attributes. What is wrong with them is told to `construction`.
  CollectiveKernel(const CApi& api, TF_OpKernelConstruction* construction);

  // Starts the operation; `done`, which is valid during this call only, is called when it has ended.
  void Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);

 private:
  void Send(const Input& tensor, const Iteration& iteration, const std::vector<int64_t>& splits,
            const binding::CollectiveDone& finish) const;

  // Both outputs: the result, and its rows of (or for) each rank. `shape`: of the input.
  void SetOutputs(TF_OpKernelContext* context, const binding::CollectiveResult& result, std::vector<int64_t> shape,
                  TF_Status* status) const;

  const CApi& api_;
  std::string name_;
  int type_ = 0;
  uint32_t dtype_ = 0;
  int64_t kind_ = 0;
  int64_t op_ = 0;
  int64_t root_ = 0;
  int64_t priority_ = 0;
  std::vector<int32_t> ranks_;
  Iterations iterations_;
  StepMember member_;
};

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_COLLECTIVE_KERNEL_H_
