// ops.cc - tells TensorFlow of the ops and kernels when tf.load_op_library() loads this object.

#include <initializer_list>
#include <string>

#include "frameworks/tensorflow/native/c_api.h"
#include "frameworks/tensorflow/native/collective_kernel.h"
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

// Results of collectives have the size that they have: byteps/tensorflow says what is known of it.
void InferNoShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  CApi::Find()->TF_ShapeInferenceContextSetUnknownShape(context, status);
}

// A kernel, and how its op is defined.
struct PushPullOp {
  using Of = Kernel;
  static constexpr const char* kName = "BytepsPushPull";
  static void* Create(TF_OpKernelConstruction* of) { return new Kernel(*CApi::Find(), Kind::kPushPull, of); }
};

struct BroadcastOp {
  using Of = Kernel;
  static constexpr const char* kName = "BytepsBroadcast";
  static void* Create(TF_OpKernelConstruction* of) { return new Kernel(*CApi::Find(), Kind::kBroadcast, of); }
};

struct CollectiveOp {
  using Of = CollectiveKernel;
  static constexpr const char* kName = "BytepsCollective";
  static void* Create(TF_OpKernelConstruction* of) { return new CollectiveKernel(*CApi::Find(), of); }
};

template <typename T>
void Compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  static_cast<T*>(kernel)->Compute(context, done);
}

template <typename T>
void Destroy(void* kernel) {
  delete static_cast<T*>(kernel);
}

using Names = std::initializer_list<const char*>;

template <typename Op>
void Register(const CApi& api, Names more_inputs, Names more_outputs, Names attributes,
              void (*infer)(TF_ShapeInferenceContext*, TF_Status*)) {
  TF_OpDefinitionBuilder* definition = api.TF_NewOpDefinitionBuilder(Op::kName);
  api.TF_OpDefinitionBuilderAddInput(definition, "tensor: T");
  for (const char* name : more_inputs) {
    api.TF_OpDefinitionBuilderAddInput(definition, (std::string(name) + ": int64").c_str());
  }
  api.TF_OpDefinitionBuilderAddOutput(definition, "result: T");
  for (const char* name : more_outputs) {
    api.TF_OpDefinitionBuilderAddOutput(definition, (std::string(name) + ": int64").c_str());
  }
  api.TF_OpDefinitionBuilderAddAttr(definition, kTypes);
  api.TF_OpDefinitionBuilderAddAttr(definition, "tensor_name: string");
  api.TF_OpDefinitionBuilderAddAttr(definition, "priority: int = 0");
  for (const char* attribute : attributes) api.TF_OpDefinitionBuilderAddAttr(definition, attribute);
  // Else equal calls are merged, and those with constant inputs computed once. byteps/tensorflow/library.py then sees
  // to it that they need not run one after another.
  api.TF_OpDefinitionBuilderSetIsStateful(definition, true);
  if (api.SetIsDistributedCommunication != nullptr) api.SetIsDistributedCommunication(definition);
  api.TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, infer);
  const ScopedStatus status(api);
  api.TF_RegisterOpDefinition(definition, status.get());

  // A kernel for a GPU, whose tensors TensorFlow then copies through host memory.
  for (const char* device : {"CPU", "GPU"}) {
    TF_KernelBuilder* builder =
        api.TF_NewAsyncKernelBuilder(Op::kName, device, Op::Create, Compute<typename Op::Of>, Destroy<typename Op::Of>);
    if (std::string(device) != "CPU") {
      for (const char* name : {"tensor", "result"}) api.TF_KernelBuilder_HostMemory(builder, name);
      for (const char* name : more_inputs) api.TF_KernelBuilder_HostMemory(builder, name);
      for (const char* name : more_outputs) api.TF_KernelBuilder_HostMemory(builder, name);
    }
    api.TF_RegisterKernelBuilder(Op::kName, builder, status.get());
  }
}

__attribute__((constructor)) void RegisterAll() {
  const CApi* api = CApi::Find();
  // A program that loads this object without TensorFlow finds no ops: byteps/tensorflow/library.py says what is wrong.
  if (api == nullptr) return;
  // Of operations that run together (step_group.h), which know their shape before they run, or {-1}.
  constexpr const char* kGroup = "group: string = ''";
  constexpr const char* kGraph = "graph: int = 0";
  constexpr const char* kShape = "static_shape: list(int) = [-1]";
  Register<PushPullOp>(*api, {}, {}, {"op: int", "asynchronous: bool = false", kGroup, kGraph, kShape}, InferShape);
  Register<BroadcastOp>(*api, {}, {}, {"root_rank: int"}, InferShape);
  Register<CollectiveOp>(
      *api, {"splits"}, {"rows"},
      {"kind: int", "op: int = 0", "root_rank: int = 0", "ranks: list(int) = []", kGroup, kGraph, kShape},
      InferNoShape);
}

}  // namespace
}  // namespace byteps::tensorflow

// For byteps/tensorflow/library.py: why there are no ops; empty if there are.
extern "C" __attribute__((visibility("default"))) const char* bps_shim_tensorflow_missing();

const char* bps_shim_tensorflow_missing() { return byteps::tensorflow::CApi::Missing(); }
