/* types.c - every struct and table that crosses the ABI, as arguments of functions: what abidiff_test.sh compares
 * between the headers of an earlier version and today's. */
#include "byteps.h"
#include "scheduler.h"
#include "transport.h"
#if BPS_ABI_MINOR >= 3
#include "device.h"
#endif

#define SHOW(type)               \
  void show_##type(type* value); \
  void show_##type(type* value) { (void)value; }

SHOW(bps_ext)
SHOW(bps_open_args)
SHOW(bps_info)
SHOW(bps_declare_args)
SHOW(bps_push_pull_args)
SHOW(bps_broadcast_args)
SHOW(bps_barrier_args)
SHOW(bps_plugin_host)
SHOW(bps_plugin_info)
SHOW(bps_transport_caps)
SHOW(bps_transport_open_args)
SHOW(bps_connect_args)
SHOW(bps_event)
SHOW(bps_local)
SHOW(bps_remote)
SHOW(bps_transport_table)
SHOW(bps_transport_plugin)
SHOW(bps_task)
SHOW(bps_budget)
SHOW(bps_scheduler_stats)
SHOW(bps_scheduler_create_args)
SHOW(bps_scheduler_table)
SHOW(bps_scheduler_plugin)
#if BPS_ABI_MINOR >= 1
SHOW(bps_buffer_args)
#endif
#if BPS_ABI_MINOR >= 3
SHOW(bps_device_open_args)
SHOW(bps_device_versions)
SHOW(bps_device_facts)
SHOW(bps_device_pointer)
SHOW(bps_device_stream_state)
SHOW(bps_device_table)
SHOW(bps_device_plugin)
#endif

/* The functions of 1.0. */
typedef struct functions {
  bps_status* (*open)(int32_t, int32_t, const bps_open_args*, bps_session**);
  bps_done_fn done;
  bps_log_fn log;
  bps_transport_plugin_fn transport;
  bps_scheduler_plugin_fn scheduler;
} functions;
SHOW(functions)
