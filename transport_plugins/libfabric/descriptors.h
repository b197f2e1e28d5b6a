// descriptors.h - are there file descriptors left for what comes next?
//
//     if (FreeDescriptors(4) < 4) reason = "..." + DescriptorAdvice();
//
// libfabric 1.17 answers with an error of its own where it has found no descriptor (EIO), or with none: a connection
// that comes in is then never seen. So it is asked beforehand.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DESCRIPTORS_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DESCRIPTORS_H_

#include <cstddef>
#include <string>

namespace byteps::fabric {

// How many this process may have now, counted up to `most`.
size_t FreeDescriptors(size_t most);

// "; this process may have no more descriptors (ulimit -n is 16)"
std::string DescriptorAdvice();

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_DESCRIPTORS_H_
