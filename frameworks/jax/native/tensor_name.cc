#include "frameworks/jax/native/tensor_name.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace byteps::jax {

namespace ffi = xla::ffi;

ffi::Error ReadHostMemory(const void* from, size_t bytes, void* to) {
  std::memcpy(to, from, bytes);
  return {};
}

ffi::ErrorOr<std::string> TensorName(std::string_view attribute, const ffi::RemainingArgs& operands,
                                     const ReadOperand& read) {
  std::string name(attribute);
  for (size_t i = 0; i < operands.size(); ++i) {
    const ffi::ErrorOr<ffi::AnyBuffer> operand = operands.get<ffi::AnyBuffer>(i);
    if (!operand.has_value()) return ffi::Unexpected(operand.error());
    const ffi::DataType type = operand->element_type();
    if (type == ffi::DataType::U8) {
      std::string padded(operand->element_count(), '\0');
      ffi::Error error = read(operand->untyped_data(), padded.size(), padded.data());
      if (error.failure()) return ffi::Unexpected(std::move(error));
      name = padded.substr(0, padded.find('\0'));
    } else if (type == ffi::DataType::S32 && operand->element_count() > 0) {
      int32_t number = 0;
      ffi::Error error = read(operand->untyped_data(), sizeof number, &number);
      if (error.failure()) return ffi::Unexpected(std::move(error));
      name += "/" + std::to_string(number);
    } else {
      return ffi::Unexpected(ffi::Error::InvalidArgument(
          "an operand behind the tensor is neither a name nor the number of a device; was this program made by another "
          "release of BytePS?"));
    }
  }
  return name;
}

}  // namespace byteps::jax
