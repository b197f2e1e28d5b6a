#include "transport_plugins/libfabric/region.h"

#include <utility>

namespace byteps::fabric {

int Region::RegisterLocal() {
  return fi_mr_reg(memory_.get(), base_, size_, FI_WRITE, 0, memory_.RandomKey(), 0, Out(local_), nullptr);
}

bool Region::Contains(const void* at, size_t size) const {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(base_), where = reinterpret_cast<uintptr_t>(at);
  return where >= begin && size <= size_ && where - begin <= size_ - size;
}

int Region::GrantTo(bps_peer peer, Key* key, const uint64_t* wanted) {
  auto grant = grants_.find(peer);
  if (grant == grants_.end()) {
    FidPtr<fid_mr> registration;
    const uint64_t number = wanted != nullptr ? *wanted : memory_.RandomKey();
    const int code = fi_mr_reg(memory_.get(), base_, size_, FI_REMOTE_WRITE, 0, number, 0, Out(registration), nullptr);
    if (code != 0) return code;
    grant = grants_.emplace(peer, std::move(registration)).first;
  }
  key->key = fi_mr_key(grant->second.get());
  key->base = memory_.RemoteAddressIsVirtual() ? reinterpret_cast<uintptr_t>(base_) : 0;
  key->size = size_;
  return 0;
}

bool Region::GrantedTo(bps_peer peer, uint64_t* key) const {
  auto grant = grants_.find(peer);
  if (grant == grants_.end()) return false;
  *key = fi_mr_key(grant->second.get());
  return true;
}

}  // namespace byteps::fabric
