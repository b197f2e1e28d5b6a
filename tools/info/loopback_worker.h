// loopback_worker.h - a worker of bps_info --check.
//
//     bps_info --loopback-worker /usr/lib/libbyteps.so      # its place in the job is in the environment
//
// It loads the library as a trainer in any language does, opens a session, and measures push_pull of 4 bytes and of
// kLoopbackBytes, every sum checked. Its last line is the result, or, with exit code 1, the error.
//
// Threads: one.
#ifndef BYTEPS_TOOLS_INFO_LOOPBACK_WORKER_H_
#define BYTEPS_TOOLS_INFO_LOOPBACK_WORKER_H_

#include <cstddef>
#include <string>

namespace byteps {

inline constexpr char kLoopbackWorkerOption[] = "--loopback-worker";
inline constexpr size_t kLoopbackBytes = 16'000'000;
// Microseconds of the small and of the large one; to be printed and to be read.
inline constexpr char kLoopbackResultFormat[] = "us: %lf %lf";

// The exit code.
int RunLoopbackWorker(const std::string& library);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_LOOPBACK_WORKER_H_
