#include "transport_plugins/shm/remote.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "abi/transport.h"
#include "transport_plugins/shm/process_memory.h"

namespace byteps::shm {
namespace {

// Between two looks at whether the right still stands.
constexpr size_t kBlock = size_t{1} << 20;

bool Within(const Key& key, uint64_t offset, size_t size) { return offset <= key.size && size <= key.size - offset; }

int32_t CodeOf(int error) {
  if (error == 0) return BPS_OK;
  if (Refused(error)) return BPS_UNIMPLEMENTED;
  return error == ESRCH ? BPS_UNAVAILABLE : BPS_INVALID_ARGUMENT;
}

}  // namespace

Remote::Remote(pid_t pid, UniqueFd process, std::shared_ptr<Channel> channel)
    : pid_(pid), process_(std::move(process)), channel_(std::move(channel)) {}

Remote::~Remote() {
  regions_.clear();
  pins_.clear();
  // The peer's fence may be waiting for this.
  channel_->memory().header.mapped.store(0);
}

bool Remote::Ended() const {
  if (!process_) return false;
  pollfd entry{process_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

bool Remote::Kill() {
  return process_ && pid_ != ::getpid() && ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0) == 0;
}

void Remote::AddRegion(uint64_t number, SharedMemory memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  regions_[number] = std::make_shared<SharedMemory>(std::move(memory));
}

void Remote::AddUnmapped(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unmapped_.insert(number);
}

void Remote::RemoveRegion(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unmapped_.erase(number);
  regions_.erase(number);
  const auto pin = pins_.find(number);
  if (pin != pins_.end() && pin->second.count == 0) pins_.erase(pin);
}

std::shared_ptr<SharedMemory> Remote::Find(uint64_t region) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = regions_.find(region);
  return found == regions_.end() ? nullptr : found->second;
}

LedgerEntry* Remote::Entry(const Key& key) const {
  return key.entry < kLedger ? &channel_->memory().ledger[key.entry] : nullptr;
}

int32_t Remote::Absent(const Key& key) {
  if (Revoked(key)) return BPS_NOT_FOUND;
  const std::lock_guard<std::mutex> lock(mutex_);
  return unmapped_.count(key.region) != 0 ? BPS_UNIMPLEMENTED : BPS_TRANSPORT_AGAIN;
}

bool Remote::Revoked(const Key& key) const {
  const LedgerEntry* entry = Entry(key);
  return channel_->memory().header.closed.load() != 0 || (entry != nullptr && entry->load() >> 16 != key.secret >> 16);
}

int32_t Remote::CopyFrom(const Key& key, uint64_t offset, void* to, size_t size) {
  if (!Within(key, offset, size)) return BPS_OUT_OF_RANGE;
  const std::shared_lock<std::shared_mutex> lock(copying_);
  if (stopped_) return BPS_UNAVAILABLE;
  if ((key.flags & kKeyShared) != 0) {
    const std::shared_ptr<SharedMemory> memory = Find(key.region);
    if (memory != nullptr && Within(key, offset, size) && key.size <= memory->size()) {
      std::memcpy(to, memory->base() + offset, size);
      return Revoked(key) ? BPS_NOT_FOUND : BPS_OK;
    }
  }
  if (!readable()) return BPS_UNIMPLEMENTED;
  const int error = ReadProcess(pid_, key.address + offset, to, size);
  if (Revoked(key)) return BPS_NOT_FOUND;  // what was read may be anything
  if (error == 0 && Ended()) return BPS_UNAVAILABLE;
  return CodeOf(error);
}

int32_t Remote::Enter(LedgerEntry* entry, const Key& key) {
  uint64_t word = entry->load();
  do {
    if (word >> 16 != key.secret >> 16 || channel_->memory().header.closed.load() != 0) return BPS_NOT_FOUND;
    if ((word & kLedgerUsers) == kLedgerUsers) return BPS_RESOURCE_EXHAUSTED;
  } while (!entry->compare_exchange_weak(word, word + 1));
  return BPS_OK;
}

int32_t Remote::CopyTo(const Key& key, uint64_t offset, const void* from, size_t size) {
  if (!Within(key, offset, size)) return BPS_OUT_OF_RANGE;
  LedgerEntry* entry = Entry(key);
  if (entry == nullptr) return BPS_RESOURCE_EXHAUSTED;
  const std::shared_lock<std::shared_mutex> lock(copying_);
  if (stopped_) return BPS_UNAVAILABLE;
  std::shared_ptr<SharedMemory> memory;
  if ((key.flags & kKeyShared) != 0) memory = Find(key.region);
  if (memory != nullptr && key.size > memory->size()) return BPS_INVALID_ARGUMENT;
  if (memory == nullptr && !readable()) return BPS_UNIMPLEMENTED;
  const auto* source = static_cast<const std::byte*>(from);
  for (size_t done = 0; done < size;) {
    const size_t bytes = std::min(kBlock, size - done);
    if (const int32_t code = Enter(entry, key); code != BPS_OK) return code;
    int error = 0;
    if (memory != nullptr) {
      std::memcpy(memory->base() + offset + done, source + done, bytes);
    } else if (Ended()) {
      error = ESRCH;
    } else {
      error = WriteProcess(pid_, key.address + offset + done, source + done, bytes);
    }
    entry->fetch_sub(1);
    if (error != 0) return CodeOf(error);
    done += bytes;
  }
  return BPS_OK;
}

int32_t Remote::Map(const Key& key, uint64_t offset, size_t size, void** base) {
  if (!Within(key, offset, size)) return BPS_OUT_OF_RANGE;
  if ((key.flags & kKeyShared) == 0) return BPS_UNIMPLEMENTED;
  const std::shared_ptr<SharedMemory> memory = Find(key.region);
  if (memory == nullptr) return Absent(key);
  if (key.size > memory->size()) return BPS_INVALID_ARGUMENT;
  // Said first: the peer's fence either sees it, or we see the fence. (What is only read needs no fence.)
  if ((key.flags & kKeyLent) == 0) channel_->memory().header.mapped.store(1);
  if (Revoked(key)) return BPS_NOT_FOUND;
  *base = PinRegion(key.region, memory) + offset;
  return BPS_OK;
}

int32_t Remote::BeginWrite(const Key& key, uint64_t offset, size_t size, void** base) {
  if (!Within(key, offset, size)) return BPS_OUT_OF_RANGE;
  LedgerEntry* entry = Entry(key);
  if (entry == nullptr || (key.flags & kKeyShared) == 0) return BPS_UNIMPLEMENTED;
  const std::shared_ptr<SharedMemory> memory = Find(key.region);
  if (memory == nullptr) return Absent(key);
  if (key.size > memory->size()) return BPS_INVALID_ARGUMENT;
  if (const int32_t code = Enter(entry, key); code != BPS_OK) return code;
  *base = PinRegion(key.region, memory) + offset;
  return BPS_OK;
}

void Remote::EndWrite(const Key& key) {
  Entry(key)->fetch_sub(1);
  Unpin(key.region);
}

std::byte* Remote::PinRegion(uint64_t region, const std::shared_ptr<SharedMemory>& memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Pin& pin = pins_[region];
  pin.memory = memory;
  ++pin.count;
  return memory->base();
}

void Remote::Unpin(uint64_t region) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pins_.find(region);
  if (found == pins_.end() || --found->second.count != 0) return;
  // The entry stays while the region does: the next pin allocates nothing.
  if (regions_.count(region) == 0) {
    pins_.erase(found);
  } else {
    found->second.memory.reset();
  }
}

int Remote::Fetch(uint64_t shared_region, uint64_t shared_offset, uint64_t address, void* to, size_t size) {
  if (shared_region != 0) {
    const std::shared_ptr<SharedMemory> memory = Find(shared_region);
    if (memory != nullptr) {
      if (shared_offset > memory->size() || size > memory->size() - shared_offset) return EFAULT;
      std::memcpy(to, memory->base() + shared_offset, size);
      return 0;
    }
  }
  if (!readable()) return EPERM;
  return ReadProcess(pid_, address, to, size);
}

void Remote::Stop() {
  const std::lock_guard<std::shared_mutex> lock(copying_);
  stopped_ = true;
}

}  // namespace byteps::shm
