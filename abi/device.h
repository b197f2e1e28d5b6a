/* device.h - the contract of a device plugin: the memory, streams and events of GPUs.
 *
 * The library knows no GPU interface of its own: it sees one GPU through one `bps_device`.
 *
 *     plugin->count(config, &count, failure)              how many there are, or why none can be used
 *     table->open(&args, &device, failure)                one of them, as this user of the process sees it
 *     table->event_record(device, ready, users_stream, failure)
 *     table->stream_wait(device, stream, ready, failure)
 *     table->copy_to_host(device, pinned, memory, size, stream, failure)
 *     table->event_record(device, copied, stream, failure)
 *     table->event_query(device, copied, failure)         BPS_OK, or BPS_DEVICE_NOT_READY: ask again
 *
 * The subtle parts:
 *
 * Threads.      All functions may be called on any thread, concurrently. They leave the thread as it was: whichever
 *               device or context is current there for its other users stays so.
 * Who waits.    `synchronize`, `close` and a communicator's `leave` block. What gives memory back, unregisters or
 *               flushes may wait for the device. Everything else puts work into a stream, or asks.
 * Streams.      A stream is the driver's own handle (CUDA: CUstream or cudaStream_t), so that streams of the caller's
 *               framework may be named; NULL is the legacy default stream. Work in one stream runs in order; work in
 *               two is ordered by events alone. Streams made here do not wait for the default stream.
 * Events.       A wait (stream_wait) is for the latest record at the time of the call: of an event that was never
 *               recorded it is nothing, and its query is BPS_OK. Recording again does not change earlier waits.
 * Addresses.    Device memory is named by addresses that mean something to the device alone. The host reads and writes
 *               what allocate_host gave, or register_host was given, and only when an event says that it may.
 * Failure.      Functions return BPS_OK or a code, with a reason in one sentence. BPS_DATA_LOSS: the context is lost
 *               (an illegal address, a hardware error): every later call on this device answers the same; what was
 *               under way may or may not have happened. Others leave everything as it was.
 * Capture.      A stream that is being captured into a graph (stream_state) takes no work from the library. No function
 *               here disturbs a capture on another stream.
 * Collectives.  Optional; a contract of their own, below.
 * fork().       In a forked child nothing here may be called.
 */
#ifndef BYTEPS_ABI_DEVICE_H_
#define BYTEPS_ABI_DEVICE_H_

#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BPS_DEVICE_ABI_MINOR 1

/* One GPU. Defined by the plugin. */
typedef struct bps_device bps_device;

/* A stream: the driver's own handle. */
typedef void* bps_device_stream;

/* An event of this plugin. */
typedef struct bps_device_event bps_device_event;

/* The event has been recorded, and what was in the stream before it has not ended. */
#define BPS_DEVICE_NOT_READY (-1)

typedef struct bps_device_open_args {
  size_t struct_size;
  const void* config; /* for host->config */
  void* log;          /* for host->log */
  int32_t index;      /* as the process counts its devices, from 0 */
  int32_t reserved;
} bps_device_open_args;

/* What there is, for people. Text is valid for the life of the process. */
typedef struct bps_device_versions {
  size_t struct_size;
  const char* driver;      /* "CUDA 13.0, libcuda.so.1"; never NULL */
  const char* collectives; /* "NCCL 2.28.9, /usr/lib/libnccl.so.2", or "" where there are none: */
  const char* why_not;     /* why */
} bps_device_versions;

typedef struct bps_device_facts {
  size_t struct_size;
  const char* name; /* "NVIDIA H200"; valid for the life of the process */
  const char* pci;  /* "0000:1b:00.0", or "" */
  uint64_t memory;  /* bytes */
  int32_t major;    /* of what it can compute: 9.0 */
  int32_t minor;
} bps_device_facts;

/* What an address is. */
typedef struct bps_device_pointer {
  size_t struct_size;
  int32_t type;  /* BPS_CUDA: of a device; BPS_CUDA_HOST: of the host, pinned; BPS_CPU: anything else */
  int32_t id;    /* BPS_CUDA: of which device; else 0 */
  void* base;    /* of its allocation; BPS_CPU: NULL */
  uint64_t size; /* of its allocation; BPS_CPU: 0 */
  /* BPS_CUDA (1.1): a number of its allocation that no other one of this process has, or had: an address may be given
   * out again; 0: not known. */
  uint64_t identity;
} bps_device_pointer;

typedef struct bps_device_stream_state {
  size_t struct_size;
  int32_t id;        /* the device that it is of */
  int32_t capturing; /* 1: its work goes into a graph and does not run */
} bps_device_stream_state;

typedef struct bps_device_table {
  size_t struct_size;

  /* -- Required -- */

  /* Opens device `args->index` (its primary context, the one that frameworks use). */
  int32_t (*open)(const bps_device_open_args* args, bps_device** device, bps_failure* failure);
  /* Waits for the work in the streams made here, and gives these back. Memory and events must be back already. */
  void (*close)(bps_device* device);

  /* Memory of the device. `size` is not 0. */
  int32_t (*allocate)(bps_device* device, uint64_t size, void** base, bps_failure* failure);
  int32_t (*release)(bps_device* device, void* base, bps_failure* failure);
  /* Memory of the host that every device copies from and to without a thread's help: pinned. */
  int32_t (*allocate_host)(bps_device* device, uint64_t size, void** base, bps_failure* failure);
  int32_t (*release_host)(bps_device* device, void* base, bps_failure* failure);
  /* The same of memory that is there already; its owner unregisters it before it frees it. */
  int32_t (*register_host)(bps_device* device, void* base, uint64_t size, bps_failure* failure);
  int32_t (*unregister_host)(bps_device* device, void* base, bps_failure* failure);
  /* Fills up to pointer->struct_size. */
  int32_t (*pointer)(bps_device* device, const void* address, bps_device_pointer* pointer, bps_failure* failure);

  /* `urgent`: larger is sooner, where the device orders streams; 0 is ordinary. */
  int32_t (*stream_create)(bps_device* device, int32_t urgent, bps_device_stream* stream, bps_failure* failure);
  int32_t (*stream_destroy)(bps_device* device, bps_device_stream stream, bps_failure* failure);
  /* Fills up to state->struct_size. Of any stream of this process. */
  int32_t (*stream_state)(bps_device* device, bps_device_stream stream, bps_device_stream_state* state,
                          bps_failure* failure);
  /* What is put into `stream` from now on waits for the latest record of `event`. */
  int32_t (*stream_wait)(bps_device* device, bps_device_stream stream, bps_device_event* event, bps_failure* failure);

  int32_t (*event_create)(bps_device* device, bps_device_event** event, bps_failure* failure);
  int32_t (*event_destroy)(bps_device* device, bps_device_event* event, bps_failure* failure);
  int32_t (*event_record)(bps_device* device, bps_device_event* event, bps_device_stream stream, bps_failure* failure);
  /* BPS_OK: what was before the latest record has ended, and the host sees what it wrote; BPS_DEVICE_NOT_READY; or a
   * code. */
  int32_t (*event_query)(bps_device* device, bps_device_event* event, bps_failure* failure);

  /* Copies and fills `size` bytes, in the order of `stream`. Host memory is pinned. */
  int32_t (*copy_to_host)(bps_device* device, void* to, const void* from, uint64_t size, bps_device_stream stream,
                          bps_failure* failure);
  int32_t (*copy_to_device)(bps_device* device, void* to, const void* from, uint64_t size, bps_device_stream stream,
                            bps_failure* failure);
  int32_t (*copy_within)(bps_device* device, void* to, const void* from, uint64_t size, bps_device_stream stream,
                         bps_failure* failure);
  int32_t (*fill)(bps_device* device, void* to, uint8_t byte, uint64_t size, bps_device_stream stream,
                  bps_failure* failure);
  /* Blocks until all that is in `stream` has ended. For tests and for the end: no step of a training needs it. */
  int32_t (*synchronize)(bps_device* device, bps_device_stream stream, bps_failure* failure);

  /* -- Optional (1.1): NULL, or a struct_size that ends before it, where there is none -- */

  /* to[i] = reduction(... reduction(sources[0][i], sources[1][i]) ..., sources[n - 1][i]) for `count` elements of
   * device memory, in the order of `stream`, with the bits of docs/determinism.md, one level (BPS_AVERAGE divides by
   * n). `to` may be one of the sources; otherwise it overlaps none. The array of sources is read by the call. Elements
   * and reductions are those of the collectives; others, and more sources than it takes, are BPS_UNIMPLEMENTED. A count
   * of 0 does nothing: it asks whether the rest would be taken; `to` and the sources may be NULL then. */
  int32_t (*fold)(bps_device* device, void* to, const void* const* sources, uint32_t n, uint64_t count, uint32_t dtype,
                  int32_t reduction, bps_device_stream stream, bps_failure* failure);
  /* What network cards have written into this device's memory by now is seen by the work that is put into its streams
   * from now on. BPS_UNIMPLEMENTED (or NULL): network cards have no access to its memory. */
  int32_t (*flush_remote)(bps_device* device, bps_failure* failure);
  /* A descriptor of a dma-buf of [base, base + size), which is a whole allocation; the caller closes it.
   * BPS_UNIMPLEMENTED (or NULL): the driver gives none. */
  int32_t (*dmabuf)(bps_device* device, void* base, uint64_t size, int32_t* descriptor, bps_failure* failure);
  /* to[i] = from[i] x factor as an element of `to_dtype`, for `count` elements, in the order of `stream`. One of `to`
   * and `from` may be pinned memory of the host, so that a conversion is a copy, too; they may be equal where the data
   * types are, otherwise they do not overlap. The product is one of float32 (FLOAT64: of float64), with the factor
   * rounded to it, and what is stored is rounded to nearest even; a factor of 1 changes no value. From FLOAT32,
   * FLOAT64, FLOAT16 and BFLOAT16 to the same, and between FLOAT32 and the 16-bit ones; others are BPS_UNIMPLEMENTED. A
   * count of 0 does nothing: it asks whether the rest would be taken; `to` and `from` may be NULL then. */
  int32_t (*convert)(bps_device* device, void* to, uint32_t to_dtype, const void* from, uint32_t from_dtype,
                     uint64_t count, double factor, bps_device_stream stream, bps_failure* failure);
} bps_device_table;

/* -- Collectives among the devices of several processes (1.1) --
 *
 *     collectives->unique_id(config, id, failure);                     one member makes it, and tells the others
 *     collectives->join(device, &args, &comm, failure);                every member
 *     while (collectives->state(comm, failure) == BPS_DEVICE_NOT_READY) ...;
 *     collectives->begin(comm, failure);
 *     collectives->all_reduce(comm, from, to, count, BPS_FLOAT32, BPS_SUM, stream, failure);    any number of these
 *     collectives->end(comm, failure);
 *     while (collectives->state(comm, failure) == BPS_DEVICE_NOT_READY) ...;     now it is in the stream
 *
 * Order.        All members put the same collectives into a comm, in the same order, and each into one stream after
 *               another. Send and receive match by pair. What is between `begin` and `end` is one unit: a member whose
 *               sends and receives wait for each other puts them into one.
 * Who waits.    Nothing here blocks the host for another member: `join` and `end` may go on in the background, and
 *               `state` tells. Nothing may be put in before it is BPS_OK. Deadlines are the caller's: `abort` ends what
 *               is under way, in the stream, too.
 * Failure.      A `state` other than BPS_OK and BPS_DEVICE_NOT_READY is final: the comm can only be aborted. A member
 *               that is gone may be told here, or never.
 * Threads.      Calls for one comm come one at a time.
 * In place.     reduce_scatter: `to` may be from + rank x count; all_gather: `from` may be to + rank x count; others:
 *               `from` and `to` may be equal. Otherwise they do not overlap.
 * Elements.     BPS_FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT8, UINT8, INT32, INT64; reductions BPS_SUM, PRODUCT, MIN,
 *               MAX, and AVERAGE of floats. In which order they are added is the implementation's affair. Others:
 *               BPS_UNIMPLEMENTED. */

/* One member of a set of devices that meet. Defined by the plugin. */
typedef struct bps_device_comm bps_device_comm;

#define BPS_DEVICE_COMM_ID 128

typedef struct bps_device_join_args {
  size_t struct_size;
  const uint8_t* id;  /* BPS_DEVICE_COMM_ID bytes */
  int32_t rank;       /* among the members, from 0 */
  int32_t size;       /* how many there are */
  int32_t max_blocks; /* of the device's processors that a collective takes; 0: the implementation's default */
  int32_t reserved;
} bps_device_join_args;

typedef struct bps_device_collectives {
  size_t struct_size;

  /* -- Required -- */
  /* `id`: BPS_DEVICE_COMM_ID bytes. */
  int32_t (*unique_id)(const void* config, uint8_t* id, bps_failure* failure);
  int32_t (*join)(bps_device* device, const bps_device_join_args* args, bps_device_comm** comm, bps_failure* failure);
  int32_t (*state)(bps_device_comm* comm, bps_failure* failure);
  /* Ends a comm: `leave` in order, when all that was put in has ended on all members; `abort` at once. */
  void (*leave)(bps_device_comm* comm);
  void (*abort)(bps_device_comm* comm);
  int32_t (*begin)(bps_device_comm* comm, bps_failure* failure);
  int32_t (*end)(bps_device_comm* comm, bps_failure* failure);
  /* `count`: elements that each member gets. */
  int32_t (*reduce_scatter)(bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype,
                            int32_t reduction, bps_device_stream stream, bps_failure* failure);
  /* `count`: elements that each member gives. */
  int32_t (*all_gather)(bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype,
                        bps_device_stream stream, bps_failure* failure);
  int32_t (*all_reduce)(bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype,
                        int32_t reduction, bps_device_stream stream, bps_failure* failure);
  /* `to`: of `root` only. */
  int32_t (*reduce)(bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype,
                    int32_t reduction, int32_t root, bps_device_stream stream, bps_failure* failure);
  /* `from`: of `root` only. */
  int32_t (*broadcast)(bps_device_comm* comm, const void* from, void* to, uint64_t count, uint32_t dtype, int32_t root,
                       bps_device_stream stream, bps_failure* failure);
  int32_t (*send)(bps_device_comm* comm, const void* from, uint64_t count, uint32_t dtype, int32_t peer,
                  bps_device_stream stream, bps_failure* failure);
  int32_t (*receive)(bps_device_comm* comm, void* to, uint64_t count, uint32_t dtype, int32_t peer,
                     bps_device_stream stream, bps_failure* failure);
} bps_device_collectives;

struct bps_device_plugin {
  size_t struct_size;
  bps_plugin_info info;
  /* Is what this plugin needs here (driver, devices)? BPS_OK, or a code with a one-sentence reason. Required. */
  int32_t (*probe)(const void* config, bps_failure* failure);
  /* The number of devices, at least 1. Required, as the next two. */
  int32_t (*count)(const void* config, int32_t* count, bps_failure* failure);
  /* Fills up to facts->struct_size. */
  int32_t (*facts)(const void* config, int32_t index, bps_device_facts* facts, bps_failure* failure);
  /* Fills up to versions->struct_size; looks for the collectives' library. */
  int32_t (*versions)(const void* config, bps_device_versions* versions, bps_failure* failure);
  const bps_device_table* table;
  /* Optional (1.1): NULL where there are none. What `versions` says of them is why they cannot be used here. */
  const bps_device_collectives* collectives;
};

typedef int32_t (*bps_device_plugin_fn)(const bps_plugin_host* host, const bps_device_plugin** plugin);

#define BPS_DEVICE_ENTRY "bps_device_plugin_v1"

#ifdef __cplusplus
}
#endif

#endif /* BYTEPS_ABI_DEVICE_H_ */
