#include "device_plugins/fake/meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>

#include "abi/byteps.h"
#include "device_plugins/common/error.h"

namespace byteps::fake {
namespace {

using devices::Error;

constexpr uint64_t kUnits = 1024;  // that a member may have posted, and others not read

}  // namespace

struct Meeting::Shared {
  struct Unit {
    uint64_t begin;  // as the cursor
    uint64_t bytes;
  };
  struct Member {
    std::atomic<uint64_t> nonce;  // of its id, once it is here
    std::atomic<pid_t> process;
    std::atomic<uint64_t> posted;  // units
    std::atomic<uint64_t> done;    // units that it has read of all
    Unit units[kUnits];
  };
  uint64_t nonce;
  std::atomic<int32_t> failed;  // 1: a member writes the text, 2: it is there
  char text[600];
  Member members[kMaxMembers];
};

namespace {

constexpr uint64_t kHead = 1 << 20;

uint64_t Total() { return kHead + Meeting::kMaxMembers * Meeting::kRoom; }

}  // namespace

std::string Meeting::NewId() {
  static_assert(sizeof(Shared) <= kHead);
  // Open as long as the process lives: members come when they come.
  const int file = ::memfd_create("fake GPU meeting", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(Total())) != 0) {
    throw Error(BPS_RESOURCE_EXHAUSTED, std::string("a meeting of fake GPUs: ") + std::strerror(errno));
  }
  const uint64_t nonce = std::random_device()() | 1U;
  if (::pwrite(file, &nonce, sizeof nonce, 0) != sizeof nonce) throw Error(BPS_INTERNAL, std::strerror(errno));
  return std::to_string(::getpid()) + "/fd/" + std::to_string(file) + "#" + std::to_string(nonce);
}

Meeting::Meeting(const std::string& id, int rank, int size) : rank_(rank), size_(size) {
  const size_t mark = id.find('#');
  if (mark == std::string::npos || size < 1 || size > kMaxMembers || rank < 0 || rank >= size) {
    throw Error(BPS_INVALID_ARGUMENT, "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                          " cannot join: this is no id of a meeting, or no such rank");
  }
  const std::string path = "/proc/" + id.substr(0, mark);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) throw Error(BPS_UNAVAILABLE, "the member that made the meeting is gone: " + path);
  void* memory = ::mmap(nullptr, Total(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) throw Error(BPS_RESOURCE_EXHAUSTED, std::strerror(errno));
  shared_ = static_cast<Shared*>(memory);
  if (std::to_string(shared_->nonce) != id.substr(mark + 1)) {
    ::munmap(memory, Total());
    throw Error(BPS_UNAVAILABLE, "the member that made the meeting is gone: " + path + " is another one's");
  }
  shared_->members[rank_].process.store(::getpid(), std::memory_order_relaxed);
  shared_->members[rank_].nonce.store(shared_->nonce, std::memory_order_release);
}

Meeting::~Meeting() { ::munmap(shared_, Total()); }

std::byte* Meeting::Area(int member) const {
  return reinterpret_cast<std::byte*>(shared_) + kHead + static_cast<uint64_t>(member) * kRoom;
}

bool Meeting::AllHere() const {
  for (int member = 0; member < size_; ++member) {
    if (shared_->members[member].nonce.load(std::memory_order_acquire) == 0) return false;
  }
  return true;
}

bool Meeting::AmongProcesses() const {
  for (int member = 0; member < size_; ++member) {
    if (shared_->members[member].nonce.load(std::memory_order_acquire) == 0) continue;
    if (shared_->members[member].process.load(std::memory_order_relaxed) != ::getpid()) return true;
  }
  return false;
}

bool Meeting::Post(std::span<const std::byte> bytes) {
  if (bytes.size() > kRoom) {
    throw Error(BPS_RESOURCE_EXHAUSTED, "a unit of " + std::to_string(bytes.size()) + " bytes; fake GPUs take " +
                                            std::to_string(kRoom) + " at once");
  }
  uint64_t done = posted_;
  for (int member = 0; member < size_; ++member) {
    done = std::min(done, shared_->members[member].done.load(std::memory_order_acquire));
  }
  Shared::Member& own = shared_->members[rank_];
  uint64_t at = cursor_;
  // Nothing waits: the same pages again. No unit lies across the end.
  if (done == posted_ || at % kRoom + bytes.size() > kRoom) at = (at + kRoom - 1) / kRoom * kRoom;
  const uint64_t oldest = done == posted_ ? at : own.units[done % kUnits].begin;
  if (at + bytes.size() - oldest > kRoom || posted_ - done >= kUnits) return false;
  std::memcpy(Area(rank_) + at % kRoom, bytes.data(), bytes.size());
  own.units[posted_ % kUnits] = {at, bytes.size()};
  cursor_ = at + bytes.size();
  own.posted.store(++posted_, std::memory_order_release);
  return true;
}

const std::byte* Meeting::Read(uint64_t unit, int member) const {
  const Shared::Member& theirs = shared_->members[member];
  if (theirs.posted.load(std::memory_order_acquire) <= unit) return nullptr;
  return Area(member) + theirs.units[unit % kUnits].begin % kRoom;
}

void Meeting::Done(uint64_t unit) { shared_->members[rank_].done.store(unit + 1, std::memory_order_release); }

void Meeting::Fail(const std::string& text) {
  int32_t expected = 0;
  if (!shared_->failed.compare_exchange_strong(expected, 1)) return;
  const size_t size = std::min(text.size(), sizeof shared_->text - 1);
  std::memcpy(shared_->text, text.data(), size);
  shared_->text[size] = '\0';
  shared_->failed.store(2, std::memory_order_release);
}

std::string Meeting::failure() const {
  return shared_->failed.load(std::memory_order_acquire) == 2 ? shared_->text : "";
}

}  // namespace byteps::fake
