#include "core/base/version.h"

#include "abi/byteps.h"

void bps_version(int32_t* major, int32_t* minor) noexcept {
  if (major != nullptr) *major = BPS_ABI_MAJOR;
  if (minor != nullptr) *minor = BPS_ABI_MINOR;
}

const char* bps_version_string() noexcept { return byteps::kRelease; }
