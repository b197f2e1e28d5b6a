#include "transport_plugins/shm/address.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "transport_plugins/shm/unique_fd.h"

namespace byteps::shm {
namespace {

uint64_t Namespace(const char* path) {
  struct stat status {};
  return ::stat(path, &status) == 0 ? static_cast<uint64_t>(status.st_ino) : 0;
}

std::string Hex(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

uint64_t RandomNumber() {
  uint64_t number = 0;
  while (number == 0) {
    if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
      throw std::runtime_error("the kernel gives no random numbers");
    }
  }
  return number;
}

Address Address::OfThisProcess() {
  Address address;
  const UniqueFd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (fd) {
    const ssize_t size = ::read(fd.get(), address.boot_id, sizeof address.boot_id - 1);
    address.boot_id[size < 0 ? 0 : size] = '\0';
    if (char* end = std::strchr(address.boot_id, '\n')) *end = '\0';
  }
  address.network_namespace = Namespace("/proc/self/ns/net");
  address.ipc_namespace = Namespace("/proc/self/ns/ipc");
  address.nonce = RandomNumber();
  for (uint64_t& part : address.name) part = RandomNumber();
  return address;
}

bool Address::Parse(const void* bytes, size_t size, Address* address, std::string* reason) {
  if (size == sizeof *address) std::memcpy(address, bytes, sizeof *address);
  if (size != sizeof *address || address->magic != kMagic || address->version != kVersion ||
      ::strnlen(address->boot_id, sizeof address->boot_id) == sizeof address->boot_id) {
    *reason = "this is no address of the shm transport, version " + std::to_string(kVersion);
    return false;
  }
  return true;
}

bool Address::CheckPlace(std::string* reason) const {
  const char* hidden = boot_id[0] == '\0'       ? "/proc/sys/kernel/random/boot_id"
                       : network_namespace == 0 ? "/proc/self/ns/net"
                       : ipc_namespace == 0     ? "/proc/self/ns/ipc"
                                                : nullptr;
  if (hidden == nullptr) return true;
  *reason = std::string("which host and namespaces this process is in cannot be read (") + hidden +
            "): a container may hide it";
  return false;
}

bool Address::CheckReach(const Address& other, std::string* reason) const {
  if (boot_id[0] == '\0' || std::strcmp(boot_id, other.boot_id) != 0) {
    *reason =
        std::string("the peer is on another host: its boot id is \"") + other.boot_id + "\", ours \"" + boot_id + "\"";
    return false;
  }
  const auto differ = [&](const char* what, uint64_t theirs, uint64_t ours) {
    *reason = std::string("the peer is in another ") + what + " namespace of this host (" + std::to_string(theirs) +
              ", ours is " + std::to_string(ours) + ")";
    return false;
  };
  if (network_namespace != other.network_namespace)
    return differ("network", other.network_namespace, network_namespace);
  if (ipc_namespace != other.ipc_namespace) return differ("IPC", other.ipc_namespace, ipc_namespace);
  if (nonce == other.nonce) {
    *reason = "the address is this endpoint's own";
    return false;
  }
  return true;
}

std::string Address::Place() const {
  return std::string(boot_id) + "/" + std::to_string(network_namespace) + "/" + std::to_string(ipc_namespace);
}

std::string Address::SocketName() const { return std::string(1, '\0') + "byteps-shm-" + Hex(name[0]) + Hex(name[1]); }

}  // namespace byteps::shm
