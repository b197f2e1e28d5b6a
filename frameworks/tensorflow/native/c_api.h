// c_api.h - the parts of TensorFlow's C API that the kernels use, found in the process at run time.
//
//     const CApi* api = CApi::Find();  // NULL: no TensorFlow that these kernels know; CApi::Missing() says why
//     api->TF_SetStatus(status, code, message);
//
// Declared here and not included: the shared object is built without TensorFlow and works with every version from 2.13
// on. These functions of TensorFlow's are a stable C interface (tensorflow/c/kernels.h, ops.h, tf_tensor.h).
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_C_API_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_C_API_H_

#include <cstddef>
#include <cstdint>

namespace byteps::tensorflow {

struct TF_AsyncOpKernelDoneCallback;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

// TF_DataType, of those types that BytePS carries.
enum DataType : int {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kComplex128 = 18,
  kHalf = 19,
};

// X(result, name, arguments)
#define BYTEPS_TENSORFLOW_FUNCTIONS(X)                                                                               \
  X(TF_Status*, TF_NewStatus, ())                                                                                    \
  X(void, TF_DeleteStatus, (TF_Status*))                                                                             \
  X(void, TF_SetStatus, (TF_Status*, int code, const char* message))                                                 \
  X(int, TF_GetCode, (const TF_Status*))                                                                             \
  X(const char*, TF_Message, (const TF_Status*))                                                                     \
  X(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char* name))                                          \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char* spec))                                \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char* spec))                               \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char* spec))                              \
  X(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                      \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                                                           \
    (TF_OpDefinitionBuilder*, void (*infer)(TF_ShapeInferenceContext*, TF_Status*)))                                 \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                            \
  X(TF_ShapeHandle*, TF_NewShapeHandle, ())                                                                          \
  X(void, TF_DeleteShapeHandle, (TF_ShapeHandle*))                                                                   \
  X(void, TF_ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*))     \
  X(void, TF_ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*))    \
  X(TF_KernelBuilder*, TF_NewAsyncKernelBuilder,                                                                     \
    (const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),                                  \
     void (*compute)(void* kernel, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*destroy)(void*)))     \
  X(void, TF_RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                                          \
  X(void, TF_KernelBuilder_HostMemory, (TF_KernelBuilder*, const char* argument))                                    \
  X(void, TF_RegisterKernelBuilder, (const char* kernel, TF_KernelBuilder*, TF_Status*))                             \
  X(void, TF_OpKernelConstruction_GetAttrType, (TF_OpKernelConstruction*, const char* name, int* value, TF_Status*)) \
  X(void, TF_OpKernelConstruction_GetAttrInt64,                                                                      \
    (TF_OpKernelConstruction*, const char* name, int64_t* value, TF_Status*))                                        \
  X(void, TF_OpKernelConstruction_GetAttrBool,                                                                       \
    (TF_OpKernelConstruction*, const char* name, unsigned char* value, TF_Status*))                                  \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                                                       \
    (TF_OpKernelConstruction*, const char* name, int32_t* list_size, int32_t* total_size, TF_Status*))               \
  X(void, TF_OpKernelConstruction_GetAttrString,                                                                     \
    (TF_OpKernelConstruction*, const char* name, char* value, size_t size, TF_Status*))                              \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                   \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                             \
  X(void, TF_GetInput, (TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*))                                    \
  X(uint64_t, TF_GetFrameId, (TF_OpKernelContext*))                                                                  \
  X(int64_t, TF_GetIterId, (TF_OpKernelContext*))                                                                    \
  X(int64_t, TF_GetStepId, (TF_OpKernelContext*))                                                                    \
  X(TF_Tensor*, TF_ForwardInputOrAllocateOutput,                                                                     \
    (TF_OpKernelContext*, const int* candidates, int num_candidates, int output, const int64_t* dims, int num_dims,  \
     int* forwarded, TF_Status*))                                                                                    \
  X(void, TF_OpKernelConstruction_GetAttrInt64List,                                                                  \
    (TF_OpKernelConstruction*, const char* name, int64_t* values, int size, TF_Status*))                             \
  X(void, TF_ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))                          \
  X(TF_Tensor*, TF_NewTensor,                                                                                        \
    (int type, const int64_t* dims, int num_dims, void* data, size_t size,                                           \
     void (*drop)(void* data, size_t size, void* user), void* user))                                                 \
  X(void, TF_SetOutput, (TF_OpKernelContext*, int index, const TF_Tensor*, TF_Status*))                              \
  X(TF_Tensor*, TF_AllocateOutput,                                                                                   \
    (TF_OpKernelContext*, int index, int type, const int64_t* dims, int num_dims, size_t size, TF_Status*))          \
  X(void, TF_DeleteTensor, (TF_Tensor*))                                                                             \
  X(int, TF_NumDims, (const TF_Tensor*))                                                                             \
  X(int64_t, TF_Dim, (const TF_Tensor*, int index))                                                                  \
  X(void*, TF_TensorData, (const TF_Tensor*))

struct CApi {
  // The functions of the TensorFlow that is loaded in this process, looked up once. NULL if none is loaded, one that
  // lacks a function of them, or one whose callbacks are not those of done_function.h.
  static const CApi* Find();

  // Why Find() has found nothing, in words for users; empty if it has.
  static const char* Missing();

// A name that is declared stands in no parentheses.
#define BYTEPS_TENSORFLOW_MEMBER(result, name, arguments) result(*name) arguments = nullptr;  // NOLINT
  BYTEPS_TENSORFLOW_FUNCTIONS(BYTEPS_TENSORFLOW_MEMBER)
#undef BYTEPS_TENSORFLOW_MEMBER

  // tensorflow::OpDefBuilder::SetIsDistributedCommunication, which the C interface lacks; NULL where it is not found.
  // Without it TensorFlow turns UnavailableError of an op in a graph into InternalError, with the same message.
  void* (*SetIsDistributedCommunication)(TF_OpDefinitionBuilder*) = nullptr;
};

// A TF_Status that is freed at the end of its scope.
class ScopedStatus {
 public:
  explicit ScopedStatus(const CApi& api) : api_(api), status_(api.TF_NewStatus()) {}
  ~ScopedStatus() { api_.TF_DeleteStatus(status_); }
  ScopedStatus(const ScopedStatus&) = delete;
  ScopedStatus& operator=(const ScopedStatus&) = delete;

  TF_Status* get() const { return status_; }
  bool ok() const { return api_.TF_GetCode(status_) == 0; }

 private:
  const CApi& api_;
  TF_Status* status_;
};

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_C_API_H_
