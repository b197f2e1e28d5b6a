/* byteps.h - the C ABI of BytePS: everything a trainer needs.
 *
 * Workers hand tensors to CPU servers that sum them, and get the sum back:
 *
 *     bps_open_args open_args = BPS_OPEN_ARGS_INIT;
 *     bps_session* session;
 *     bps_status* error = bps_open(&open_args, &session);     // environment fills the rest
 *
 *     bps_declare_args declare_args = BPS_DECLARE_ARGS_INIT;
 *     declare_args.name = "layer1.weight";
 *     declare_args.dtype = BPS_FLOAT32;
 *     declare_args.shape = shape; declare_args.ndim = 2;
 *     bps_tensor* tensor;
 *     error = bps_declare(session, &declare_args, &tensor);
 *
 *     bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
 *     args.tensor = tensor; args.input = gradient; args.output = gradient;
 *     args.op = BPS_AVERAGE;
 *     bps_request* request;
 *     error = bps_push_pull(session, &args, &request);
 *     error = bps_wait(request, 0);                           // and bps_request_free(request)
 *
 *     error = bps_shutdown(session, 5000);
 *     bps_close(session);
 *
 * RULES THAT HOLD FOR EVERY FUNCTION (exceptions are said at the function)
 *
 * Threads.   All functions may be called concurrently on one session, from any thread. bps_close must be the last
 *            call on its session. The order in which tensors are declared and submitted need not match across
 *            workers: tensors meet by name.
 * Errors.    Functions that can fail return a `bps_status*`: NULL is success. A non-NULL status belongs to the
 *            caller, who frees it with bps_status_free. On error, out-parameters are untouched. There is no
 *            "last error" anywhere.
 * Fatal.     After a fatal error of a session (a peer died, the coordinator is lost) every later call on it fails at
 *            once with the first cause. bps_shutdown and bps_close still work, within 5 seconds.
 * Deadlines. Every wait has one; 0 means the session's default (BYTEPS_OP_TIMEOUT), a negative value is
 *            INVALID_ARGUMENT. The error of an expired deadline names who is missing: role, rank, host.
 * Structs.   Every struct begins with `struct_size`, set by its ..._INIT macro, which zeroes the rest. Zero is the
 *            default of every field. Fields are only ever appended. A caller compiled against a newer header may
 *            pass a larger struct as long as the bytes this library does not know are zero; otherwise
 *            INVALID_ARGUMENT.
 * Strings.   UTF-8, NUL-terminated. Strings passed in are copied before the call returns.
 * fork().    In a forked child every function except bps_status_*, bps_version and bps_version_string fails with
 *            FAILED_PRECONDITION; children that do not call the library are undisturbed.
 * Library    Callbacks run on a thread of the library. Inside a callback any call that does not block is allowed;
 * threads.   bps_wait, bps_barrier, bps_open, bps_shutdown and bps_close return FAILED_PRECONDITION there.
 */
#ifndef BYTEPS_ABI_BYTEPS_H_
#define BYTEPS_ABI_BYTEPS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define BPS_NOEXCEPT noexcept
extern "C" {
#else
#define BPS_NOEXCEPT
#endif

#ifndef BPS_API
#if defined(_WIN32)
#define BPS_API
#else
#define BPS_API __attribute__((visibility("default")))
#endif
#endif

/* ---- Version ---------------------------------------------------------------------------------------------------- */

#define BPS_ABI_MAJOR 1
#define BPS_ABI_MINOR 1

/* Writes the library's own ABI version (not the caller's compiled-in one). Either pointer may be NULL. */
BPS_API void bps_version(int32_t* major, int32_t* minor) BPS_NOEXCEPT;

/* The release, such as "0.1.0". Static storage. */
BPS_API const char* bps_version_string(void) BPS_NOEXCEPT;

/* ---- Status ----------------------------------------------------------------------------------------------------- */

/* The outcome of a failed call. Immutable; may be handed between threads. */
typedef struct bps_status bps_status;

/* Codes; numerically those of absl::StatusCode and gRPC. */
#define BPS_OK 0
#define BPS_CANCELLED 1
#define BPS_UNKNOWN 2
#define BPS_INVALID_ARGUMENT 3
#define BPS_DEADLINE_EXCEEDED 4
#define BPS_NOT_FOUND 5
#define BPS_ALREADY_EXISTS 6
#define BPS_PERMISSION_DENIED 7
#define BPS_RESOURCE_EXHAUSTED 8
#define BPS_FAILED_PRECONDITION 9
#define BPS_ABORTED 10
#define BPS_OUT_OF_RANGE 11
#define BPS_UNIMPLEMENTED 12
#define BPS_INTERNAL 13
#define BPS_UNAVAILABLE 14
#define BPS_DATA_LOSS 15
#define BPS_UNAUTHENTICATED 16

/* The code of `status`; BPS_OK for NULL. */
BPS_API int32_t bps_status_code(const bps_status* status) BPS_NOEXCEPT;

/* The message of `status`, valid until it is freed; "" for NULL. */
BPS_API const char* bps_status_message(const bps_status* status) BPS_NOEXCEPT;

/* 1 if the same call may succeed when tried again on this session (for example after a mismatch between ranks was
 * mended), 0 if it cannot (the session has failed, or the arguments are wrong). */
BPS_API int32_t bps_status_retryable(const bps_status* status) BPS_NOEXCEPT;

/* Frees `status`; NULL is allowed. */
BPS_API void bps_status_free(bps_status* status) BPS_NOEXCEPT;

/* ---- Extensions ------------------------------------------------------------------------------------------------- */

/* An optional, typed addition to an argument struct, chained through `next`. A type this library does not know is
 * INVALID_ARGUMENT, unless BPS_EXT_IGNORABLE is set in its flags. No type is defined in 1.0. */
typedef struct bps_ext {
  size_t struct_size;
  uint32_t type;
  uint32_t flags;
  const struct bps_ext* next;
} bps_ext;

#define BPS_EXT_IGNORABLE 1u

/* ---- Data types, operations, devices ---------------------------------------------------------------------------- */

/* Data types are DLPack's {code, bits, lanes} packed into one number: code | bits << 8 | lanes << 16. */
#define BPS_DTYPE(code, bits) ((uint32_t)(code) | ((uint32_t)(bits) << 8) | ((uint32_t)1 << 16))
#define BPS_INT8 BPS_DTYPE(0, 8)
#define BPS_INT32 BPS_DTYPE(0, 32)
#define BPS_INT64 BPS_DTYPE(0, 64)
#define BPS_UINT8 BPS_DTYPE(1, 8)
#define BPS_FLOAT16 BPS_DTYPE(2, 16)
#define BPS_FLOAT32 BPS_DTYPE(2, 32)
#define BPS_FLOAT64 BPS_DTYPE(2, 64)
#define BPS_BFLOAT16 BPS_DTYPE(4, 16)

/* Reductions. A result is a left fold over the contributors in rank order, or, where groups are configured, over the
 * groups of the folds within; 16-bit floats accumulate in float32 with one rounding per level. AVERAGE is the sum
 * divided by the number of contributors: true division for floats, rounded towards minus infinity for integers.
 * Integer sums and products wrap. MIN and MAX propagate NaN. */
#define BPS_SUM 0
#define BPS_AVERAGE 1
#define BPS_MIN 2
#define BPS_MAX 3
#define BPS_PRODUCT 4

/* Where memory lives; numerically DLPack's DLDeviceType. 0 means BPS_CPU. Others are UNIMPLEMENTED in 1.0. */
#define BPS_CPU 1
#define BPS_CUDA 2
#define BPS_CUDA_HOST 3

/* How the rounds of a tensor meet. Others than SYNCHRONOUS are UNIMPLEMENTED in 1.0. */
#define BPS_MODE_SYNCHRONOUS 0
#define BPS_MODE_ASYNCHRONOUS 1

/* ---- Session ---------------------------------------------------------------------------------------------------- */

/* A membership in a job, from bps_open to bps_close. It owns everything: threads, connections, tensors. Many may live
 * in one process, one after another or side by side. */
typedef struct bps_session bps_session;

/* Levels of a log line. */
#define BPS_LOG_TRACE 0
#define BPS_LOG_DEBUG 1
#define BPS_LOG_INFO 2
#define BPS_LOG_WARNING 3
#define BPS_LOG_ERROR 4

/* Receives one log line (no newline at its end; valid during the call). Called on any thread, one call at a time. */
typedef void (*bps_log_fn)(void* user, int32_t level, const char* file, int32_t line, const char* message);

/* Every field left zero is taken from the environment (the DMLC_* and BYTEPS_* variables, see docs/configuration.md),
 * and from its default where the environment does not name it. */
typedef struct bps_open_args {
  size_t struct_size;
  const bps_ext* ext;
  const char* coordinator; /* "host:port"; NULL: DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT */
  const char* job;         /* name of the job; NULL: BYTEPS_JOB_ID */
  const char* name;        /* name of this session within the job; NULL: "" */
  const char* token;       /* the job's secret; NULL: BYTEPS_JOB_TOKEN or the file BYTEPS_JOB_TOKEN_FILE */
  const char* host;        /* own address or interface address to advertise; NULL: DMLC_NODE_HOST, else by route */
  const char* transport;   /* plugin name, or a path if it contains '/'; NULL: BYTEPS_TRANSPORT */
  const char* scheduler;   /* plugin name, or a path if it contains '/'; NULL: BYTEPS_SCHEDULER */
  int32_t has_place;       /* 1: the next four fields are set; 0: taken from the environment */
  int32_t host_index;      /* index of this host among the worker hosts, 0.. (DMLC_WORKER_ID) */
  int32_t num_hosts;       /* worker hosts (DMLC_NUM_WORKER) */
  int32_t local_rank;      /* index of this worker on its host, 0.. (BYTEPS_LOCAL_RANK) */
  int32_t local_size;      /* workers on this host (BYTEPS_LOCAL_SIZE) */
  int32_t num_servers;     /* with has_place = 1: servers of the job (DMLC_NUM_SERVER) */
  int32_t log_level;       /* least level that reaches the sink, plus one; 0: BYTEPS_LOG_LEVEL */
  int64_t timeout_ms;      /* until everybody has arrived; 0: BYTEPS_START_TIMEOUT */
  bps_log_fn log;          /* NULL: stderr */
  void* log_user;
} bps_open_args;
#define BPS_OPEN_ARGS_INIT \
  { sizeof(bps_open_args) }

/* Opens a session: loads the plugins, registers with the coordinator and waits until all workers and servers of the
 * job are there. One worker alone (one host, local size 1, BYTEPS_FORCE_DISTRIBUTED unset) needs neither coordinator
 * nor server. Call bps_open; the versioned function exists for callers without a C compiler, who pass the
 * BPS_ABI_MAJOR and BPS_ABI_MINOR that their binding was written against. A different major version is
 * FAILED_PRECONDITION and names both.
 * Errors: INVALID_ARGUMENT (arguments or environment), NOT_FOUND (plugin), DEADLINE_EXCEEDED (names the missing
 * members), UNAUTHENTICATED (token), FAILED_PRECONDITION (versions, transports or counts of the members differ). */
BPS_API bps_status* bps_open_versioned(int32_t abi_major, int32_t abi_minor, const bps_open_args* args,
                                       bps_session** session) BPS_NOEXCEPT;

static inline bps_status* bps_open(const bps_open_args* args, bps_session** session) {
  return bps_open_versioned(BPS_ABI_MAJOR, BPS_ABI_MINOR, args, session);
}

/* Leaves the job in order: refuses new operations, waits until all accepted ones have ended and all members of the
 * session have arrived here or left, at most timeout_ms (0: 5000). Others that work on then are no error: they go on
 * without this member, until one needs it. On error (own operations had not ended; a failed session; no answer of the
 * coordinator) what was left is CANCELLED; the session can only be closed after this call, whatever it returned.
 * Calling it again returns NULL at once. */
BPS_API bps_status* bps_shutdown(bps_session* session, int64_t timeout_ms) BPS_NOEXCEPT;

/* Ends the session and frees it with everything it owns: tensors, and the library's side of requests. What is still
 * running ends with CANCELLED: callbacks run before this returns. Requests stay valid until bps_request_free. Without a
 * preceding bps_shutdown the other members see this one fail. NULL is allowed.
 * On error (inside a callback, whose thread it would wait for; in a forked child) nothing has happened, and the session
 * is to be closed by another thread: the log says so, too, for owners that cannot look at the answer. */
BPS_API bps_status* bps_close(bps_session* session) BPS_NOEXCEPT;

/* Who we are. Filled up to the caller's struct_size. */
typedef struct bps_info {
  size_t struct_size;
  int32_t rank;        /* 0 .. size-1 in the job */
  int32_t size;        /* workers in the job */
  int32_t local_rank;  /* 0 .. local_size-1 on this host */
  int32_t local_size;  /* workers on this host */
  int32_t num_servers; /* servers that sum; 0 where the workers of one host do it, or this worker is alone */
  int32_t failed;      /* 1 after a fatal error */
  uint64_t epoch;      /* membership epoch */
  uint64_t generation; /* how often a session of this name was opened in this job, from 1 */
  /* Since 1.1: */
  int32_t shared_buffers; /* 1 where other processes of this host can map memory of bps_buffer_alloc: those reached so
                           * may use it in place (there may be none); 0: tensors there gain nothing */
  int32_t reserved;       /* 0 */
} bps_info;
#define BPS_INFO_INIT \
  { sizeof(bps_info) }
BPS_API bps_status* bps_session_info(const bps_session* session, bps_info* info) BPS_NOEXCEPT;

/* Text for people, valid until bps_close or the next change of it, each a line or a few:
 * transport and scheduler in use. Static for the life of the session. */
BPS_API const char* bps_transport_name(const bps_session* session) BPS_NOEXCEPT;
BPS_API const char* bps_scheduler_name(const bps_session* session) BPS_NOEXCEPT;

/* ---- Tensors ---------------------------------------------------------------------------------------------------- */

/* A declared tensor. Owned by the session; valid until bps_close. */
typedef struct bps_tensor bps_tensor;

typedef struct bps_declare_args {
  size_t struct_size;
  const bps_ext* ext;
  const char* name;     /* not empty; the same on all ranks */
  const int64_t* shape; /* ndim entries, each >= 0; may be NULL if ndim is 0 (a scalar) */
  int32_t ndim;         /* 0 .. 64 */
  uint32_t dtype;
  int32_t mode;      /* BPS_MODE_SYNCHRONOUS */
  int32_t staleness; /* 0; reserved for asynchronous modes */
} bps_declare_args;
#define BPS_DECLARE_ARGS_INIT \
  { sizeof(bps_declare_args) }

/* Declares a tensor; does not block and does not talk to anybody before it returns. The same name, dtype and shape
 * give the same handle again; the same name with another dtype or shape gives a new one, and the old one stays valid.
 * Errors: INVALID_ARGUMENT. */
BPS_API bps_status* bps_declare(bps_session* session, const bps_declare_args* args, bps_tensor** tensor) BPS_NOEXCEPT;

/* ---- Requests --------------------------------------------------------------------------------------------------- */

/* One operation that was accepted. */
typedef struct bps_request bps_request;

/* Its state; it only moves downwards in this list, and each may be skipped. */
#define BPS_REQUEST_DECLARING 0 /* waits for the coordinator's answer about its tensor */
#define BPS_REQUEST_QUEUED 1    /* cut into partitions; none has left */
#define BPS_REQUEST_ACTIVE 2    /* partitions are on their way */
#define BPS_REQUEST_DONE 3      /* the output holds the result */
#define BPS_REQUEST_FAILED 4    /* ended with an error */

/* The state of `request` now, as a number and as its name in lower case (static storage). */
BPS_API int32_t bps_request_state(const bps_request* request) BPS_NOEXCEPT;
BPS_API const char* bps_request_state_name(int32_t state) BPS_NOEXCEPT;

/* Runs exactly once per accepted operation, on a library thread (or on the thread of a caller who is inside bps_wait).
 * Owns `error` (NULL: success). Must not block. */
typedef void (*bps_done_fn)(void* user, bps_status* error);

/* Waits until the request has ended, at most timeout_ms (0: the operation's own deadline and no more). Returns the
 * operation's error (a copy each time), or DEADLINE_EXCEEDED when the wait ended first: the operation goes on. */
BPS_API bps_status* bps_wait(bps_request* request, int64_t timeout_ms) BPS_NOEXCEPT;

/* Writes 1 to *done if the request has ended, else 0. Never blocks; does not return the operation's error. */
BPS_API bps_status* bps_test(bps_request* request, int32_t* done) BPS_NOEXCEPT;

/* Asks to give up. The operation then ends with CANCELLED here, and with ABORTED naming this rank on the others, unless
 * it was already complete. When the request has ended, the library touches neither input nor output any more. */
BPS_API bps_status* bps_cancel(bps_request* request) BPS_NOEXCEPT;

/* Frees the handle; the operation itself goes on if it has not ended. NULL is allowed. May outlive bps_close. */
BPS_API void bps_request_free(bps_request* request) BPS_NOEXCEPT;

/* ---- Operations ------------------------------------------------------------------------------------------------- */

typedef struct bps_push_pull_args {
  size_t struct_size;
  const bps_ext* ext;
  bps_tensor* tensor;
  const void* input;    /* must not change until the operation has ended */
  void* output;         /* may equal input, else must not overlap it; unspecified until the operation has ended */
  int64_t priority;     /* larger is sooner */
  int32_t op;           /* BPS_SUM, ... */
  int32_t input_device; /* 0 or BPS_CPU */
  int32_t input_device_id;
  int32_t output_device; /* 0 or BPS_CPU */
  int32_t output_device_id;
  int32_t reserved;   /* 0 */
  int64_t timeout_ms; /* of the whole operation; 0: BYTEPS_OP_TIMEOUT */
  bps_done_fn done;   /* NULL: none */
  void* user;
} bps_push_pull_args;
#define BPS_PUSH_PULL_ARGS_INIT \
  { sizeof(bps_push_pull_args) }

/* Starts the reduction of `input` over all workers into `output`; does not block. `request`, if not NULL, receives a
 * handle to wait on, which the caller frees. If this returns an error, the operation was not accepted: `done` never
 * runs and no request is made. Input and output are memory of the tensor's shape and dtype, row-major, without gaps,
 * aligned to its element size.
 * Errors of the call: INVALID_ARGUMENT; ALREADY_EXISTS (an operation on a tensor of this name is still in flight on
 * this rank); FAILED_PRECONDITION (shut down, or forked child); UNIMPLEMENTED (device).
 * Errors of the operation: FAILED_PRECONDITION (the ranks disagree on shape, dtype, operation or root: every rank gets
 * it, naming the tensor, the ranks and both sides; the session stays usable); DEADLINE_EXCEEDED (names the ranks that
 * did not submit); UNAVAILABLE (a member died: fatal; names it); CANCELLED; ABORTED (another rank gave up). */
BPS_API bps_status* bps_push_pull(bps_session* session, const bps_push_pull_args* args,
                                  bps_request** request) BPS_NOEXCEPT;

typedef struct bps_broadcast_args {
  size_t struct_size;
  const bps_ext* ext;
  bps_tensor* tensor;
  const void* input; /* read on the root only; elsewhere ignored, may be NULL */
  void* output;      /* written on all ranks; on the root it may equal input */
  int64_t priority;
  int32_t root; /* a rank */
  int32_t input_device;
  int32_t input_device_id;
  int32_t output_device;
  int32_t output_device_id;
  int32_t reserved; /* 0 */
  int64_t timeout_ms;
  bps_done_fn done;
  void* user;
} bps_broadcast_args;
#define BPS_BROADCAST_ARGS_INIT \
  { sizeof(bps_broadcast_args) }

/* Starts the copy of the root's `input` into every rank's `output`. Otherwise as bps_push_pull. */
BPS_API bps_status* bps_broadcast(bps_session* session, const bps_broadcast_args* args,
                                  bps_request** request) BPS_NOEXCEPT;

typedef struct bps_barrier_args {
  size_t struct_size;
  const bps_ext* ext;
  const char* name;   /* barriers of different names do not meet; NULL: "" */
  int64_t timeout_ms; /* 0: BYTEPS_OP_TIMEOUT */
} bps_barrier_args;
#define BPS_BARRIER_ARGS_INIT \
  { sizeof(bps_barrier_args) }

/* Blocks until all workers have called it as often as this one has (per name). It does not wait for operations in
 * flight. Errors: DEADLINE_EXCEEDED (names the missing ranks), UNAVAILABLE. */
BPS_API bps_status* bps_barrier(bps_session* session, const bps_barrier_args* args) BPS_NOEXCEPT;

/* ---- Memory (since 1.1) ----------------------------------------------------------------------------------------- */

/* Memory for tensors, of the kind that the library moves fastest (huge pages where there are such). Operations take any
 * memory; a buffer that is used again at every step is faster, and costs page faults only once. */
typedef struct bps_buffer bps_buffer;

typedef struct bps_buffer_args {
  size_t struct_size;
  const bps_ext* ext;
  size_t size;       /* bytes; 0 is allowed */
  int32_t device;    /* 0 or BPS_CPU */
  int32_t device_id; /* 0 */
} bps_buffer_args;
#define BPS_BUFFER_ARGS_INIT \
  { sizeof(bps_buffer_args) }

/* Makes a buffer. Its bytes are zero; it begins at a multiple of a page, from 2 MiB on at a multiple of 2 MiB. The caller
 * frees it; it stays valid until then, also behind bps_close. Operations may use any part of it as input or output.
 * Errors: RESOURCE_EXHAUSTED (memory); UNIMPLEMENTED (device). */
BPS_API bps_status* bps_buffer_alloc(bps_session* session, const bps_buffer_args* args,
                                     bps_buffer** buffer) BPS_NOEXCEPT;

/* The first byte of `buffer`; NULL for NULL. */
BPS_API void* bps_buffer_data(const bps_buffer* buffer) BPS_NOEXCEPT;

/* Frees `buffer`; NULL is allowed. FAILED_PRECONDITION while an operation that has not ended uses a part of it: then the
 * buffer is as it was. Inside the operation's callback it has ended. Must not run beside a bps_push_pull or
 * bps_broadcast that is being called with this memory. */
BPS_API bps_status* bps_buffer_free(bps_buffer* buffer) BPS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* BYTEPS_ABI_BYTEPS_H_ */
