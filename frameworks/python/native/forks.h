// forks.h - whether this process is still the one that made something.
//
//     const uint64_t made_at = Forks();       // when an object is made
//     if (Forks() != made_at) ...             // a forked child looks at its parent's object
//
// Counted by pthread_atfork(3), so that to ask costs no system call. A child that was made by the bare system call is
// not noticed here; the library refuses it by itself.
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_FORKS_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_FORKS_H_

#include <cstdint>

namespace byteps::python {

// How many forks lie between the process that asked first and this one. Throws std::bad_alloc, the first time only.
uint64_t Forks();

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_FORKS_H_
