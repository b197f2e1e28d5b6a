// ops.cc - tells TensorFlow of the ops and kernels when tf.load_op_library() loads this object.

#include <initializer_list>
#include <string>

#include "frameworks/tensorflow/native/c_api.h"
#include "frameworks/tensorflow/native/kernel.h"

namespace byteps::tensorflow {
namespace {

constexpr const char* kTypes =
    "T: {uint8, int8, int16, int32, int64, half, bfloat16, float, double, bool, complex64, complex128}";

// The output has the shape of the input.
void InferShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const CApi& api = *CApi::Find();
  TF_ShapeHandle* shape = api.TF_NewShapeHandle();
  api.TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  if (api.TF_GetCode(status) == 0) api.TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  api.TF_DeleteShapeHandle(shape);
}

template <Kind kind>
void* Create(TF_OpKernelConstruction* construction) {
  return new Kernel(*CApi::Find(), kind, construction);
}

void Compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  static_cast<Kernel*>(kernel)->Compute(context, done);
}

void Destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

template <Kind kind>
void Register(const CApi& api, const char* op, std::initializer_list<const char*> attributes) {
  TF_OpDefinitionBuilder* definition = api.TF_NewOpDefinitionBuilder(op);
  api.TF_OpDefinitionBuilderAddInput(definition, "tensor: T");
  api.TF_OpDefinitionBuilderAddOutput(definition, "result: T");
  api.TF_OpDefinitionBuilderAddAttr(definition, kTypes);
  api.TF_OpDefinitionBuilderAddAttr(definition, "tensor_name: string");
  api.TF_OpDefinitionBuilderAddAttr(definition, "priority: int = 0");
  for (const char* attribute : attributes) api.TF_OpDefinitionBuilderAddAttr(definition, attribute);
  // Else equal calls are merged, and those with constant inputs computed once. byteps/tensorflow/library.py then sees
  // to it that they need not run one after another.
  api.TF_OpDefinitionBuilderSetIsStateful(definition, true);
  if (api.SetIsDistributedCommunication != nullptr) api.SetIsDistributedCommunication(definition);
  api.TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, InferShape);
  const ScopedStatus status(api);
  api.TF_RegisterOpDefinition(definition, status.get());

  // A kernel for a GPU, whose tensors TensorFlow then copies through host memory.
  for (const char* device : {"CPU", "GPU"}) {
    TF_KernelBuilder* builder = api.TF_NewAsyncKernelBuilder(op, device, Create<kind>, Compute, Destroy);
    if (std::string(device) != "CPU") {
      api.TF_KernelBuilder_HostMemory(builder, "tensor");
      api.TF_KernelBuilder_HostMemory(builder, "result");
    }
    api.TF_RegisterKernelBuilder(op, builder, status.get());
  }
}

__attribute__((constructor)) void RegisterAll() {
  const CApi* api = CApi::Find();
  // Whoever loads this object without TensorFlow finds no ops: byteps/tensorflow/library.py says what is wrong.
  if (api == nullptr) return;
  Register<Kind::kPushPull>(*api, "BytepsPushPull", {"op: int"});
  Register<Kind::kBroadcast>(*api, "BytepsBroadcast", {"root_rank: int"});
}

}  // namespace
}  // namespace byteps::tensorflow
