// costs.h - what this process takes of the machine: descriptors, processor time.
//
// Threads: any.
#ifndef BYTEPS_TESTS_TRANSPORT_COSTS_H_
#define BYTEPS_TESTS_TRANSPORT_COSTS_H_

#include <dirent.h>
#include <sys/resource.h>

#include <cstddef>
#include <string>

namespace byteps::testing {

// Open descriptors, the one of the count itself included.
inline size_t Descriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count - 2;
}

// Seconds of all threads, in the program and in the kernel.
inline double ProcessorTime() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

inline size_t Occurrences(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_COSTS_H_
