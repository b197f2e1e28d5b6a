// reserved_files.h - file descriptors that are kept for what must not fail for want of them.
//
//     ReservedFiles reserved;       // before something that may take all there are
//     ...
//     reserved.Release();           // from here on they can be had again
//
// Ownership: owns the descriptors until Release. Where there are none left to reserve, it has fewer, or none.
#ifndef BYTEPS_CORE_BASE_RESERVED_FILES_H_
#define BYTEPS_CORE_BASE_RESERVED_FILES_H_

#include <fcntl.h>

#include <array>

#include "core/base/unique_fd.h"

namespace byteps {

class ReservedFiles {
 public:
  ReservedFiles() {
    for (UniqueFd& file : files_) file.Reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }

  void Release() {
    for (UniqueFd& file : files_) file.Reset();
  }

 private:
  // A connection to the coordinator needs a socket, and before it what a name is looked up with.
  std::array<UniqueFd, 4> files_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_RESERVED_FILES_H_
