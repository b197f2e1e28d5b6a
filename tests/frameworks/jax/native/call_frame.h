// call_frame.h - a call of a typed FFI handler as XLA makes it on a GPU, by hand.
//
//     CallFrame call(stream);
//     call.Argument(XLA_FFI_DataType_F32, memory, {3, 4}).Result(XLA_FFI_DataType_F32, memory, {3, 4});
//     call.Text("name", "x").Number("op", BPS_SUM).Number("asynchronous", 0).Number("priority", 0);
//     const CallFrame::Answer answer = call.Run(handler);        // .code, .message
//
// Threads: one.
#ifndef BYTEPS_TESTS_FRAMEWORKS_JAX_NATIVE_CALL_FRAME_H_
#define BYTEPS_TESTS_FRAMEWORKS_JAX_NATIVE_CALL_FRAME_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace byteps::jax {

class CallFrame {
 public:
  struct Answer {
    int code = 0;
    std::string message;
  };

  explicit CallFrame(void* stream) : stream_(stream) {}

  CallFrame& Argument(XLA_FFI_DataType dtype, void* data, std::vector<int64_t> shape) {
    arguments_.push_back(Buffer(dtype, data, std::move(shape)));
    return *this;
  }
  CallFrame& Result(XLA_FFI_DataType dtype, void* data, std::vector<int64_t> shape) {
    results_.push_back(Buffer(dtype, data, std::move(shape)));
    return *this;
  }
  CallFrame& Text(const std::string& name, const std::string& text) {
    texts_[name] = text;
    return *this;
  }
  CallFrame& Number(const std::string& name, int64_t number) {
    numbers_[name] = number;
    return *this;
  }
  CallFrame& Numbers(const std::string& name, std::vector<int64_t> numbers) {
    arrays_[name] = std::move(numbers);
    return *this;
  }

  Answer Run(XLA_FFI_Handler* handler) {
    // Attributes are sorted by name.
    std::map<std::string, void*> sorted;
    std::deque<XLA_FFI_ByteSpan> spans;
    std::deque<XLA_FFI_Scalar> scalars;
    for (const auto& [name, text] : texts_)
      sorted[name] = &spans.emplace_back(XLA_FFI_ByteSpan{text.data(), text.size()});
    for (auto& [name, number] : numbers_) {
      sorted[name] = &scalars.emplace_back(XLA_FFI_Scalar{XLA_FFI_DataType_S64, &number});
    }
    std::deque<XLA_FFI_Array> arrays;
    for (auto& [name, numbers] : arrays_) {
      sorted[name] = &arrays.emplace_back(XLA_FFI_Array{XLA_FFI_DataType_S64, numbers.size(), numbers.data()});
    }
    std::deque<XLA_FFI_ByteSpan> names;
    std::vector<XLA_FFI_ByteSpan*> name_pointers;
    std::vector<XLA_FFI_AttrType> types;
    std::vector<void*> values;
    for (const auto& [name, value] : sorted) {
      name_pointers.push_back(&names.emplace_back(XLA_FFI_ByteSpan{name.data(), name.size()}));
      types.push_back(texts_.count(name) != 0    ? XLA_FFI_AttrType_STRING
                      : arrays_.count(name) != 0 ? XLA_FFI_AttrType_ARRAY
                                                 : XLA_FFI_AttrType_SCALAR);
      values.push_back(value);
    }
    std::vector<XLA_FFI_ArgType> argument_types(arguments_.size(), XLA_FFI_ArgType_BUFFER);
    std::vector<XLA_FFI_RetType> result_types(results_.size(), XLA_FFI_RetType_BUFFER);
    std::vector<void*> arguments = Pointers(arguments_), results = Pointers(results_);

    XLA_FFI_Api api = {};
    api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    api.XLA_FFI_Error_Create = CreateError;
    api.XLA_FFI_Error_GetMessage = MessageOf;
    api.XLA_FFI_Error_Destroy = DestroyError;
    api.XLA_FFI_Stream_Get = StreamOf;

    XLA_FFI_CallFrame frame = {};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &api;
    frame.ctx = reinterpret_cast<XLA_FFI_ExecutionContext*>(this);
    frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(arguments.size()), argument_types.data(),
                  arguments.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(results.size()), result_types.data(),
                  results.data()};
    frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr,      static_cast<int64_t>(values.size()), types.data(),
                   name_pointers.data(),      values.data()};
    auto* error = reinterpret_cast<Answer*>(handler(&frame));
    if (error == nullptr) return {};
    const Answer answer = *error;
    delete error;
    return answer;
  }

 private:
  struct Shaped {
    XLA_FFI_Buffer buffer;
    std::vector<int64_t> shape;
  };

  static Shaped Buffer(XLA_FFI_DataType dtype, void* data, std::vector<int64_t> shape) {
    const auto rank = static_cast<int64_t>(shape.size());
    return {{XLA_FFI_Buffer_STRUCT_SIZE, nullptr, dtype, data, rank, nullptr}, std::move(shape)};
  }
  static std::vector<void*> Pointers(std::deque<Shaped>& buffers) {
    std::vector<void*> pointers;
    for (Shaped& each : buffers) {
      each.buffer.dims = each.shape.data();
      pointers.push_back(&each.buffer);
    }
    return pointers;
  }

  static XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
    return reinterpret_cast<XLA_FFI_Error*>(new Answer{args->errc, args->message});
  }
  static void MessageOf(XLA_FFI_Error_GetMessage_Args* args) {
    args->message = reinterpret_cast<Answer*>(args->error)->message.c_str();
  }
  static void DestroyError(XLA_FFI_Error_Destroy_Args* args) { delete reinterpret_cast<Answer*>(args->error); }
  static XLA_FFI_Error* StreamOf(XLA_FFI_Stream_Get_Args* args) {
    args->stream = reinterpret_cast<CallFrame*>(args->ctx)->stream_;
    return nullptr;
  }

  void* const stream_;
  std::deque<Shaped> arguments_;
  std::deque<Shaped> results_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, int64_t> numbers_;
  std::map<std::string, std::vector<int64_t>> arrays_;
};

}  // namespace byteps::jax

#endif  // BYTEPS_TESTS_FRAMEWORKS_JAX_NATIVE_CALL_FRAME_H_
