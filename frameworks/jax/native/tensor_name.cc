#include "frameworks/jax/native/tensor_name.h"

#include <cstddef>
#include <cstdint>

namespace byteps::jax {

namespace ffi = xla::ffi;

ffi::ErrorOr<std::string> TensorName(std::string_view attribute, const ffi::RemainingArgs& operands) {
  std::string name(attribute);
  for (size_t i = 0; i < operands.size(); ++i) {
    const ffi::ErrorOr<ffi::AnyBuffer> operand = operands.get<ffi::AnyBuffer>(i);
    if (!operand.has_value()) return ffi::Unexpected(operand.error());
    const ffi::DataType type = operand->element_type();
    if (type == ffi::DataType::U8) {
      const std::string_view padded(static_cast<const char*>(operand->untyped_data()), operand->element_count());
      name = padded.substr(0, padded.find('\0'));
    } else if (type == ffi::DataType::S32 && operand->element_count() > 0) {
      name += "/" + std::to_string(*static_cast<const int32_t*>(operand->untyped_data()));
    } else {
      return ffi::Unexpected(ffi::Error::InvalidArgument(
          "an operand behind the tensor is neither a name nor the number of a device; was this program made by another "
          "release of BytePS?"));
    }
  }
  return name;
}

}  // namespace byteps::jax
