/* shim.h - what every framework's shared object exports to the package byteps (byteps/shim.py calls it by ctypes).
 *
 * A shim is libbyteps_<framework>.so: kernels of one framework on abi/byteps.h. It is built without the framework, and
 * loads the copy of libbyteps.so that the package byteps has loaded. Link //frameworks/common:shim into it.
 */
#ifndef BYTEPS_FRAMEWORKS_COMMON_SHIM_H_
#define BYTEPS_FRAMEWORKS_COMMON_SHIM_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BPS_SHIM_API __attribute__((visibility("default")))

/* Attaches the bps_session at `session`, which the library at `library_path` has opened: operations go there from now
 * on. Returns 1; or 0, and writes what is wrong to `error` (`error_size` bytes, NUL included). */
BPS_SHIM_API int bps_shim_attach(const char* library_path, void* session, char* error, size_t error_size);

/* Detaches it, if it is the one attached. No call is inside the session when this returns; operations in flight go on,
 * later ones fail with FAILED_PRECONDITION. */
BPS_SHIM_API void bps_shim_detach(void* session);

#ifdef __cplusplus
}
#endif

#endif /* BYTEPS_FRAMEWORKS_COMMON_SHIM_H_ */
