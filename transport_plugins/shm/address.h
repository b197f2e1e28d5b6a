// address.h - where an endpoint is: which host, and the name of its socket there.
//
//     Address own = Address::OfThisProcess();
//     if (own.CheckReach(theirs, &reason)) ...     // false: on another host, or out of sight
//
// Two processes reach each other through an abstract Unix socket, which lives in a network namespace, not in a file
// system; its name is random. So they are together when boot id and network namespace are equal, and IPC namespaces
// tell apart who does not want to share memory. PID namespaces need not be equal: then payloads are copied twice.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_ADDRESS_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_ADDRESS_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace byteps::shm {

struct Address {
  static constexpr uint32_t kMagic = 0x4d485342;  // "BSHM"
  static constexpr uint32_t kVersion = 1;

  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  char boot_id[40] = {};
  uint64_t network_namespace = 0;
  uint64_t ipc_namespace = 0;
  uint64_t nonce = 0;  // random: which of the two calls, and who is meant
  uint64_t name[2] = {};

  // With a fresh random name.
  static Address OfThisProcess();
  // Reads what a peer's address() gave.
  static bool Parse(const void* bytes, size_t size, Address* address, std::string* reason);

  // Does this say where the process is? Where the kernel hides that, no process can be known to be near.
  bool CheckPlace(std::string* reason) const;
  bool CheckReach(const Address& other, std::string* reason) const;
  // Where this host and namespaces are equal, this is.
  std::string Place() const;
  // Of the abstract socket, its leading zero included.
  std::string SocketName() const;
};
static_assert(sizeof(Address) == 88);

// From the kernel.
uint64_t RandomNumber();

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_ADDRESS_H_
