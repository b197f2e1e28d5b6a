/* headers_program.c - what callers and plugins write with the headers, in C and in C++: languages_test.sh compiles it
 * by each compiler there is, in each version of both languages, with every warning an error. */
#include "byteps.h"
#include "device.h"
#include "plugin.h"
#include "scheduler.h"
#include "transport.h"

/* In static storage C needs a constant. */
bps_open_args program_open_args = BPS_OPEN_ARGS_INIT;

uint64_t program_sizes(void);
uint64_t program_sizes(void) {
  const bps_open_args open = BPS_OPEN_ARGS_INIT;
  bps_info info = BPS_INFO_INIT;
  bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  bps_push_pull_args push_pull = BPS_PUSH_PULL_ARGS_INIT;
  bps_broadcast_args broadcast = BPS_BROADCAST_ARGS_INIT;
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  bps_buffer_args buffer = BPS_BUFFER_ARGS_INIT;
  declare = bps_declare_args_init();
  declare.dtype = BPS_FLOAT32;
  return open.struct_size + info.struct_size + declare.struct_size + push_pull.struct_size + broadcast.struct_size +
         barrier.struct_size + buffer.struct_size + bps_open_args_init().struct_size + bps_info_init().struct_size;
}

bps_status* program_open(bps_session** session);
bps_status* program_open(bps_session** session) { return bps_open(&program_open_args, session); }

int32_t bps_transport_plugin_v1(const bps_plugin_host* host, const bps_transport_plugin** plugin) {
  (void)plugin;
  return host->fail(NULL, BPS_UNIMPLEMENTED, "it only compiles");
}

int32_t bps_scheduler_plugin_v1(const bps_plugin_host* host, const bps_scheduler_plugin** plugin) {
  (void)plugin;
  return host->fail(NULL, BPS_UNIMPLEMENTED, "it only compiles");
}
