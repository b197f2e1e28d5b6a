// exit_status.h - the exit status of a program that ended by itself, but not well.
//
//     ChangeExitStatus();   // in a function of atexit: what goes wrong there does not change Python's status
//
// Threads: one at a time.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_EXIT_STATUS_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_EXIT_STATUS_H_

namespace byteps::python {

// From now on exit(0) of this process ends it with 1. Any other status stays, and so does that of a child that is
// forked after this, of _exit, and of a signal. The C library's functions at exit run, and its files are flushed, as
// ever.
// Throws std::bad_alloc.
void ChangeExitStatus();

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_EXIT_STATUS_H_
