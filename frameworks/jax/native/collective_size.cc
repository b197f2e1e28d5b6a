#include "frameworks/jax/native/collective_size.h"

#include "abi/byteps.h"

namespace byteps::jax {

binding::Outcome CheckSize(const std::string& name, uint64_t bytes, uint64_t expected) {
  if (bytes == expected) return {};
  return {BPS_FAILED_PRECONDITION, name + ": this program expects " + std::to_string(expected) +
                                       " bytes, and the ranks together have brought " + std::to_string(bytes) +
                                       ": in compiled programs all ranks have as many rows"};
}

}  // namespace byteps::jax
