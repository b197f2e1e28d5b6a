// races.h - finds accesses to the same bytes that nothing orders, at least one of which writes.
//
//     races.OnAccess({address, size, write, actor, "copy_to_host"}, clock);
//     races.reports();      // "copy_to_host of stream 2 reads 4096 bytes at 0x..., which fill of stream 1 writes: ..."
//
// Whether a race is found depends on what orders the accesses, and not on the order in which they happened to run.
//
// Threads: one at a time.
#ifndef BYTEPS_DEVICE_PLUGINS_FAKE_RACES_H_
#define BYTEPS_DEVICE_PLUGINS_FAKE_RACES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device_plugins/fake/clock.h"

namespace byteps::fake {

struct Access {
  uintptr_t begin = 0, end = 0;
  bool write = false;
  size_t actor = 0;       // 0: the host
  const char* verb = "";  // static storage
  uint64_t time = 0;      // of the actor; filled in
};

class Races {
 public:
  // `clock`: of the actor, ticked for this access.
  void OnAccess(Access access, const Clock& clock);
  // The memory is given back: what comes next at these addresses is something else.
  void Forget(uintptr_t begin, uintptr_t end);
  void Report(std::string text) { reports_.push_back(std::move(text)); }
  const std::vector<std::string>& reports() const { return reports_; }

 private:
  std::vector<Access> accesses_;  // those that a later access may still race with
  std::vector<std::string> reports_;
};

}  // namespace byteps::fake

#endif  // BYTEPS_DEVICE_PLUGINS_FAKE_RACES_H_
