// fabric_library.h - libfabric.so.1, loaded when it is first needed and not with the plugin.
//
//     if (!LoadFabricLibrary(&reason)) return fail(reason);     // then call fi_getinfo and so on as usual
//
// Two reasons. A plugin that is linked with libfabric does not load where that is not installed, and then cannot say
// what is missing. And loading it is not harmless: Debian's libfabric brings the libraries of all its providers along,
// of which one (libpsm_infinipath) puts handlers on SIGINT, SIGTERM, SIGABRT, SIGSEGV, SIGBUS and SIGILL (measured).
// In a trainer's process that would take Python its KeyboardInterrupt, and they end the process. Here the handlers are
// put back, and the thread that loads takes no signal meanwhile. For those milliseconds another thread of the process
// may take one, as Python's main thread does; that library leaves its handlers out where IPATH_NO_BACKTRACE is set, as
// it is by bpslaunch and by the Python package. Here it is not set: that may not be done while other threads read
// variables.
//
// The functions of libfabric that are no inline calls through an object (fi_getinfo, fi_fabric, ...) are defined in
// fabric_library.cc, hidden, and pass their arguments on.
//
// Threads: any.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_FABRIC_LIBRARY_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_FABRIC_LIBRARY_H_

#include <string>

namespace byteps::fabric {

// Call this before anything of libfabric. False, and why, if it cannot be loaded; the answer stays the same.
bool LoadFabricLibrary(std::string* reason);

// What a code of libfabric, or its negative, says. After LoadFabricLibrary.
std::string ErrorText(int code);

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_FABRIC_LIBRARY_H_
