// error.h - what a device plugin throws inside, and its function table answers with.
//
//     throw Error(BPS_RESOURCE_EXHAUSTED, "device 0 has no 4096 bytes left");
//
// Threads: any.
#ifndef BYTEPS_DEVICE_PLUGINS_COMMON_ERROR_H_
#define BYTEPS_DEVICE_PLUGINS_COMMON_ERROR_H_

#include <cstdint>
#include <stdexcept>
#include <string>

namespace byteps::devices {

class Error : public std::runtime_error {
 public:
  // `code`: BPS_... of byteps.h, not BPS_OK.
  Error(int32_t code, const std::string& reason) : std::runtime_error(reason), code_(code) {}
  int32_t code() const { return code_; }

 private:
  int32_t code_;
};

}  // namespace byteps::devices

#endif  // BYTEPS_DEVICE_PLUGINS_COMMON_ERROR_H_
