// access_recorder.h - which addresses of some pages this thread reads: every single instruction, none by chance.
//
//     AccessRecorder recorder(begin, bytes);            // whole pages
//     recorder.Record([&] { ... });                     // what runs in here is watched
//     for (const void* address : recorder.reads()) ...  // in order, as the instructions named them
//
// The pages are taken away while something is recorded. Each access faults; the handler notes it, gives the pages back
// for one instruction (the trap flag of x86-64), and takes them away again. System calls that are given such memory
// fail meanwhile.
//
// Threads: one at a time in a process.
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_ACCESS_RECORDER_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_ACCESS_RECORDER_H_

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace byteps::testing {

class AccessRecorder {
 public:
  struct Pages {
    std::byte* begin;
    size_t bytes;
  };
  explicit AccessRecorder(std::vector<Pages> pages) : pages_(std::move(pages)) {}

  // Is there a way to do it on this machine?
  static bool Possible();

  void Record(const std::function<void()>& body);
  const std::vector<const std::byte*>& reads() const { return reads_; }

 private:
  const std::vector<Pages> pages_;
  std::vector<const std::byte*> reads_;
};

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_ACCESS_RECORDER_H_
