// attributes.h - the attributes of a node, as its kernel reads them.
//
//     const Attributes attributes(api, construction);
//     name_ = attributes.String("tensor_name");
//     if (!attributes.ok()) return;  // TensorFlow has heard of it
//
// What an attribute that cannot be read returns has no meaning.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ATTRIBUTES_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ATTRIBUTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/tensorflow/native/c_api.h"

namespace byteps::tensorflow {

class Attributes {
 public:
  Attributes(const CApi& api, TF_OpKernelConstruction* construction)
      : api_(api), construction_(construction), status_(api) {}
  // Tells TensorFlow what was wrong.
  ~Attributes() {
    if (!ok()) api_.TF_OpKernelConstruction_Failure(construction_, status_.get());
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  bool ok() const { return status_.ok(); }

  int Type(const char* name) const;  // a TF_DataType
  int64_t Number(const char* name) const;
  bool Flag(const char* name) const;
  std::string String(const char* name) const;
  std::vector<int64_t> Numbers(const char* name) const;

 private:
  const CApi& api_;
  TF_OpKernelConstruction* const construction_;
  const ScopedStatus status_;
};

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_ATTRIBUTES_H_
