//! The C interface of BytePS, `byteps.h`, as Rust declarations. Its comments are the documentation of what is here; the
//! crate `byteps` is the safe interface.
//!
//! A struct's `Default` is its `..._INIT` macro.

#![allow(non_camel_case_types, non_snake_case)]

use std::mem::size_of;
use std::os::raw::{c_char, c_void};
use std::ptr;

pub const BPS_ABI_MAJOR: i32 = 1;
pub const BPS_ABI_MINOR: i32 = 3;

pub const BPS_OK: i32 = 0;
pub const BPS_CANCELLED: i32 = 1;
pub const BPS_UNKNOWN: i32 = 2;
pub const BPS_INVALID_ARGUMENT: i32 = 3;
pub const BPS_DEADLINE_EXCEEDED: i32 = 4;
pub const BPS_NOT_FOUND: i32 = 5;
pub const BPS_ALREADY_EXISTS: i32 = 6;
pub const BPS_PERMISSION_DENIED: i32 = 7;
pub const BPS_RESOURCE_EXHAUSTED: i32 = 8;
pub const BPS_FAILED_PRECONDITION: i32 = 9;
pub const BPS_ABORTED: i32 = 10;
pub const BPS_OUT_OF_RANGE: i32 = 11;
pub const BPS_UNIMPLEMENTED: i32 = 12;
pub const BPS_INTERNAL: i32 = 13;
pub const BPS_UNAVAILABLE: i32 = 14;
pub const BPS_DATA_LOSS: i32 = 15;
pub const BPS_UNAUTHENTICATED: i32 = 16;

pub const BPS_EXT_IGNORABLE: u32 = 1;
pub const BPS_EXT_STREAMS: u32 = 1;
pub const BPS_EXT_CAST: u32 = 2;
pub const BPS_EXT_GIVE_UP: u32 = 3;
pub const BPS_EXT_MATCH: u32 = 4;

/// A data type: DLPack's code and bits, one lane.
pub const fn BPS_DTYPE(code: u32, bits: u32) -> u32 {
    code | bits << 8 | 1 << 16
}
pub const BPS_INT8: u32 = BPS_DTYPE(0, 8);
pub const BPS_INT16: u32 = BPS_DTYPE(0, 16);
pub const BPS_INT32: u32 = BPS_DTYPE(0, 32);
pub const BPS_INT64: u32 = BPS_DTYPE(0, 64);
pub const BPS_UINT8: u32 = BPS_DTYPE(1, 8);
pub const BPS_FLOAT16: u32 = BPS_DTYPE(2, 16);
pub const BPS_FLOAT32: u32 = BPS_DTYPE(2, 32);
pub const BPS_FLOAT64: u32 = BPS_DTYPE(2, 64);
pub const BPS_BFLOAT16: u32 = BPS_DTYPE(4, 16);
pub const BPS_COMPLEX64: u32 = BPS_DTYPE(5, 64);
pub const BPS_COMPLEX128: u32 = BPS_DTYPE(5, 128);
pub const BPS_BOOL: u32 = BPS_DTYPE(6, 8);

pub const BPS_SUM: i32 = 0;
pub const BPS_AVERAGE: i32 = 1;
pub const BPS_MIN: i32 = 2;
pub const BPS_MAX: i32 = 3;
pub const BPS_PRODUCT: i32 = 4;
pub const BPS_BIT_AND: i32 = 5;
pub const BPS_BIT_OR: i32 = 6;
pub const BPS_BIT_XOR: i32 = 7;
pub const BPS_ADASUM: i32 = 8;

pub const BPS_CPU: i32 = 1;
pub const BPS_CUDA: i32 = 2;
pub const BPS_CUDA_HOST: i32 = 3;

pub const BPS_MODE_SYNCHRONOUS: i32 = 0;
pub const BPS_MODE_ASYNCHRONOUS: i32 = 1;

pub const BPS_LOG_TRACE: i32 = 0;
pub const BPS_LOG_DEBUG: i32 = 1;
pub const BPS_LOG_INFO: i32 = 2;
pub const BPS_LOG_WARNING: i32 = 3;
pub const BPS_LOG_ERROR: i32 = 4;

pub const BPS_REQUEST_DECLARING: i32 = 0;
pub const BPS_REQUEST_QUEUED: i32 = 1;
pub const BPS_REQUEST_ACTIVE: i32 = 2;
pub const BPS_REQUEST_DONE: i32 = 3;
pub const BPS_REQUEST_FAILED: i32 = 4;
pub const BPS_REQUEST_ENQUEUED: i32 = 5;

pub const BPS_TIMELINE_MARK_STEPS: u32 = 1;
pub const BPS_TIMELINE_MOMENT: i32 = 0;
pub const BPS_TIMELINE_BEGIN: i32 = 1;
pub const BPS_TIMELINE_END: i32 = 2;

pub const BPS_ALL_REDUCE: i32 = 0;
pub const BPS_BROADCAST: i32 = 1;
pub const BPS_ALL_GATHER: i32 = 2;
pub const BPS_REDUCE_SCATTER: i32 = 3;
pub const BPS_ALL_TO_ALL: i32 = 4;
pub const BPS_REDUCE: i32 = 5;
pub const BPS_GATHER: i32 = 6;
pub const BPS_SCATTER: i32 = 7;
pub const BPS_SEND: i32 = 8;
pub const BPS_RECEIVE: i32 = 9;
pub const BPS_BARRIER: i32 = 10;

macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
            // Neither Send, Sync nor Unpin by itself: what is behind it is the library's.
            _marker: std::marker::PhantomData<(*mut u8, std::marker::PhantomPinned)>,
        }
    )*};
}
opaque!(bps_status bps_session bps_tensor bps_request bps_buffer bps_process_set);

pub type bps_log_fn =
    unsafe extern "C" fn(user: *mut c_void, level: i32, file: *const c_char, line: i32, message: *const c_char);
pub type bps_done_fn = unsafe extern "C" fn(user: *mut c_void, error: *mut bps_status);

/// Declares a struct of the interface; `Default` is its INIT macro.
macro_rules! args {
    ($name:ident { $($field:ident: $type:ty = $zero:expr,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            pub struct_size: usize,
            $(pub $field: $type,)*
        }
        impl Default for $name {
            fn default() -> Self {
                $name { struct_size: size_of::<$name>(), $($field: $zero,)* }
            }
        }
    };
}

args!(bps_ext {
    type_: u32 = 0,
    flags: u32 = 0,
    next: *const bps_ext = ptr::null(),
});

args!(bps_open_args {
    ext: *const bps_ext = ptr::null(),
    coordinator: *const c_char = ptr::null(),
    job: *const c_char = ptr::null(),
    name: *const c_char = ptr::null(),
    token: *const c_char = ptr::null(),
    host: *const c_char = ptr::null(),
    transport: *const c_char = ptr::null(),
    scheduler: *const c_char = ptr::null(),
    has_place: i32 = 0,
    host_index: i32 = 0,
    num_hosts: i32 = 0,
    local_rank: i32 = 0,
    local_size: i32 = 0,
    num_servers: i32 = 0,
    log_level: i32 = 0,
    timeout_ms: i64 = 0,
    log: Option<bps_log_fn> = None,
    log_user: *mut c_void = ptr::null_mut(),
});

args!(bps_info {
    rank: i32 = 0,
    size: i32 = 0,
    local_rank: i32 = 0,
    local_size: i32 = 0,
    num_servers: i32 = 0,
    failed: i32 = 0,
    epoch: u64 = 0,
    generation: u64 = 0,
    shared_buffers: i32 = 0,
    reserved: i32 = 0,
});

args!(bps_declare_args {
    ext: *const bps_ext = ptr::null(),
    name: *const c_char = ptr::null(),
    shape: *const i64 = ptr::null(),
    ndim: i32 = 0,
    dtype: u32 = 0,
    mode: i32 = 0,
    staleness: i32 = 0,
});

args!(bps_push_pull_args {
    ext: *const bps_ext = ptr::null(),
    tensor: *mut bps_tensor = ptr::null_mut(),
    input: *const c_void = ptr::null(),
    output: *mut c_void = ptr::null_mut(),
    priority: i64 = 0,
    op: i32 = 0,
    input_device: i32 = 0,
    input_device_id: i32 = 0,
    output_device: i32 = 0,
    output_device_id: i32 = 0,
    reserved: i32 = 0,
    timeout_ms: i64 = 0,
    done: Option<bps_done_fn> = None,
    user: *mut c_void = ptr::null_mut(),
    done_in_call: i32 = 0,
    reserved2: i32 = 0,
});

args!(bps_broadcast_args {
    ext: *const bps_ext = ptr::null(),
    tensor: *mut bps_tensor = ptr::null_mut(),
    input: *const c_void = ptr::null(),
    output: *mut c_void = ptr::null_mut(),
    priority: i64 = 0,
    root: i32 = 0,
    input_device: i32 = 0,
    input_device_id: i32 = 0,
    output_device: i32 = 0,
    output_device_id: i32 = 0,
    reserved: i32 = 0,
    timeout_ms: i64 = 0,
    done: Option<bps_done_fn> = None,
    user: *mut c_void = ptr::null_mut(),
    done_in_call: i32 = 0,
    reserved2: i32 = 0,
});

args!(bps_barrier_args {
    ext: *const bps_ext = ptr::null(),
    name: *const c_char = ptr::null(),
    timeout_ms: i64 = 0,
});

args!(bps_buffer_args {
    ext: *const bps_ext = ptr::null(),
    size: usize = 0,
    device: i32 = 0,
    device_id: i32 = 0,
});

args!(bps_result {
    data: *mut c_void = ptr::null_mut(),
    bytes: u64 = 0,
    shape: *const i64 = ptr::null(),
    splits: *const i64 = ptr::null(),
    ndim: i32 = 0,
    num_splits: i32 = 0,
});

args!(bps_process_set_args {
    ext: *const bps_ext = ptr::null(),
    name: *const c_char = ptr::null(),
    ranks: *const i32 = ptr::null(),
    num_ranks: i32 = 0,
    reserved: i32 = 0,
});

args!(bps_collective_args {
    ext: *const bps_ext = ptr::null(),
    name: *const c_char = ptr::null(),
    set: *mut bps_process_set = ptr::null_mut(),
    input: *const c_void = ptr::null(),
    output: *mut c_void = ptr::null_mut(),
    output_bytes: u64 = 0,
    shape: *const i64 = ptr::null(),
    splits: *const i64 = ptr::null(),
    tag: i64 = 0,
    priority: i64 = 0,
    timeout_ms: i64 = 0,
    prescale: f64 = 0.0,
    postscale: f64 = 0.0,
    done: Option<bps_done_fn> = None,
    user: *mut c_void = ptr::null_mut(),
    kind: i32 = 0,
    ndim: i32 = 0,
    dtype: u32 = 0,
    op: i32 = 0,
    num_splits: i32 = 0,
    root: i32 = 0,
    peer: i32 = 0,
    scaled: i32 = 0,
    input_device: i32 = 0,
    input_device_id: i32 = 0,
    output_device: i32 = 0,
    output_device_id: i32 = 0,
});

args!(bps_group_args {
    ext: *const bps_ext = ptr::null(),
    operations: *const *const bps_collective_args = ptr::null(),
    num_operations: i32 = 0,
    reserved: i32 = 0,
    done: Option<bps_done_fn> = None,
    user: *mut c_void = ptr::null_mut(),
});

args!(bps_join_args {
    ext: *const bps_ext = ptr::null(),
    last_rank: *mut i32 = ptr::null_mut(),
    timeout_ms: i64 = 0,
    done: Option<bps_done_fn> = None,
    user: *mut c_void = ptr::null_mut(),
});

args!(bps_sparse_args {
    ext: *const bps_ext = ptr::null(),
    name: *const c_char = ptr::null(),
    set: *mut bps_process_set = ptr::null_mut(),
    indices: *const i64 = ptr::null(),
    values: *const c_void = ptr::null(),
    num_rows: i64 = 0,
    shape: *const i64 = ptr::null(),
    priority: i64 = 0,
    timeout_ms: i64 = 0,
    done: Option<bps_done_fn> = None,
    user: *mut c_void = ptr::null_mut(),
    ndim: i32 = 0,
    dtype: u32 = 0,
    op: i32 = 0,
    reserved: i32 = 0,
});

/// Streams of a GPU: an extension, of which `ext` is the head.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bps_streams {
    pub ext: bps_ext,
    pub input: *mut c_void,
    pub output: *mut c_void,
    pub output_later: i32,
    pub reserved: i32,
}

impl Default for bps_streams {
    fn default() -> Self {
        bps_streams {
            ext: bps_ext { struct_size: size_of::<bps_streams>(), type_: BPS_EXT_STREAMS, ..Default::default() },
            input: ptr::null_mut(),
            output: ptr::null_mut(),
            output_later: 0,
            reserved: 0,
        }
    }
}

/// The data type of memory of a GPU that is cast to the tensor's: an extension, of which `ext` is the head.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bps_cast {
    pub ext: bps_ext,
    pub dtype: u32,
    pub reserved: u32,
}

impl Default for bps_cast {
    fn default() -> Self {
        bps_cast {
            ext: bps_ext { struct_size: size_of::<bps_cast>(), type_: BPS_EXT_CAST, ..Default::default() },
            dtype: 0,
            reserved: 0,
        }
    }
}

/// Uses a round up without taking part: an extension, of which `ext` is the head.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bps_give_up {
    pub ext: bps_ext,
    pub reason: *const c_char,
}

impl Default for bps_give_up {
    fn default() -> Self {
        bps_give_up {
            ext: bps_ext { struct_size: size_of::<bps_give_up>(), type_: BPS_EXT_GIVE_UP, ..Default::default() },
            reason: ptr::null(),
        }
    }
}

/// A number on which the ranks must agree: an extension, of which `ext` is the head.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bps_match {
    pub ext: bps_ext,
    pub number: u64,
}

impl Default for bps_match {
    fn default() -> Self {
        bps_match {
            ext: bps_ext { struct_size: size_of::<bps_match>(), type_: BPS_EXT_MATCH, ..Default::default() },
            number: 0,
        }
    }
}

extern "C" {
    pub fn bps_version(major: *mut i32, minor: *mut i32);
    pub fn bps_version_string() -> *const c_char;

    pub fn bps_status_code(status: *const bps_status) -> i32;
    pub fn bps_status_message(status: *const bps_status) -> *const c_char;
    pub fn bps_status_retryable(status: *const bps_status) -> i32;
    pub fn bps_status_free(status: *mut bps_status);

    pub fn bps_open_versioned(
        abi_major: i32,
        abi_minor: i32,
        args: *const bps_open_args,
        session: *mut *mut bps_session,
    ) -> *mut bps_status;
    pub fn bps_shutdown(session: *mut bps_session, timeout_ms: i64) -> *mut bps_status;
    pub fn bps_close(session: *mut bps_session) -> *mut bps_status;
    pub fn bps_session_info(session: *const bps_session, info: *mut bps_info) -> *mut bps_status;
    pub fn bps_transport_name(session: *const bps_session) -> *const c_char;
    pub fn bps_scheduler_name(session: *const bps_session) -> *const c_char;

    pub fn bps_declare(
        session: *mut bps_session,
        args: *const bps_declare_args,
        tensor: *mut *mut bps_tensor,
    ) -> *mut bps_status;

    pub fn bps_request_state(request: *const bps_request) -> i32;
    pub fn bps_request_state_name(state: i32) -> *const c_char;
    pub fn bps_wait(request: *mut bps_request, timeout_ms: i64) -> *mut bps_status;
    pub fn bps_test(request: *mut bps_request, done: *mut i32) -> *mut bps_status;
    pub fn bps_cancel(request: *mut bps_request) -> *mut bps_status;
    pub fn bps_request_free(request: *mut bps_request);

    pub fn bps_push_pull(
        session: *mut bps_session,
        args: *const bps_push_pull_args,
        request: *mut *mut bps_request,
    ) -> *mut bps_status;
    pub fn bps_broadcast(
        session: *mut bps_session,
        args: *const bps_broadcast_args,
        request: *mut *mut bps_request,
    ) -> *mut bps_status;
    pub fn bps_barrier(session: *mut bps_session, args: *const bps_barrier_args) -> *mut bps_status;

    pub fn bps_buffer_alloc(
        session: *mut bps_session,
        args: *const bps_buffer_args,
        buffer: *mut *mut bps_buffer,
    ) -> *mut bps_status;
    pub fn bps_buffer_data(buffer: *const bps_buffer) -> *mut c_void;
    pub fn bps_buffer_free(buffer: *mut bps_buffer) -> *mut bps_status;

    pub fn bps_request_result(request: *const bps_request, index: i32, result: *mut bps_result) -> *mut bps_status;
    pub fn bps_process_set_create(
        session: *mut bps_session,
        args: *const bps_process_set_args,
        set: *mut *mut bps_process_set,
    ) -> *mut bps_status;
    pub fn bps_process_set_free(set: *mut bps_process_set) -> *mut bps_status;
    pub fn bps_collective(
        session: *mut bps_session,
        args: *const bps_collective_args,
        request: *mut *mut bps_request,
    ) -> *mut bps_status;
    pub fn bps_group(
        session: *mut bps_session,
        args: *const bps_group_args,
        request: *mut *mut bps_request,
    ) -> *mut bps_status;
    pub fn bps_join(
        session: *mut bps_session,
        args: *const bps_join_args,
        request: *mut *mut bps_request,
    ) -> *mut bps_status;
    pub fn bps_sparse_all_reduce(
        session: *mut bps_session,
        args: *const bps_sparse_args,
        request: *mut *mut bps_request,
    ) -> *mut bps_status;
    pub fn bps_timeline_start(session: *mut bps_session, path: *const c_char, flags: u32) -> *mut bps_status;
    pub fn bps_timeline_stop(session: *mut bps_session) -> *mut bps_status;
    pub fn bps_timeline_mark(session: *mut bps_session, name: *const c_char, kind: i32) -> *mut bps_status;
    pub fn bps_wait_on_stream(request: *mut bps_request, stream: *mut c_void, timeout_ms: i64) -> *mut bps_status;
}

/// The inline `bps_open` of byteps.h.
///
/// # Safety
/// As `bps_open_versioned`.
pub unsafe fn bps_open(args: *const bps_open_args, session: *mut *mut bps_session) -> *mut bps_status {
    bps_open_versioned(BPS_ABI_MAJOR, BPS_ABI_MINOR, args, session)
}
