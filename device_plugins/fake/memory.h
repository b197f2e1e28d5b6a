// memory.h - memory that poses as a GPU's: the program sees addresses that it cannot touch.
//
//     void* base = memory.Allocate(0, 4096);       // of device 0; a touch is SIGSEGV, in a system call EFAULT
//     std::byte* inside = memory.At(base, 4096);   // where the fake itself reads and writes it
//
// A memory file is mapped twice: without any rights at the address that is given out, and for reading and writing at
// another one. Every byte is 0xFF at first, so that a float that was never written is NaN. Pinned host memory is one
// mapping.
//
// Threads: one at a time. Errors: throws Error.
#ifndef BYTEPS_DEVICE_PLUGINS_FAKE_MEMORY_H_
#define BYTEPS_DEVICE_PLUGINS_FAKE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>

namespace byteps::fake {

class Memory {
 public:
  enum class Kind { kDevice, kPinned, kRegistered };
  struct Range {
    Kind kind;
    int device;  // kDevice: of which
    std::byte* base;
    uint64_t size;          // as asked for
    std::byte* inside;      // where it can be touched
    uint64_t mapped = 0;    // bytes of the mappings; 0: not ours
    uint64_t identity = 0;  // kDevice: a number that no other one has had
    int file = -1;          // kDevice: that it was exported as
  };

  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  void* Allocate(int device, uint64_t size);
  void* AllocateHost(uint64_t size);
  void Register(void* base, uint64_t size);
  // Ends what Allocate, AllocateHost or Register began at `base`. INVALID_ARGUMENT: nothing of this kind begins there.
  void Release(void* base, Kind kind);

  // The range that holds all of [address, address + size); nullptr: none does.
  const Range* Find(const void* address, uint64_t size) const;
  // Where these bytes can be touched; nullptr: they are in no range.
  std::byte* At(const void* address, uint64_t size) const;
  // A descriptor of a file that the device memory beginning at `base` is from now on; the caller closes it.
  int Export(void* base);
  // Bytes of `device` that are given out.
  uint64_t used(int device) const;

 private:
  std::map<uintptr_t, Range> ranges_;  // by base
  uint64_t identities_ = 0;            // that were given out
};

}  // namespace byteps::fake

#endif  // BYTEPS_DEVICE_PLUGINS_FAKE_MEMORY_H_
