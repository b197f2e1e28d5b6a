#include "frameworks/python/native/completions.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace byteps::python {

Completions::Completions() : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Completions::~Completions() { close(descriptor_); }

std::vector<uint64_t> Completions::Take() {
  eventfd_t count = 0;
  // Before the tokens: one that is noted in between makes it readable again.
  (void)eventfd_read(descriptor_, &count);
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<uint64_t> ended;
  ended.swap(ended_);
  return ended;
}

void Completions::Note(uint64_t token) noexcept {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_.push_back(token);
  }
  (void)eventfd_write(descriptor_, 1);
}

}  // namespace byteps::python
