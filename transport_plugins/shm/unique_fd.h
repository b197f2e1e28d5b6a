// unique_fd.h - the owner of a descriptor (transport_plugins/common/unique_fd.h) under a name of this plugin.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_UNIQUE_FD_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_UNIQUE_FD_H_

#include "transport_plugins/common/unique_fd.h"

namespace byteps::shm {

using transports::UniqueFd;

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_UNIQUE_FD_H_
