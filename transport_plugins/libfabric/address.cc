#include "transport_plugins/libfabric/address.h"

#include <cstring>

namespace byteps::fabric {
namespace {

// In front of the provider's address.
struct Header {
  uint32_t kind;
  uint32_t size;  // of what follows
  uint64_t nonce;
};
static_assert(sizeof(Header) == 16);

}  // namespace

size_t Address::size() const { return sizeof(Header) + provided.size(); }

void WriteAddress(const Address& address, void* out, size_t* size) {
  const Header header{address.kind, static_cast<uint32_t>(address.provided.size()), address.nonce};
  std::memcpy(out, &header, sizeof header);
  std::memcpy(static_cast<char*>(out) + sizeof header, address.provided.data(), address.provided.size());
  *size = address.size();
}

std::vector<Address> ParseAddresses(Address::Kind kind, const void* data, size_t size) {
  std::vector<Address> addresses;
  const auto* at = static_cast<const char*>(data);
  while (size != 0) {
    Header header;
    if (size <= sizeof header) return {};
    std::memcpy(&header, at, sizeof header);
    if (header.kind != kind || header.size > size - sizeof header) return {};
    addresses.push_back({kind, header.nonce, std::string(at + sizeof header, header.size)});
    at += addresses.back().size();
    size -= addresses.back().size();
  }
  return addresses;
}

}  // namespace byteps::fabric
