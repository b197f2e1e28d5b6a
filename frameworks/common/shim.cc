#include "frameworks/common/shim.h"

#include <cstdio>
#include <exception>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/library.h"

using byteps::binding::Library;
using byteps::binding::TheSession;

int bps_shim_attach(const char* library_path, void* session, char* error, size_t error_size) {
  try {
    TheSession().Attach(Library::Load(library_path), static_cast<bps_session*>(session));
    return 1;
  } catch (const std::exception& failure) {
    std::snprintf(error, error_size, "%s", failure.what());
    return 0;
  }
}

void bps_shim_detach(void* session) { TheSession().Detach(static_cast<bps_session*>(session)); }
