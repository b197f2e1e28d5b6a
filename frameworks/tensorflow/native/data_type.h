// data_type.h - TensorFlow's data types as those of abi/byteps.h.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_DATA_TYPE_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_DATA_TYPE_H_

#include <cstdint>

namespace byteps::tensorflow {

// BPS_FLOAT32, ... of a TF_DataType; 0 for one that the ops' definitions do not allow.
uint32_t DtypeOf(int type);

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_DATA_TYPE_H_
