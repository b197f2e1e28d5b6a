#include "device_plugins/fake/races.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace byteps::fake {
namespace {

std::string Who(const Access& access) {
  return std::string(access.verb) + (access.actor == 0 ? " of the host" : " of stream " + std::to_string(access.actor));
}

std::string Describe(const Access& later, const Access& earlier) {
  char where[96];
  std::snprintf(where, sizeof where, "%zu bytes at 0x%zx", static_cast<size_t>(later.end - later.begin),
                static_cast<size_t>(later.begin));
  return Who(later) + (later.write ? " writes " : " reads ") + where + ", which " + Who(earlier) +
         (earlier.write ? " writes" : " reads") + ": no event orders the two";
}

}  // namespace

void Races::OnAccess(Access access, const Clock& clock) {
  if (access.begin == access.end) return;
  access.time = clock.At(access.actor);
  // What is ordered before this one and lies within it cannot race with anything that this one does not race with: of a
  // write always, of a read if that was a read of the same actor.
  const auto superseded = [&](const Access& earlier) {
    if (earlier.end <= access.begin || access.end <= earlier.begin) return false;
    const bool ordered = clock.At(earlier.actor) >= earlier.time;
    if (!ordered && (access.write || earlier.write)) {
      reports_.push_back(Describe(access, earlier));
      return true;  // once is enough
    }
    const bool within = access.begin <= earlier.begin && earlier.end <= access.end;
    return ordered && within && (access.write || (!earlier.write && earlier.actor == access.actor));
  };
  accesses_.erase(std::remove_if(accesses_.begin(), accesses_.end(), superseded), accesses_.end());
  accesses_.push_back(access);
}

void Races::Forget(uintptr_t begin, uintptr_t end) {
  const auto within = [&](const Access& access) { return begin <= access.begin && access.end <= end; };
  accesses_.erase(std::remove_if(accesses_.begin(), accesses_.end(), within), accesses_.end());
}

}  // namespace byteps::fake
