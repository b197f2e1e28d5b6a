// layout_test.c - the layout of every struct of version 1.0, on every 64-bit platform.
//
// A line here never changes once its version is released. To append a field: add its line, and raise the SIZE of the
// struct; the old size moves to core/worker/api/read_args.h's table as it is there (first_size never changes).

#include <stddef.h>

#include "abi/byteps.h"
#include "abi/device.h"
#include "abi/plugin.h"
#include "abi/scheduler.h"
#include "abi/transport.h"

#define FIELD(type, field, offset)                  \
  _Static_assert(offsetof(type, field) == (offset), \
                 #type "." #field " has moved: released fields never move; append new ones")
#define SIZE(type, size)                 \
  _Static_assert(sizeof(type) == (size), \
                 #type " has another size: if you appended a field, pin it and the new size here")

FIELD(bps_ext, struct_size, 0);
FIELD(bps_ext, type, 8);
FIELD(bps_ext, flags, 12);
FIELD(bps_ext, next, 16);
SIZE(bps_ext, 24);

FIELD(bps_open_args, struct_size, 0);
FIELD(bps_open_args, ext, 8);
FIELD(bps_open_args, coordinator, 16);
FIELD(bps_open_args, job, 24);
FIELD(bps_open_args, name, 32);
FIELD(bps_open_args, token, 40);
FIELD(bps_open_args, host, 48);
FIELD(bps_open_args, transport, 56);
FIELD(bps_open_args, scheduler, 64);
FIELD(bps_open_args, has_place, 72);
FIELD(bps_open_args, host_index, 76);
FIELD(bps_open_args, num_hosts, 80);
FIELD(bps_open_args, local_rank, 84);
FIELD(bps_open_args, local_size, 88);
FIELD(bps_open_args, num_servers, 92);
FIELD(bps_open_args, log_level, 96);
FIELD(bps_open_args, timeout_ms, 104);
FIELD(bps_open_args, log, 112);
FIELD(bps_open_args, log_user, 120);
SIZE(bps_open_args, 128);

FIELD(bps_info, struct_size, 0);
FIELD(bps_info, rank, 8);
FIELD(bps_info, size, 12);
FIELD(bps_info, local_rank, 16);
FIELD(bps_info, local_size, 20);
FIELD(bps_info, num_servers, 24);
FIELD(bps_info, failed, 28);
FIELD(bps_info, epoch, 32);
FIELD(bps_info, generation, 40);
FIELD(bps_info, shared_buffers, 48);
FIELD(bps_info, reserved, 52);
SIZE(bps_info, 56);

FIELD(bps_declare_args, struct_size, 0);
FIELD(bps_declare_args, ext, 8);
FIELD(bps_declare_args, name, 16);
FIELD(bps_declare_args, shape, 24);
FIELD(bps_declare_args, ndim, 32);
FIELD(bps_declare_args, dtype, 36);
FIELD(bps_declare_args, mode, 40);
FIELD(bps_declare_args, staleness, 44);
SIZE(bps_declare_args, 48);

FIELD(bps_push_pull_args, struct_size, 0);
FIELD(bps_push_pull_args, ext, 8);
FIELD(bps_push_pull_args, tensor, 16);
FIELD(bps_push_pull_args, input, 24);
FIELD(bps_push_pull_args, output, 32);
FIELD(bps_push_pull_args, priority, 40);
FIELD(bps_push_pull_args, op, 48);
FIELD(bps_push_pull_args, input_device, 52);
FIELD(bps_push_pull_args, input_device_id, 56);
FIELD(bps_push_pull_args, output_device, 60);
FIELD(bps_push_pull_args, output_device_id, 64);
FIELD(bps_push_pull_args, reserved, 68);
FIELD(bps_push_pull_args, timeout_ms, 72);
FIELD(bps_push_pull_args, done, 80);
FIELD(bps_push_pull_args, user, 88);
FIELD(bps_push_pull_args, done_in_call, 96);
FIELD(bps_push_pull_args, reserved2, 100);
SIZE(bps_push_pull_args, 104);

FIELD(bps_broadcast_args, struct_size, 0);
FIELD(bps_broadcast_args, ext, 8);
FIELD(bps_broadcast_args, tensor, 16);
FIELD(bps_broadcast_args, input, 24);
FIELD(bps_broadcast_args, output, 32);
FIELD(bps_broadcast_args, priority, 40);
FIELD(bps_broadcast_args, root, 48);
FIELD(bps_broadcast_args, input_device, 52);
FIELD(bps_broadcast_args, input_device_id, 56);
FIELD(bps_broadcast_args, output_device, 60);
FIELD(bps_broadcast_args, output_device_id, 64);
FIELD(bps_broadcast_args, reserved, 68);
FIELD(bps_broadcast_args, timeout_ms, 72);
FIELD(bps_broadcast_args, done, 80);
FIELD(bps_broadcast_args, user, 88);
FIELD(bps_broadcast_args, done_in_call, 96);
FIELD(bps_broadcast_args, reserved2, 100);
SIZE(bps_broadcast_args, 104);

FIELD(bps_barrier_args, struct_size, 0);
FIELD(bps_barrier_args, ext, 8);
FIELD(bps_barrier_args, name, 16);
FIELD(bps_barrier_args, timeout_ms, 24);
SIZE(bps_barrier_args, 32);

/* Version 1.1. */
FIELD(bps_buffer_args, struct_size, 0);
FIELD(bps_buffer_args, ext, 8);
FIELD(bps_buffer_args, size, 16);
FIELD(bps_buffer_args, device, 24);
FIELD(bps_buffer_args, device_id, 28);
SIZE(bps_buffer_args, 32);

/* Since 1.2. */
FIELD(bps_result, struct_size, 0);
FIELD(bps_result, data, 8);
FIELD(bps_result, bytes, 16);
FIELD(bps_result, shape, 24);
FIELD(bps_result, splits, 32);
FIELD(bps_result, ndim, 40);
FIELD(bps_result, num_splits, 44);
SIZE(bps_result, 48);

FIELD(bps_process_set_args, struct_size, 0);
FIELD(bps_process_set_args, ext, 8);
FIELD(bps_process_set_args, name, 16);
FIELD(bps_process_set_args, ranks, 24);
FIELD(bps_process_set_args, num_ranks, 32);
FIELD(bps_process_set_args, reserved, 36);
SIZE(bps_process_set_args, 40);

FIELD(bps_collective_args, struct_size, 0);
FIELD(bps_collective_args, ext, 8);
FIELD(bps_collective_args, name, 16);
FIELD(bps_collective_args, set, 24);
FIELD(bps_collective_args, input, 32);
FIELD(bps_collective_args, output, 40);
FIELD(bps_collective_args, output_bytes, 48);
FIELD(bps_collective_args, shape, 56);
FIELD(bps_collective_args, splits, 64);
FIELD(bps_collective_args, tag, 72);
FIELD(bps_collective_args, priority, 80);
FIELD(bps_collective_args, timeout_ms, 88);
FIELD(bps_collective_args, prescale, 96);
FIELD(bps_collective_args, postscale, 104);
FIELD(bps_collective_args, done, 112);
FIELD(bps_collective_args, user, 120);
FIELD(bps_collective_args, kind, 128);
FIELD(bps_collective_args, ndim, 132);
FIELD(bps_collective_args, dtype, 136);
FIELD(bps_collective_args, op, 140);
FIELD(bps_collective_args, num_splits, 144);
FIELD(bps_collective_args, root, 148);
FIELD(bps_collective_args, peer, 152);
FIELD(bps_collective_args, scaled, 156);
FIELD(bps_collective_args, input_device, 160);
FIELD(bps_collective_args, input_device_id, 164);
FIELD(bps_collective_args, output_device, 168);
FIELD(bps_collective_args, output_device_id, 172);
SIZE(bps_collective_args, 176);

FIELD(bps_group_args, struct_size, 0);
FIELD(bps_group_args, ext, 8);
FIELD(bps_group_args, operations, 16);
FIELD(bps_group_args, num_operations, 24);
FIELD(bps_group_args, reserved, 28);
FIELD(bps_group_args, done, 32);
FIELD(bps_group_args, user, 40);
SIZE(bps_group_args, 48);

FIELD(bps_join_args, struct_size, 0);
FIELD(bps_join_args, ext, 8);
FIELD(bps_join_args, last_rank, 16);
FIELD(bps_join_args, timeout_ms, 24);
FIELD(bps_join_args, done, 32);
FIELD(bps_join_args, user, 40);
SIZE(bps_join_args, 48);

FIELD(bps_sparse_args, struct_size, 0);
FIELD(bps_sparse_args, ext, 8);
FIELD(bps_sparse_args, name, 16);
FIELD(bps_sparse_args, set, 24);
FIELD(bps_sparse_args, indices, 32);
FIELD(bps_sparse_args, values, 40);
FIELD(bps_sparse_args, num_rows, 48);
FIELD(bps_sparse_args, shape, 56);
FIELD(bps_sparse_args, priority, 64);
FIELD(bps_sparse_args, timeout_ms, 72);
FIELD(bps_sparse_args, done, 80);
FIELD(bps_sparse_args, user, 88);
FIELD(bps_sparse_args, ndim, 96);
FIELD(bps_sparse_args, dtype, 100);
FIELD(bps_sparse_args, op, 104);
FIELD(bps_sparse_args, reserved, 108);
SIZE(bps_sparse_args, 112);

FIELD(bps_plugin_host, struct_size, 0);
FIELD(bps_plugin_host, log, 8);
FIELD(bps_plugin_host, fail, 16);
FIELD(bps_plugin_host, config, 24);
SIZE(bps_plugin_host, 32);

FIELD(bps_plugin_info, struct_size, 0);
FIELD(bps_plugin_info, abi_minor, 8);
FIELD(bps_plugin_info, kind, 16);
FIELD(bps_plugin_info, name, 24);
FIELD(bps_plugin_info, version, 32);
FIELD(bps_plugin_info, description, 40);
SIZE(bps_plugin_info, 48);

FIELD(bps_transport_caps, struct_size, 0);
FIELD(bps_transport_caps, flags, 8);
FIELD(bps_transport_caps, immediate_bits, 12);
FIELD(bps_transport_caps, max_message, 16);
FIELD(bps_transport_caps, receive_pool, 20);
FIELD(bps_transport_caps, tx_depth, 24);
FIELD(bps_transport_caps, key_size, 28);
FIELD(bps_transport_caps, max_transfer, 32);
FIELD(bps_transport_caps, alignment, 40);
FIELD(bps_transport_caps, reserved, 44);
FIELD(bps_transport_caps, provider, 48);
SIZE(bps_transport_caps, 56);

FIELD(bps_transport_open_args, struct_size, 0);
FIELD(bps_transport_open_args, config, 8);
FIELD(bps_transport_open_args, log, 16);
FIELD(bps_transport_open_args, local_host, 24);
FIELD(bps_transport_open_args, device, 32);
FIELD(bps_transport_open_args, job_key, 40);
SIZE(bps_transport_open_args, 48);

FIELD(bps_connect_args, struct_size, 0);
FIELD(bps_connect_args, peer, 8);
FIELD(bps_connect_args, local_id, 12);
FIELD(bps_connect_args, address, 16);
FIELD(bps_connect_args, address_size, 24);
FIELD(bps_connect_args, name, 32);
SIZE(bps_connect_args, 40);

FIELD(bps_event, type, 0);
FIELD(bps_event, code, 4);
FIELD(bps_event, peer, 8);
FIELD(bps_event, immediate, 12);
FIELD(bps_event, user, 16);
FIELD(bps_event, data, 24);
FIELD(bps_event, size, 32);
FIELD(bps_event, lease, 40);
SIZE(bps_event, 48);

FIELD(bps_local, region, 0);
FIELD(bps_local, base, 8);
SIZE(bps_local, 16);

FIELD(bps_remote, key, 0);
FIELD(bps_remote, key_size, 8);
FIELD(bps_remote, offset, 16);
SIZE(bps_remote, 24);

FIELD(bps_device_memory, struct_size, 0);
FIELD(bps_device_memory, base, 8);
FIELD(bps_device_memory, size, 16);
FIELD(bps_device_memory, type, 24);
FIELD(bps_device_memory, id, 28);
FIELD(bps_device_memory, dmabuf, 32);
FIELD(bps_device_memory, reserved, 36);
SIZE(bps_device_memory, 40);
FIELD(bps_transport_table, struct_size, 0);
FIELD(bps_transport_table, open, 8);
FIELD(bps_transport_table, close, 16);
FIELD(bps_transport_table, caps, 24);
FIELD(bps_transport_table, address, 32);
FIELD(bps_transport_table, connect, 40);
FIELD(bps_transport_table, disconnect, 48);
FIELD(bps_transport_table, reg, 56);
FIELD(bps_transport_table, unreg, 64);
FIELD(bps_transport_table, export_key, 72);
FIELD(bps_transport_table, post_send, 80);
FIELD(bps_transport_table, post_write, 88);
FIELD(bps_transport_table, poll, 96);
FIELD(bps_transport_table, release, 104);
FIELD(bps_transport_table, post_read, 112);
FIELD(bps_transport_table, map_remote, 120);
FIELD(bps_transport_table, copy_from, 128);
FIELD(bps_transport_table, copy_to, 136);
FIELD(bps_transport_table, wait_fd, 144);
FIELD(bps_transport_table, arm, 152);
FIELD(bps_transport_table, allocate, 160);
FIELD(bps_transport_table, reg_shared, 168);
FIELD(bps_transport_table, unmap_remote, 176);
FIELD(bps_transport_table, begin_write, 184);
FIELD(bps_transport_table, end_write, 192);
FIELD(bps_transport_table, post_send_and_write, 200);
FIELD(bps_transport_table, reg_device, 208);
SIZE(bps_transport_table, 216);

FIELD(bps_transport_plugin, struct_size, 0);
FIELD(bps_transport_plugin, info, 8);
FIELD(bps_transport_plugin, probe, 56);
FIELD(bps_transport_plugin, table, 64);
SIZE(bps_transport_plugin, 72);

FIELD(bps_task, struct_size, 0);
FIELD(bps_task, id, 8);
FIELD(bps_task, tensor, 16);
FIELD(bps_task, bytes, 24);
FIELD(bps_task, priority, 32);
FIELD(bps_task, order, 40);
FIELD(bps_task, earliest, 48);
FIELD(bps_task, part, 56);
FIELD(bps_task, peer, 60);
FIELD(bps_task, contributors, 64);
FIELD(bps_task, round, 68);
SIZE(bps_task, 72);

FIELD(bps_budget, peer, 0);
FIELD(bps_budget, tasks, 4);
FIELD(bps_budget, bytes, 8);
SIZE(bps_budget, 16);

FIELD(bps_scheduler_stats, struct_size, 0);
FIELD(bps_scheduler_stats, queued_tasks, 8);
FIELD(bps_scheduler_stats, queued_bytes, 16);
FIELD(bps_scheduler_stats, in_flight_tasks, 24);
FIELD(bps_scheduler_stats, in_flight_bytes, 32);
FIELD(bps_scheduler_stats, credit_bytes, 40);
SIZE(bps_scheduler_stats, 48);

FIELD(bps_scheduler_create_args, struct_size, 0);
FIELD(bps_scheduler_create_args, config, 8);
FIELD(bps_scheduler_create_args, log, 16);
FIELD(bps_scheduler_create_args, direction, 24);
FIELD(bps_scheduler_create_args, reserved, 28);
SIZE(bps_scheduler_create_args, 32);

FIELD(bps_scheduler_table, struct_size, 0);
FIELD(bps_scheduler_table, create, 8);
FIELD(bps_scheduler_table, destroy, 16);
FIELD(bps_scheduler_table, enqueue, 24);
FIELD(bps_scheduler_table, next, 32);
FIELD(bps_scheduler_table, sent, 40);
FIELD(bps_scheduler_table, complete, 48);
FIELD(bps_scheduler_table, withdraw, 56);
FIELD(bps_scheduler_table, peers, 64);
FIELD(bps_scheduler_table, stats, 72);
FIELD(bps_scheduler_table, wake_at, 80);
/* Version 1.1. */
FIELD(bps_scheduler_table, rate, 88);
FIELD(bps_scheduler_table, agreed, 96);
SIZE(bps_scheduler_table, 104);

FIELD(bps_scheduler_plugin, struct_size, 0);
FIELD(bps_scheduler_plugin, info, 8);
FIELD(bps_scheduler_plugin, table, 56);
SIZE(bps_scheduler_plugin, 64);

/* Since 1.3. */
FIELD(bps_streams, ext, 0);
FIELD(bps_streams, input, 24);
FIELD(bps_streams, output, 32);
FIELD(bps_streams, output_later, 40);
FIELD(bps_streams, reserved, 44);
SIZE(bps_streams, 48);
FIELD(bps_cast, ext, 0);
FIELD(bps_cast, dtype, 24);
FIELD(bps_cast, reserved, 28);
SIZE(bps_cast, 32);
FIELD(bps_give_up, ext, 0);
FIELD(bps_give_up, reason, 24);
SIZE(bps_give_up, 32);
FIELD(bps_match, ext, 0);
FIELD(bps_match, number, 24);
SIZE(bps_match, 32);

/* device.h 1.0. */
FIELD(bps_device_open_args, struct_size, 0);
FIELD(bps_device_open_args, config, 8);
FIELD(bps_device_open_args, log, 16);
FIELD(bps_device_open_args, index, 24);
FIELD(bps_device_open_args, reserved, 28);
SIZE(bps_device_open_args, 32);

FIELD(bps_device_versions, struct_size, 0);
FIELD(bps_device_versions, driver, 8);
FIELD(bps_device_versions, collectives, 16);
FIELD(bps_device_versions, why_not, 24);
SIZE(bps_device_versions, 32);

FIELD(bps_device_facts, struct_size, 0);
FIELD(bps_device_facts, name, 8);
FIELD(bps_device_facts, pci, 16);
FIELD(bps_device_facts, memory, 24);
FIELD(bps_device_facts, major, 32);
FIELD(bps_device_facts, minor, 36);
SIZE(bps_device_facts, 40);

FIELD(bps_device_pointer, struct_size, 0);
FIELD(bps_device_pointer, type, 8);
FIELD(bps_device_pointer, id, 12);
FIELD(bps_device_pointer, base, 16);
FIELD(bps_device_pointer, size, 24);
FIELD(bps_device_pointer, identity, 32);
SIZE(bps_device_pointer, 40);

FIELD(bps_device_stream_state, struct_size, 0);
FIELD(bps_device_stream_state, id, 8);
FIELD(bps_device_stream_state, capturing, 12);
SIZE(bps_device_stream_state, 16);

FIELD(bps_device_table, struct_size, 0);
FIELD(bps_device_table, open, 8);
FIELD(bps_device_table, close, 16);
FIELD(bps_device_table, allocate, 24);
FIELD(bps_device_table, release, 32);
FIELD(bps_device_table, allocate_host, 40);
FIELD(bps_device_table, release_host, 48);
FIELD(bps_device_table, register_host, 56);
FIELD(bps_device_table, unregister_host, 64);
FIELD(bps_device_table, pointer, 72);
FIELD(bps_device_table, stream_create, 80);
FIELD(bps_device_table, stream_destroy, 88);
FIELD(bps_device_table, stream_state, 96);
FIELD(bps_device_table, stream_wait, 104);
FIELD(bps_device_table, event_create, 112);
FIELD(bps_device_table, event_destroy, 120);
FIELD(bps_device_table, event_record, 128);
FIELD(bps_device_table, event_query, 136);
FIELD(bps_device_table, copy_to_host, 144);
FIELD(bps_device_table, copy_to_device, 152);
FIELD(bps_device_table, copy_within, 160);
FIELD(bps_device_table, fill, 168);
FIELD(bps_device_table, synchronize, 176);
FIELD(bps_device_table, fold, 184);
FIELD(bps_device_table, flush_remote, 192);
FIELD(bps_device_table, dmabuf, 200);
FIELD(bps_device_table, convert, 208);
SIZE(bps_device_table, 216);

FIELD(bps_device_plugin, struct_size, 0);
FIELD(bps_device_plugin, info, 8);
FIELD(bps_device_plugin, probe, 56);
FIELD(bps_device_plugin, count, 64);
FIELD(bps_device_plugin, facts, 72);
FIELD(bps_device_plugin, versions, 80);
FIELD(bps_device_plugin, table, 88);
FIELD(bps_device_plugin, collectives, 96);
SIZE(bps_device_plugin, 104);

/* device.h 1.1. */
FIELD(bps_device_join_args, struct_size, 0);
FIELD(bps_device_join_args, id, 8);
FIELD(bps_device_join_args, rank, 16);
FIELD(bps_device_join_args, size, 20);
FIELD(bps_device_join_args, max_blocks, 24);
FIELD(bps_device_join_args, reserved, 28);
SIZE(bps_device_join_args, 32);

FIELD(bps_device_collectives, struct_size, 0);
FIELD(bps_device_collectives, unique_id, 8);
FIELD(bps_device_collectives, join, 16);
FIELD(bps_device_collectives, state, 24);
FIELD(bps_device_collectives, leave, 32);
FIELD(bps_device_collectives, abort, 40);
FIELD(bps_device_collectives, begin, 48);
FIELD(bps_device_collectives, end, 56);
FIELD(bps_device_collectives, reduce_scatter, 64);
FIELD(bps_device_collectives, all_gather, 72);
FIELD(bps_device_collectives, all_reduce, 80);
FIELD(bps_device_collectives, reduce, 88);
FIELD(bps_device_collectives, broadcast, 96);
FIELD(bps_device_collectives, send, 104);
FIELD(bps_device_collectives, receive, 112);
SIZE(bps_device_collectives, 120);

/* Enumerators are part of the ABI too: bindings write them down as numbers. */

_Static_assert(BPS_ABI_MAJOR == 1, "a new major version is a new header");
_Static_assert(BPS_OK == 0 && BPS_CANCELLED == 1 && BPS_UNKNOWN == 2 && BPS_INVALID_ARGUMENT == 3, "codes");
_Static_assert(BPS_DEADLINE_EXCEEDED == 4 && BPS_NOT_FOUND == 5 && BPS_ALREADY_EXISTS == 6, "codes");
_Static_assert(BPS_PERMISSION_DENIED == 7 && BPS_RESOURCE_EXHAUSTED == 8 && BPS_FAILED_PRECONDITION == 9, "codes");
_Static_assert(BPS_ABORTED == 10 && BPS_OUT_OF_RANGE == 11 && BPS_UNIMPLEMENTED == 12 && BPS_INTERNAL == 13, "codes");
_Static_assert(BPS_UNAVAILABLE == 14 && BPS_DATA_LOSS == 15 && BPS_UNAUTHENTICATED == 16, "codes");
_Static_assert(BPS_INT8 == 0x10800 && BPS_INT32 == 0x12000 && BPS_INT64 == 0x14000 && BPS_UINT8 == 0x10801, "dtypes");
_Static_assert(BPS_FLOAT16 == 0x11002 && BPS_FLOAT32 == 0x12002 && BPS_FLOAT64 == 0x14002, "dtypes");
_Static_assert(BPS_BFLOAT16 == 0x11004, "dtypes");
_Static_assert(BPS_INT16 == 0x11000 && BPS_COMPLEX64 == 0x14005 && BPS_COMPLEX128 == 0x18005, "dtypes");
_Static_assert(BPS_BOOL == 0x10806, "dtypes");
_Static_assert(BPS_SUM == 0 && BPS_AVERAGE == 1 && BPS_MIN == 2 && BPS_MAX == 3 && BPS_PRODUCT == 4, "operations");
_Static_assert(BPS_BIT_AND == 5 && BPS_BIT_OR == 6 && BPS_BIT_XOR == 7, "operations");
_Static_assert(BPS_ADASUM == 8, "operations");
_Static_assert(BPS_ALL_REDUCE == 0 && BPS_BROADCAST == 1 && BPS_ALL_GATHER == 2 && BPS_REDUCE_SCATTER == 3, "kinds");
_Static_assert(BPS_ALL_TO_ALL == 4 && BPS_REDUCE == 5 && BPS_GATHER == 6 && BPS_SCATTER == 7, "kinds");
_Static_assert(BPS_SEND == 8 && BPS_RECEIVE == 9 && BPS_BARRIER == 10, "kinds");
_Static_assert(BPS_CPU == 1 && BPS_CUDA == 2 && BPS_CUDA_HOST == 3, "devices");
_Static_assert(BPS_REQUEST_ENQUEUED == 5 && BPS_EXT_STREAMS == 1 && BPS_EXT_CAST == 2, "states and extensions");
_Static_assert(BPS_LOG_TRACE == 0 && BPS_LOG_DEBUG == 1 && BPS_LOG_INFO == 2 && BPS_LOG_WARNING == 3, "levels");
_Static_assert(BPS_LOG_ERROR == 4, "levels");

int main(void) { return 0; }
