// open_files.h - what an error says behind "Too many open files".
//
//     "no socket: " + std::string(std::strerror(errno)) + OpenFilesAdvice(errno)
#ifndef BYTEPS_CORE_BASE_OPEN_FILES_H_
#define BYTEPS_CORE_BASE_OPEN_FILES_H_

#include <string>

namespace byteps {

// " (this process may have 16 open files: raise ulimit -n)"; "" of any other error than EMFILE and ENFILE.
std::string OpenFilesAdvice(int error);

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_OPEN_FILES_H_
