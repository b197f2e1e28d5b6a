// completions.h - operations that have ended, told through a file descriptor: what an event loop can wait for.
//
//     completions = _native.Completions()
//     loop.add_reader(completions.fileno(), lambda: completions.take())      # the tokens of what has ended
//     session.push_pull(..., completions=completions, token=7)
//
// The library's thread notes the token and makes the descriptor readable; it never touches Python. A token comes once,
// whether its operation has succeeded or failed; the request knows which.
//
// Threads: Note() by any, the rest as Python's own objects. It lives as long as an operation that will note something.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_COMPLETIONS_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_COMPLETIONS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace byteps::python {

class Completions {
 public:
  // Throws std::system_error where there is no descriptor left.
  Completions();
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  int descriptor() const { return descriptor_; }

  // The tokens noted since the last call. The descriptor is not readable afterwards.
  std::vector<uint64_t> Take();

  void Note(uint64_t token) noexcept;

 private:
  const int descriptor_;
  std::mutex mutex_;
  std::vector<uint64_t> ended_;
};

// Whom to tell about the end of an operation; no caller if `completions` is null.
struct Notice {
  std::shared_ptr<Completions> completions;
  uint64_t token = 0;
};

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_COMPLETIONS_H_
