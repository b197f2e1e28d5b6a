#include "transport_plugins/shm/channel.h"

namespace byteps::shm {

std::shared_ptr<Channel> Channel::Create(std::string* reason) {
  std::optional<SharedMemory> memory = SharedMemory::Create("byteps-channel", sizeof(ChannelMemory), reason);
  return memory ? std::shared_ptr<Channel>(new Channel(*std::move(memory))) : nullptr;
}

std::shared_ptr<Channel> Channel::Adopt(UniqueFd fd, std::string* reason) {
  std::optional<SharedMemory> memory = SharedMemory::Adopt(std::move(fd), sizeof(ChannelMemory), reason);
  return memory ? std::shared_ptr<Channel>(new Channel(*std::move(memory))) : nullptr;
}

}  // namespace byteps::shm
