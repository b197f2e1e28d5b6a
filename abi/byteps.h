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
 *            caller, which frees it with bps_status_free. On error, out-parameters are untouched. There is no
 *            "last error" anywhere.
 * Fatal.     After a fatal error of a session (a peer died, the coordinator is lost) every later call on it fails at
 *            once with the first cause. bps_shutdown and bps_close still work, within 5 seconds.
 * Deadlines. Every wait has one; 0 means the session's default (BYTEPS_OP_TIMEOUT), a negative value is
 *            INVALID_ARGUMENT. The error of an expired deadline names the missing: role, rank, host.
 * Structs.   Every struct begins with `struct_size`, set by its ..._INIT macro (or ..._init function), which zeroes
 *            the rest. Zero is the default of every field; reserved fields must be zero. Fields are only ever appended.
 *            A caller compiled against a newer header may pass a larger struct, up to 4096 bytes, as long as the bytes
 *            this library does not know are zero; otherwise INVALID_ARGUMENT. A struct may carry up to 64 extensions.
 * Strings.   UTF-8, NUL-terminated. Strings passed in are copied before the call returns.
 * fork().    In a forked child every function except bps_status_*, bps_version and bps_version_string fails with
 *            FAILED_PRECONDITION; children that do not call the library are undisturbed.
 * Library    Callbacks run on a thread of the library (see bps_done_fn). Inside a callback any call that does not block
 * threads.   is allowed; bps_wait, bps_wait_on_stream, bps_barrier, bps_open, bps_shutdown and bps_close return
 *            FAILED_PRECONDITION there.
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

/* What the ..._INIT macros are. C: an initialiser. C++, which cannot write that without a warning: a call. Either way
 *     bps_open_args args = BPS_OPEN_ARGS_INIT;
 * compiles without warnings, and bps_open_args_init() returns the same value in both languages. */
#ifdef __cplusplus
#if __cplusplus >= 201402L
#define BPS_CONSTEXPR constexpr
#else
#define BPS_CONSTEXPR
#endif
#define BPS_INIT(type) type##_init()
#define BPS_INIT_FUNCTION(type)                                 \
  static inline BPS_CONSTEXPR type type##_init() BPS_NOEXCEPT { \
    type value = {};                                            \
    value.struct_size = sizeof(type);                           \
    return value;                                               \
  }
#else
#define BPS_INIT(type) \
  { .struct_size = sizeof(type) }
#define BPS_INIT_FUNCTION(type)          \
  static inline type type##_init(void) { \
    type value = BPS_INIT(type);         \
    return value;                        \
  }
#endif

/* ---- Version ---------------------------------------------------------------------------------------------------- */

#define BPS_ABI_MAJOR 1
#define BPS_ABI_MINOR 3

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
 * INVALID_ARGUMENT, unless BPS_EXT_IGNORABLE is set in its flags. No type is defined in 1.0; those of today have names
 * that begin with BPS_EXT_ and stand where they belong. */
typedef struct bps_ext {
  size_t struct_size;
  uint32_t type;
  uint32_t flags;
  const struct bps_ext* next;
} bps_ext;

#define BPS_EXT_IGNORABLE 1u

/* BPS_X_INIT, an initialiser for the extension bps_x of type BPS_EXT_X. */
#ifdef __cplusplus
#define BPS_EXT_INIT(type_name, ext_type) type_name##_init()
#define BPS_EXT_INIT_FUNCTION(type_name, ext_type)                        \
  static inline BPS_CONSTEXPR type_name type_name##_init() BPS_NOEXCEPT { \
    type_name value = {};                                                 \
    value.ext.struct_size = sizeof(type_name);                            \
    value.ext.type = ext_type;                                            \
    return value;                                                         \
  }
#else
#define BPS_EXT_INIT(type_name, ext_type)                          \
  {                                                                \
    .ext = {.struct_size = sizeof(type_name), .type = (ext_type) } \
  }
#define BPS_EXT_INIT_FUNCTION(type_name, ext_type)       \
  static inline type_name type_name##_init(void) {       \
    type_name value = BPS_EXT_INIT(type_name, ext_type); \
    return value;                                        \
  }
#endif

/* ---- Data types, operations, devices ---------------------------------------------------------------------------- */

/* Data types are DLPack's {code, bits, lanes} packed into one number: code | bits << 8 | lanes << 16. Written as
 * literals, so that generators of bindings see them. */
#define BPS_DTYPE(code, bits) ((uint32_t)(code) | ((uint32_t)(bits) << 8) | ((uint32_t)1 << 16))
#define BPS_INT8 0x10800u
#define BPS_INT16 0x11000u /* since 1.2 */
#define BPS_INT32 0x12000u
#define BPS_INT64 0x14000u
#define BPS_UINT8 0x10801u
#define BPS_FLOAT16 0x11002u
#define BPS_FLOAT32 0x12002u
#define BPS_FLOAT64 0x14002u
#define BPS_BFLOAT16 0x11004u
/* Since 1.2. A complex number is its real part, then its imaginary part; memory is aligned to one part. A bool is a
 * byte of 0 or 1. */
#define BPS_COMPLEX64 0x14005u
#define BPS_COMPLEX128 0x18005u
#define BPS_BOOL 0x10806u

/* Reductions. A result is a left fold over the contributors in rank order, or, where groups are configured, over the
 * groups of the folds within; 16-bit floats accumulate in float32 with one rounding per level. AVERAGE is the sum
 * divided by the number of contributors: true division for floats, rounded towards minus infinity for integers.
 * Integer sums and products wrap. MIN and MAX propagate NaN. The sum of bools is their "or", the product their "and".
 * INVALID_ARGUMENT, because it has no meaning: MIN and MAX of complex numbers, the AVERAGE of bools, bitwise operations
 * on anything but integers and bools. */
#define BPS_SUM 0
#define BPS_AVERAGE 1
#define BPS_MIN 2
#define BPS_MAX 3
#define BPS_PRODUCT 4
/* Since 1.2. */
#define BPS_BIT_AND 5
#define BPS_BIT_OR 6
#define BPS_BIT_XOR 7
/* Since 1.3. Of ALL_REDUCE (below) alone, of floating-point numbers: gradients of like directions count once, others
 * add up. a and b become (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b; ranks are combined with their neighbours, pairs
 * with pairs, and so on, in float64, rounded once. */
#define BPS_ADASUM 8

/* Where memory lives; numerically DLPack's DLDeviceType. 0 means BPS_CPU. Others are UNIMPLEMENTED, but since 1.3 in
 * bps_push_pull, bps_broadcast and bps_collective; see "Device memory". */
#define BPS_CPU 1
#define BPS_CUDA 2      /* of a GPU; its id is the number by which the process knows it */
#define BPS_CUDA_HOST 3 /* of the host, pinned; its id is that of the GPU whose stream orders it */

/* How the rounds of a tensor meet. ASYNCHRONOUS (since 1.3; UNIMPLEMENTED before): the servers keep a value, zeros at
 * first; a push_pull (BPS_SUM alone) adds its input to it and gets the value at that time, without waiting for other
 * ranks (but see BYTEPS_STALENESS). Only in a job with servers in which BYTEPS_ENABLE_ASYNC is 1 everywhere. */
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
  int32_t has_place;       /* 1: the next five fields are set; 0: taken from the environment */
  int32_t host_index;      /* index of this host among the worker hosts, 0.. (DMLC_WORKER_ID) */
  int32_t num_hosts;       /* worker hosts (DMLC_NUM_WORKER) */
  int32_t local_rank;      /* index of this worker on its host, 0.. (BYTEPS_LOCAL_RANK) */
  int32_t local_size;      /* workers on this host (BYTEPS_LOCAL_SIZE) */
  int32_t num_servers;     /* with has_place = 1: servers of the job (DMLC_NUM_SERVER) */
  int32_t log_level;       /* least level that reaches the sink, plus one; 0: BYTEPS_LOG_LEVEL */
  int64_t timeout_ms;      /* until all have arrived; 0: BYTEPS_START_TIMEOUT */
  bps_log_fn log;          /* NULL: stderr */
  void* log_user;
} bps_open_args;
#define BPS_OPEN_ARGS_INIT BPS_INIT(bps_open_args)
BPS_INIT_FUNCTION(bps_open_args)

/* Opens a session: loads the plugins, registers with the coordinator and waits until all workers and servers of the
 * job are there. One worker alone (one host, local size 1, BYTEPS_FORCE_DISTRIBUTED unset) needs neither coordinator
 * nor server. Call bps_open; the versioned function exists for callers without a C compiler, which pass the
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
#define BPS_INFO_INIT BPS_INIT(bps_info)
BPS_INIT_FUNCTION(bps_info)
BPS_API bps_status* bps_session_info(const bps_session* session, bps_info* info) BPS_NOEXCEPT;

/* The transport and the scheduler in use, as text for people: a line or a few, valid until bps_close. */
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
  int32_t mode;      /* BPS_MODE_SYNCHRONOUS or BPS_MODE_ASYNCHRONOUS */
  int32_t staleness; /* 0; the bound of the whole job is BYTEPS_STALENESS */
} bps_declare_args;
#define BPS_DECLARE_ARGS_INIT BPS_INIT(bps_declare_args)
BPS_INIT_FUNCTION(bps_declare_args)

/* Declares a tensor; does not block and sends nothing before it returns. The same name, dtype and shape give the same
 * handle again; the same name with another dtype or shape gives a new one, and the old one stays valid.
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
/* Since 1.3, between ACTIVE and DONE, of an output in device memory: the result's copies are in a stream. A stream that
 * waits for them (bps_wait_on_stream) sees the result; the host may go on, and submit the tensor again. */
#define BPS_REQUEST_ENQUEUED 5

/* The state of `request` now, as a number and as its name in lower case (static storage). */
BPS_API int32_t bps_request_state(const bps_request* request) BPS_NOEXCEPT;
BPS_API const char* bps_request_state_name(int32_t state) BPS_NOEXCEPT;

/* Runs exactly once per accepted operation, on a library thread (or on the thread of a caller inside bps_wait, or as
 * done_in_call of bps_push_pull_args says). Owns `error` (NULL: success). Must not block. It has returned before
 * bps_wait on the request returns. */
typedef void (*bps_done_fn)(void* user, bps_status* error);

/* Waits until the request has ended, at most timeout_ms (0: the operation's own deadline and no more). Returns the
 * operation's error (a copy each time), or DEADLINE_EXCEEDED when the wait ended first: the operation goes on. */
BPS_API bps_status* bps_wait(bps_request* request, int64_t timeout_ms) BPS_NOEXCEPT;

/* Writes 1 to *done if the request has ended, else 0. Never blocks; does not return the operation's error. */
BPS_API bps_status* bps_test(bps_request* request, int32_t* done) BPS_NOEXCEPT;

/* Asks to give up. The operation then ends with CANCELLED here, and with ABORTED naming this rank on the others, unless
 * it was already complete. When the request has ended, the library touches neither input nor output any more. */
BPS_API bps_status* bps_cancel(bps_request* request) BPS_NOEXCEPT;

/* What an operation has brought (since 1.2). Filled up to the caller's struct_size; pointers are valid until
 * bps_request_free. */
typedef struct bps_result {
  size_t struct_size;
  void* data;           /* the caller's output, or the library's memory (aligned to 64); NULL: no bytes */
  uint64_t bytes;       /* at data */
  const int64_t* shape; /* ndim entries, of data */
  /* num_splits entries, by the ranks of the set. All-gather, gather, all-to-all, scatter: rows of data that came from
   * each; reduce-scatter: rows that went to each; else NULL. */
  const int64_t* splits;
  int32_t ndim;
  int32_t num_splits;
} bps_result;
#define BPS_RESULT_INIT BPS_INIT(bps_result)
BPS_INIT_FUNCTION(bps_result)

/* Writes what the request's operation has brought, `index` counting the operations of bps_group from 0 (else 0).
 * FAILED_PRECONDITION: it has not ended (since 1.3: nor is it ENQUEUED), or not well, or it is no collective. (Since
 * 1.2.) */
BPS_API bps_status* bps_request_result(const bps_request* request, int32_t index, bps_result* result) BPS_NOEXCEPT;

/* Frees the handle; the operation itself goes on if it has not ended. NULL is allowed. May outlive bps_close. */
BPS_API void bps_request_free(bps_request* request) BPS_NOEXCEPT;

/* ---- Operations ------------------------------------------------------------------------------------------------- */

typedef struct bps_push_pull_args {
  size_t struct_size;
  const bps_ext* ext;
  bps_tensor* tensor;
  const void* input;        /* must not change until the operation has ended */
  void* output;             /* may equal input, else must not overlap it; unspecified until the operation has ended.
                             * While it runs, no other operation may have this memory as output, and none that has not
                             * ended as input: this is not checked, and what is there then is unspecified */
  int64_t priority;         /* larger is sooner */
  int32_t op;               /* BPS_SUM, ... */
  int32_t input_device;     /* 0: BPS_CPU */
  int32_t input_device_id;  /* of BPS_CPU: 0 */
  int32_t output_device;    /* 0: BPS_CPU */
  int32_t output_device_id; /* of BPS_CPU: 0 */
  int32_t reserved;         /* 0 */
  int64_t timeout_ms;       /* of the whole operation; 0: BYTEPS_OP_TIMEOUT */
  bps_done_fn done;         /* NULL: none */
  void* user;
  /* Since 1.3. 1: `done` may also run inside of a call of any function on this session, this one included, on the
   * caller's thread. It does where that saves waking a thread, and not while the caller is inside a callback. */
  int32_t done_in_call;
  int32_t reserved2; /* 0 */
} bps_push_pull_args;
#define BPS_PUSH_PULL_ARGS_INIT BPS_INIT(bps_push_pull_args)
BPS_INIT_FUNCTION(bps_push_pull_args)

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
  int32_t done_in_call; /* see bps_push_pull_args */
  int32_t reserved2;    /* 0 */
} bps_broadcast_args;
#define BPS_BROADCAST_ARGS_INIT BPS_INIT(bps_broadcast_args)
BPS_INIT_FUNCTION(bps_broadcast_args)

/* Starts the copy of the root's `input` into every rank's `output`. Otherwise as bps_push_pull. */
BPS_API bps_status* bps_broadcast(bps_session* session, const bps_broadcast_args* args,
                                  bps_request** request) BPS_NOEXCEPT;

typedef struct bps_barrier_args {
  size_t struct_size;
  const bps_ext* ext;
  const char* name;   /* barriers of different names do not meet; NULL: "" */
  int64_t timeout_ms; /* 0: BYTEPS_OP_TIMEOUT */
} bps_barrier_args;
#define BPS_BARRIER_ARGS_INIT BPS_INIT(bps_barrier_args)
BPS_INIT_FUNCTION(bps_barrier_args)

/* Blocks until all workers have called it as often as this one has (per name). It does not wait for operations in
 * flight. Errors: DEADLINE_EXCEEDED (names the missing ranks), UNAVAILABLE. */
BPS_API bps_status* bps_barrier(bps_session* session, const bps_barrier_args* args) BPS_NOEXCEPT;

/* ---- Process sets (since 1.2) ----------------------------------------------------------------------------------- */

/* A subset of the ranks, for collectives of its own. A set is its ranks and its name: sets of the same ones on
 * different ranks are the same set, and sets that differ in either do not meet. None is asked and nothing is sent, so
 * every rank may make any set at any time; operations need only be submitted by the ranks that are in it. */
typedef struct bps_process_set bps_process_set;

typedef struct bps_process_set_args {
  size_t struct_size;
  const bps_ext* ext;
  const char* name;     /* NULL: "" */
  const int32_t* ranks; /* num_ranks ranks of the job, each once, in any order; a set's ranks are in ascending order */
  int32_t num_ranks;    /* at least 1 */
  int32_t reserved;     /* 0 */
} bps_process_set_args;
#define BPS_PROCESS_SET_ARGS_INIT BPS_INIT(bps_process_set_args)
BPS_INIT_FUNCTION(bps_process_set_args)

/* Makes a set; does not block. The caller frees it; it outlives bps_close. Errors: INVALID_ARGUMENT (no ranks, a rank
 * twice, a rank that the job does not have). */
BPS_API bps_status* bps_process_set_create(bps_session* session, const bps_process_set_args* args,
                                           bps_process_set** set) BPS_NOEXCEPT;

/* Frees a set; NULL is allowed. FAILED_PRECONDITION while an operation of this rank that has not ended uses it: then
 * the set is as it was. */
BPS_API bps_status* bps_process_set_free(bps_process_set* set) BPS_NOEXCEPT;

/* ---- Collectives (since 1.2) ------------------------------------------------------------------------------------ */

/* Kinds of operations. "Rows" are what the first dimension counts; a scalar is one row. Ranks are those of the job. */
#define BPS_ALL_REDUCE 0 /* the reduction of all inputs, to all. Of all ranks as bps_push_pull, or the cheaper way */
#define BPS_BROADCAST 1  /* the root's input, to all. Of all ranks as bps_broadcast, or the cheaper way */
#define BPS_ALL_GATHER 2 /* all inputs, one behind the other by rank, to all; rows may differ */
#define BPS_REDUCE_SCATTER \
  3                      /* of the reduction of all inputs to each rank its rows: splits, else as even as possible */
#define BPS_ALL_TO_ALL 4 /* from each to each rank its rows: splits, else equal ones */
#define BPS_REDUCE 5     /* the reduction of all inputs, to the root */
#define BPS_GATHER 6     /* all inputs, one behind the other by rank, to the root; rows may differ */
#define BPS_SCATTER 7    /* from the root's input to each rank its rows: the root's splits, else as even as possible */
#define BPS_SEND 8       /* the input, to a peer that asks for BPS_RECEIVE of the same tag */
#define BPS_RECEIVE 9
#define BPS_BARRIER 10 /* nothing; ends when all have come */

typedef struct bps_collective_args {
  size_t struct_size;
  const bps_ext* ext;
  const char* name; /* operations of the same set and name meet. Ignored by SEND and RECEIVE, which meet by ranks and
                         * tag, in the order of their submission */
  bps_process_set* set;  /* NULL: all ranks */
  const void* input;     /* where the kind takes one from this rank; must not change until the operation has ended */
  void* output;          /* where this rank gets one; NULL: the library's memory, on the host, see bps_request_result.
                         * ALL_REDUCE, BROADCAST and REDUCE: may equal input; else input and output must not overlap */
  uint64_t output_bytes; /* at output; may be more than what comes */
  const int64_t* shape;  /* ndim entries, each >= 0: of the input; of BROADCAST also where there is none. SCATTER: the
                          * first counts on the root only. RECEIVE: the sender's; without output the first does not
                          * count */
  const int64_t* splits; /* num_splits rows for each rank of the set, which add up; NULL: see the kinds. REDUCE_SCATTER:
                          * equal on all ranks. SCATTER: of the root */
  int64_t tag;           /* SEND, RECEIVE */
  int64_t priority;      /* larger is sooner */
  int64_t timeout_ms;    /* of the whole operation; 0: BYTEPS_OP_TIMEOUT */
  double prescale;       /* with scaled = 1, of reductions: inputs are multiplied by it first, */
  double postscale;      /* and the result by this; each rounds once to dtype, integers towards zero, kept in range */
  bps_done_fn done;      /* NULL: none */
  void* user;
  int32_t kind; /* BPS_ALL_REDUCE, ... */
  int32_t ndim; /* 0 .. 64 */
  uint32_t dtype;
  int32_t op; /* reductions: BPS_SUM, ... */
  int32_t num_splits;
  int32_t root;         /* BROADCAST, REDUCE, GATHER, SCATTER: a rank of the job that is in the set */
  int32_t peer;         /* SEND: to; RECEIVE: from; not this rank */
  int32_t scaled;       /* 1: prescale and postscale are set */
  int32_t input_device; /* 0 or BPS_CPU; since 1.3 also BPS_CUDA and BPS_CUDA_HOST */
  int32_t input_device_id;
  int32_t output_device; /* likewise; with an output of NULL 0 or BPS_CPU */
  int32_t output_device_id;
} bps_collective_args;
#define BPS_COLLECTIVE_ARGS_INIT BPS_INIT(bps_collective_args)
BPS_INIT_FUNCTION(bps_collective_args)

/* Starts an operation among the ranks of a set; does not block. No order is required: operations of different names may
 * be submitted in any order on any rank. Of all ranks, names are those of tensors: a rank has one operation of a name
 * in flight, also of bps_push_pull and bps_broadcast, and ranks that give one name to functions that go different ways
 * (docs/collectives.md) disagree. Results have the bits of a fold in rank order (docs/determinism.md), whichever
 * way the bytes go. `request` as with bps_push_pull.
 * Errors of the call: INVALID_ARGUMENT (also: this rank, the root or the peer is not in the set; splits that do not add
 * up); ALREADY_EXISTS (an operation of this set and name is in flight on this rank); FAILED_PRECONDITION; UNIMPLEMENTED
 * (device).
 * Errors of the operation: FAILED_PRECONDITION (the ranks disagree on kind, dtype, shape, op, root, splits or scaling:
 * every rank gets it, naming the ranks and what each asks; the session stays usable); INVALID_ARGUMENT (an output is
 * too small: every rank gets it); DEADLINE_EXCEEDED (names the ranks that did not submit); UNAVAILABLE (a member died:
 * fatal); CANCELLED; ABORTED (another rank gave up). */
BPS_API bps_status* bps_collective(bps_session* session, const bps_collective_args* args,
                                   bps_request** request) BPS_NOEXCEPT;

typedef struct bps_group_args {
  size_t struct_size;
  const bps_ext* ext;
  const bps_collective_args* const* operations; /* num_operations; their `done` and `user` must be NULL */
  int32_t num_operations;                       /* at least 1 */
  int32_t reserved;                             /* 0 */
  bps_done_fn done;                             /* when all have ended; NULL: none */
  void* user;
} bps_group_args;
#define BPS_GROUP_ARGS_INIT BPS_INIT(bps_group_args)
BPS_INIT_FUNCTION(bps_group_args)

/* Starts several operations as one, all or nothing: the request ends when all of them have, and if one fails, the
 * others are given up and the request has its error. Groups meet only groups of as many operations. If the call fails,
 * none was accepted. */
BPS_API bps_status* bps_group(bps_session* session, const bps_group_args* args, bps_request** request) BPS_NOEXCEPT;

/* ---- Memory (since 1.1) ----------------------------------------------------------------------------------------- */

/* Memory for tensors, of the kind that the library moves fastest (huge pages where there are such). Operations take any
 * memory; a buffer that is used again at every step is faster, and costs page faults only once. */
typedef struct bps_buffer bps_buffer;

typedef struct bps_buffer_args {
  size_t struct_size;
  const bps_ext* ext;
  size_t size;       /* bytes; 0 is allowed */
  int32_t device;    /* 0 or BPS_CPU; since 1.3 also BPS_CUDA_HOST (pinned) and BPS_CUDA */
  int32_t device_id; /* of which GPU, or which GPU pins it (any may use it then); of BPS_CPU: 0 */
} bps_buffer_args;
#define BPS_BUFFER_ARGS_INIT BPS_INIT(bps_buffer_args)
BPS_INIT_FUNCTION(bps_buffer_args)

/* Makes a buffer. Its bytes are zero; it begins at a multiple of a page, from 2 MiB on at a multiple of 2 MiB. The
 * caller frees it; it stays valid until then, also behind bps_close. Operations may use any part of it as input or
 * output. Memory of a GPU is aligned as its driver does it (256 bytes or more), and the host waits until it is zero.
 * Errors: RESOURCE_EXHAUSTED (memory, also of the GPU, or pinned); UNIMPLEMENTED (device); of BPS_CUDA and
 * BPS_CUDA_HOST also INVALID_ARGUMENT (no such GPU), NOT_FOUND and UNAVAILABLE (no plugin, no driver). */
BPS_API bps_status* bps_buffer_alloc(bps_session* session, const bps_buffer_args* args,
                                     bps_buffer** buffer) BPS_NOEXCEPT;

/* The first byte of `buffer`; NULL for NULL. */
BPS_API void* bps_buffer_data(const bps_buffer* buffer) BPS_NOEXCEPT;

/* Frees `buffer`; NULL is allowed. FAILED_PRECONDITION while an operation that has not ended uses a part of it: then
 * the buffer is as it was. Inside the operation's callback it has ended. Must not run beside a bps_push_pull or
 * bps_broadcast that is being called with this memory. Of BPS_CUDA and BPS_CUDA_HOST the GPU is waited for. */
BPS_API bps_status* bps_buffer_free(bps_buffer* buffer) BPS_NOEXCEPT;

/* ---- Join (since 1.3) ------------------------------------------------------------------------------------------- */

typedef struct bps_join_args {
  size_t struct_size;
  const bps_ext* ext;
  int32_t* last_rank; /* receives the rank that joined last, the same on all ranks; valid until the request has ended;
                       * NULL: not wanted */
  int64_t timeout_ms; /* since the last operation that another rank has submitted; 0: BYTEPS_OP_TIMEOUT */
  bps_done_fn done;   /* NULL: none */
  void* user;
} bps_join_args;
#define BPS_JOIN_ARGS_INIT BPS_INIT(bps_join_args)
BPS_INIT_FUNCTION(bps_join_args)

/* Says that this rank has no data left. Until all ranks have said so it counts as zeros in what the others submit, also
 * in tensors that it never declared, and averages divide by all ranks as ever; it submits nothing itself. The request
 * ends when all ranks have joined; then all may go on, and join again later. Operations that have no result with
 * zeros fail with FAILED_PRECONDITION on every rank while one has joined: BPS_MIN, BPS_MAX, BPS_PRODUCT, BPS_BIT_AND,
 * all that only moves bytes (broadcast, all-gather, all-to-all, gather, scatter, send, receive), and bps_barrier.
 * Errors of the call: ALREADY_EXISTS (a join of this rank has not ended); INVALID_ARGUMENT; FAILED_PRECONDITION.
 * Errors of the request: DEADLINE_EXCEEDED (names the ranks that have not joined; this rank stays joined, and may join
 * again to wait on); CANCELLED (likewise); UNAVAILABLE (a member died: fatal). */
BPS_API bps_status* bps_join(bps_session* session, const bps_join_args* args, bps_request** request) BPS_NOEXCEPT;

/* ---- Device memory (since 1.3) ---------------------------------------------------------------------------------- */

/* Input and output of bps_push_pull, bps_broadcast, bps_collective and of what is in a bps_group may lie in the memory
 * of a GPU (BPS_CUDA; both on the same one, or one of them on the host) or in pinned memory (BPS_CUDA_HOST). The
 * library reads the input behind what its stream holds at the call, and writes the output behind what the output's
 * stream holds. No host thread waits: the result is in a stream when the request is ENQUEUED, and there when it is
 * DONE. Until then the library holds input and output, also when the request is freed. Operations keep their order,
 * those of messages of one tag, too, whichever stream gets there first. bps_request_result tells of a collective that
 * is ENQUEUED or DONE how much of the output it fills. An output that is NULL is on the host, whose device is 0 or
 * BPS_CPU; the root of a broadcast has input and output on the same device, so it must give an output where its input
 * is a GPU's. A group is ENQUEUED when each of its operations is, or has ended; they may be of several streams or GPUs.
 * The plugin of BYTEPS_DEVICE is loaded by the first such call. Errors of the call, besides those of the operation:
 * NOT_FOUND, UNAVAILABLE (no plugin, no driver, no GPU: the message says which), INVALID_ARGUMENT (the memory or the
 * stream is not of that GPU), FAILED_PRECONDITION (a stream is being captured into a graph), RESOURCE_EXHAUSTED (pinned
 * memory). Of the operation: DATA_LOSS (the GPU's context is lost). */

#define BPS_EXT_STREAMS 1u /* bps_streams, of bps_push_pull_args, bps_broadcast_args and bps_collective_args */

/* Streams of the caller: CUstream or cudaStream_t; NULL, or no such extension: the legacy default stream. */
typedef struct bps_streams {
  bps_ext ext;          /* by BPS_STREAMS_INIT */
  void* input;          /* of the input's GPU: what it holds at the call is done before the input is read */
  void* output;         /* of the output's GPU: likewise before it is written; it waits for the result by itself */
  int32_t output_later; /* 1: `output` does not wait; bps_wait_on_stream names the streams that do */
  int32_t reserved;     /* 0 */
} bps_streams;
#define BPS_STREAMS_INIT BPS_EXT_INIT(bps_streams, BPS_EXT_STREAMS)
BPS_EXT_INIT_FUNCTION(bps_streams, BPS_EXT_STREAMS)

#define BPS_EXT_CAST 2u /* bps_cast, of bps_push_pull_args */

/* Half of the bytes on the bus, in pinned memory and on the wire: input and output hold elements of `dtype`, and not of
 * the tensor's own data type, and the GPU casts them on their way to the host and back, rounding to nearest even. The
 * tensor is FLOAT16 or BFLOAT16, and so it is to all other ranks; `dtype` is FLOAT32, or the tensor's own. Input and
 * output are both in the memory of a GPU. Errors: INVALID_ARGUMENT; UNIMPLEMENTED (memory of the host; a device plugin
 * that is built without its kernels). */
typedef struct bps_cast {
  bps_ext ext; /* by BPS_CAST_INIT */
  uint32_t dtype;
  uint32_t reserved; /* 0 */
} bps_cast;
#define BPS_CAST_INIT BPS_EXT_INIT(bps_cast, BPS_EXT_CAST)
BPS_EXT_INIT_FUNCTION(bps_cast, BPS_EXT_CAST)

/* Waits on the host until the request is ENQUEUED or has ended, at most timeout_ms (0: as bps_wait), then makes
 * `stream`, of the output's GPU, wait for the result; of a group, for all results that are in memory of a GPU. Returns
 * the operation's error if it has failed. Of an output on the host it is bps_wait. May be called for several streams. A
 * stream that is being captured: FAILED_PRECONDITION. */
BPS_API bps_status* bps_wait_on_stream(bps_request* request, void* stream, int64_t timeout_ms) BPS_NOEXCEPT;

/* ---- Rounds that are given up (since 1.3) ----------------------------------------------------------------------- */

#define BPS_EXT_GIVE_UP 3u /* bps_give_up, of the arguments of every operation but bps_group_args */

/* The operations of a name meet round by round: the first ones of all ranks, the second ones, and so on. With this, a
 * rank uses the next round up without taking part, so that its later ones meet those of the others again: a training
 * step that ended half-way submits so what it did not come to. The request ends with CANCELLED here, and the operation
 * with ABORTED, naming this rank and the reason, on the others (FAILED_PRECONDITION where the ranks disagree on what it
 * is). Input, output, streams and the rows of a sparse one are not looked at, and may be NULL.
 * It is never ALREADY_EXISTS: where an operation of the name is in flight on this rank, the round is the one behind it,
 * and others of this name are ALREADY_EXISTS until it has ended. Errors of the call, besides: INVALID_ARGUMENT (the
 * tensor is asynchronous: no rank waits for another). */
typedef struct bps_give_up {
  bps_ext ext;        /* by BPS_GIVE_UP_INIT */
  const char* reason; /* for people; NULL: "given up by its caller" */
} bps_give_up;
#define BPS_GIVE_UP_INIT BPS_EXT_INIT(bps_give_up, BPS_EXT_GIVE_UP)
BPS_EXT_INIT_FUNCTION(bps_give_up, BPS_EXT_GIVE_UP)

/* ---- Numbers that must agree (since 1.3) ------------------------------------------------------------------------ */

#define BPS_EXT_MATCH 4u /* bps_match, of the arguments of every operation but bps_group_args */

/* What the caller knows of a round, such as the number of a step or of an iteration: the ranks compare it, as they do
 * data type and shape. An operation that meets one of another number ends with FAILED_PRECONDITION on all ranks,
 * instead of reducing what does not belong together. Errors of the call, besides: INVALID_ARGUMENT (the tensor is
 * asynchronous: no rank waits for another). */
typedef struct bps_match {
  bps_ext ext;     /* by BPS_MATCH_INIT */
  uint64_t number; /* 0: none, as without this extension; it differs from all others */
} bps_match;
#define BPS_MATCH_INIT BPS_EXT_INIT(bps_match, BPS_EXT_MATCH)
BPS_EXT_INIT_FUNCTION(bps_match, BPS_EXT_MATCH)

/* ---- Sparse all-reduce (since 1.3) ------------------------------------------------------------------------------ */

typedef struct bps_sparse_args {
  size_t struct_size;
  const bps_ext* ext;
  const char* name;     /* as of bps_collective_args, and so are the sets */
  bps_process_set* set; /* NULL: all ranks */
  /* num_rows numbers of rows, 0 .. shape[0] - 1, in any order; rows that are named several times are added up. Read
   * before the call returns, and so are the values. */
  const int64_t* indices;
  const void* values;   /* num_rows rows: elements of shape without its first extent, row-major */
  int64_t num_rows;     /* may differ between ranks; 0 is allowed */
  const int64_t* shape; /* ndim entries, each >= 0: of the whole tensor */
  int64_t priority;
  int64_t timeout_ms; /* of the whole operation; 0: BYTEPS_OP_TIMEOUT */
  bps_done_fn done;   /* NULL: none */
  void* user;
  int32_t ndim; /* 1 .. 64 */
  uint32_t dtype;
  int32_t op;       /* BPS_SUM or BPS_AVERAGE, which divides by the number of ranks of the set */
  int32_t reserved; /* 0 */
} bps_sparse_args;
#define BPS_SPARSE_ARGS_INIT BPS_INIT(bps_sparse_args)
BPS_INIT_FUNCTION(bps_sparse_args)

/* Starts the reduction of tensors of which each rank has some rows, zeros elsewhere. bps_request_result then has the
 * rows that any rank has, in the order of their numbers, under index 0 (its first extent counts them), and their
 * numbers, int64, under index 1. Where the rows of all ranks take more bytes than the whole tensor there and back, the
 * whole tensor comes under index 0, and index 1 has no extents and no bytes. The bits are those of a reduction of whole
 * tensors, either way. Errors: as of bps_collective. */
BPS_API bps_status* bps_sparse_all_reduce(bps_session* session, const bps_sparse_args* args,
                                          bps_request** request) BPS_NOEXCEPT;

/* ---- Timeline (since 1.3) --------------------------------------------------------------------------------------- */

/* Writes what becomes of every operation that this rank submits from now on, stage by stage, as a file of Chrome's
 * trace events, which chrome://tracing and Perfetto show: docs/timeline.md. Rank 0 writes to `path`; rank 3 puts
 * ".rank3" before the extension. Folders are made, a file that is there is overwritten. The file grows while the job
 * runs; bps_timeline_stop and bps_close end it. BYTEPS_TRACE_ON and BYTEPS_TIMELINE start one when the session opens.
 * `flags`: 0, or BPS_TIMELINE_MARK_STEPS: a moment where the first operation goes into a round that none has gone into.
 * Errors: INVALID_ARGUMENT (it cannot be written: why; `flags`); FAILED_PRECONDITION (one is being written). */
#define BPS_TIMELINE_MARK_STEPS 1u
BPS_API bps_status* bps_timeline_start(bps_session* session, const char* path, uint32_t flags) BPS_NOEXCEPT;

/* Ends the file, waiting until it is written. What is in flight ends there, too.
 * Errors: FAILED_PRECONDITION (none is being written); UNAVAILABLE (not all of it could be written: why). */
BPS_API bps_status* bps_timeline_stop(bps_session* session) BPS_NOEXCEPT;

/* What the program does itself, on a row of the thread that calls: a moment, or a span, whose begin and end nest. */
#define BPS_TIMELINE_MOMENT 0
#define BPS_TIMELINE_BEGIN 1
#define BPS_TIMELINE_END 2 /* of the span that the thread has begun last; its name is ignored, and may be NULL */

/* Adds it to the timeline that is being written. Where there is none it costs next to nothing, and does nothing.
 * Errors: INVALID_ARGUMENT (`kind`; `name`: NULL, empty or not UTF-8). */
BPS_API bps_status* bps_timeline_mark(bps_session* session, const char* name, int32_t kind) BPS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* BYTEPS_ABI_BYTEPS_H_ */
