// address.h - what an endpoint tells others of itself: its kind, a nonce, and the provider's address.
//
//     WriteAddress({Address::kConnected, nonce, endpoint.address()}, out, &size);
//     for (const Address& address : ParseAddresses(Address::kConnected, data, size)) ...
//
// A transport of several lanes has the addresses of all of them, one after the other.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_ADDRESS_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_ADDRESS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace byteps::fabric {

struct Address {
  // Of the two kinds of transport, which do not understand each other.
  enum Kind : uint32_t { kConnected = 0x31414742, kDatagram = 0x31444742 };

  Kind kind;
  uint64_t nonce;        // of this life of the process
  std::string provided;  // the address as the provider gives it

  // On the wire.
  size_t size() const;
};

// `out` has room for BPS_TRANSPORT_MAX_ADDRESS bytes.
void WriteAddress(const Address& address, void* out, size_t* size);

// All of them; none if a byte of it is no address of this kind.
std::vector<Address> ParseAddresses(Address::Kind kind, const void* data, size_t size);

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_ADDRESS_H_
