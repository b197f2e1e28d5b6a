#include "frameworks/tensorflow/native/attributes.h"

namespace byteps::tensorflow {

int Attributes::Type(const char* name) const {
  int type = 0;
  if (ok()) api_.TF_OpKernelConstruction_GetAttrType(construction_, name, &type, status_.get());
  return type;
}

int64_t Attributes::Number(const char* name) const {
  int64_t number = 0;
  if (ok()) api_.TF_OpKernelConstruction_GetAttrInt64(construction_, name, &number, status_.get());
  return number;
}

bool Attributes::Flag(const char* name) const {
  unsigned char flag = 0;
  if (ok()) api_.TF_OpKernelConstruction_GetAttrBool(construction_, name, &flag, status_.get());
  return flag != 0;
}

std::string Attributes::String(const char* name) const {
  int32_t list_size = 0;
  int32_t size = 0;
  if (ok()) api_.TF_OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &size, status_.get());
  if (!ok()) return {};
  std::string text(static_cast<size_t>(size), '\0');
  api_.TF_OpKernelConstruction_GetAttrString(construction_, name, text.data(), text.size(), status_.get());
  return text;
}

std::vector<int64_t> Attributes::Numbers(const char* name) const {
  int32_t list_size = 0;
  int32_t size = 0;
  if (ok()) api_.TF_OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &size, status_.get());
  if (!ok()) return {};
  std::vector<int64_t> numbers(static_cast<size_t>(list_size));
  api_.TF_OpKernelConstruction_GetAttrInt64List(construction_, name, numbers.data(), list_size, status_.get());
  return numbers;
}

}  // namespace byteps::tensorflow
