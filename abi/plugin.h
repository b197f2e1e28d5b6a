/* plugin.h - what every BytePS plugin shares: the host table it is given, the descriptor it answers with.
 *
 * A plugin is a shared object `libbyteps_<kind>_<name>.so` with one exported function:
 *
 *     int32_t bps_transport_plugin_v1(const bps_plugin_host* host, const bps_transport_plugin** plugin);
 *     int32_t bps_scheduler_plugin_v1(const bps_plugin_host* host, const bps_scheduler_plugin** plugin);
 *     int32_t bps_device_plugin_v1(const bps_plugin_host* host, const bps_device_plugin** plugin);
 *
 * which stores a descriptor with static lifetime and returns BPS_OK; or, where it cannot work here, returns a code and
 * tells the reason: `return host->fail(NULL, BPS_UNAVAILABLE, "this CPU lacks AVX-512")`. `host` is
 * valid for the life of the process. The library opens plugins with RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE and never
 * unloads them. A plugin links neither the core nor a logging library: everything it needs from outside comes through
 * `host`. No exception may leave it.
 *
 * Compatibility. The number in the entry's name is the major version of the contract of that kind. Tables are
 * append-only: an entry beyond the descriptor's or table's struct_size, or NULL, is "not provided"; entries that the
 * header calls required are checked at load and named in the error.
 *
 * Codes are those of byteps.h (BPS_OK, BPS_UNAVAILABLE, ...). Functions that set something up return a code and tell
 * the reason in one sentence through `host->fail`, functions on the hot path return the code, and may tell the reason.
 */
#ifndef BYTEPS_ABI_PLUGIN_H_
#define BYTEPS_ABI_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#include "byteps.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BPS_PLUGIN_EXPORT __attribute__((visibility("default")))

/* Where a reason for a failure is written; made by the caller of the failing function. */
typedef struct bps_failure bps_failure;

/* Services of the library for a plugin. All functions may be called on any thread. */
typedef struct bps_plugin_host {
  size_t struct_size;
  /* Logs one line; `level` is one of BPS_LOG_*. `instance_log` is the log token the instance was opened with (NULL
   * before there is one). */
  void (*log)(void* instance_log, int32_t level, const char* file, int32_t line, const char* message);
  /* Writes the reason of a failure (one sentence, UTF-8, copied) and returns `code`, so that a plugin can write
   * `return host->fail(failure, BPS_UNAVAILABLE, "no device named mlx5_7")`. `failure` is the one that the failing
   * function was given; NULL in a function that is given none: the entry function, and the hot path of a transport,
   * where the reason goes with the code that the function then returns. */
  int32_t (*fail)(bps_failure* failure, int32_t code, const char* reason);
  /* The value of a configuration variable such as "BYTEPS_SPIN_US" as the session sees it, or NULL if it is not set
   * and has no default. Numbers are in digits, sizes in bytes, times in the variable's unit (or "1500ms" where that is
   * not whole), yes and no 1 and 0, words as the table of variables spells them: however the user wrote them. Valid
   * until the next call on this thread. `config` is the token the instance was opened with. */
  const char* (*config)(const void* config, const char* name);
} bps_plugin_host;

/* What a plugin says of itself; the first member of each kind's descriptor. */
typedef struct bps_plugin_info {
  size_t struct_size;      /* of this struct */
  int32_t abi_minor;       /* minor version of the kind's contract it was compiled with */
  const char* kind;        /* "transport", "scheduler" or "device" */
  const char* name;        /* equal to <name> in the file's name */
  const char* version;     /* for people */
  const char* description; /* one line, for bps_info */
} bps_plugin_info;

/* The entry functions, of which a plugin defines the one of its kind. */
typedef struct bps_transport_plugin bps_transport_plugin; /* transport.h */
typedef struct bps_scheduler_plugin bps_scheduler_plugin; /* scheduler.h */
typedef struct bps_device_plugin bps_device_plugin;       /* device.h */
BPS_PLUGIN_EXPORT int32_t bps_transport_plugin_v1(const bps_plugin_host* host, const bps_transport_plugin** plugin);
BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v1(const bps_plugin_host* host, const bps_scheduler_plugin** plugin);
BPS_PLUGIN_EXPORT int32_t bps_device_plugin_v1(const bps_plugin_host* host, const bps_device_plugin** plugin);

#ifdef __cplusplus
}
#endif

#endif /* BYTEPS_ABI_PLUGIN_H_ */
