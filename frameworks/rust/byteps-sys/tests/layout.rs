//! The declarations against byteps.h itself, as the C compiler sees it: sizes, offsets, constants.

use byteps_sys::*;
use std::fmt::Write as _;
use std::mem::{size_of, MaybeUninit};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The header: of the installation that is linked, else of the source tree.
fn header() -> Option<(PathBuf, &'static str)> {
    let installed = std::env::var_os("BYTEPS_HOME").map(|home| Path::new(&home).join("include"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    for root in installed.into_iter().chain([source]) {
        for name in ["byteps.h", "byteps/byteps.h", "abi/byteps.h"] {
            if root.join(name).exists() {
                return Some((root, name));
            }
        }
    }
    None
}

/// What Rust and C each say, line by line.
#[derive(Default)]
struct Comparison {
    rust: String,
    c: String,
}

impl Comparison {
    fn constant(&mut self, name: &str, value: i64) {
        writeln!(self.rust, "{} {}", name, value).unwrap();
        writeln!(self.c, "  printf(\"{0} %lld\\n\", (long long)({0}));", name).unwrap();
    }

    fn size(&mut self, name: &str, size: usize) {
        writeln!(self.rust, "sizeof {} {}", name, size).unwrap();
        writeln!(self.c, "  printf(\"sizeof {0} %zu\\n\", sizeof({0}));", name).unwrap();
    }

    fn offset(&mut self, name: &str, field: &str, offset: usize) {
        let field = field.trim_end_matches('_');
        writeln!(self.rust, "offset {}.{} {}", name, field, offset).unwrap();
        writeln!(self.c, "  printf(\"offset {0}.{1} %zu\\n\", offsetof({0}, {1}));", name, field).unwrap();
    }
}

macro_rules! structs {
    ($comparison:ident: $($name:ident { $($field:ident)* })*) => {$(
        $comparison.size(stringify!($name), size_of::<$name>());
        assert_eq!($name::default().struct_size, size_of::<$name>());
        let place = MaybeUninit::<$name>::uninit();
        let base = place.as_ptr();
        $(
            let field = unsafe { std::ptr::addr_of!((*base).$field) };
            $comparison.offset(stringify!($name), stringify!($field), field as usize - base as usize);
        )*
        // Named one by one, so that a field that is missing above does not compile.
        let $name { struct_size: _, $($field: _),* } = $name::default();
    )*};
}

macro_rules! constants {
    ($comparison:ident: $($name:ident)*) => {$( $comparison.constant(stringify!($name), i64::from($name)); )*};
}

#[test]
fn declarations_are_those_of_the_header() {
    let (root, name) = match header() {
        Some(found) => found,
        None => return println!("skipped: byteps.h is neither in BYTEPS_HOME/include nor in the source tree"),
    };
    let mut all = Comparison::default();
    constants!(all: BPS_ABI_MAJOR BPS_ABI_MINOR BPS_OK BPS_CANCELLED BPS_UNKNOWN BPS_INVALID_ARGUMENT BPS_DEADLINE_EXCEEDED
        BPS_NOT_FOUND BPS_ALREADY_EXISTS BPS_PERMISSION_DENIED BPS_RESOURCE_EXHAUSTED BPS_FAILED_PRECONDITION
        BPS_ABORTED BPS_OUT_OF_RANGE BPS_UNIMPLEMENTED BPS_INTERNAL BPS_UNAVAILABLE BPS_DATA_LOSS BPS_UNAUTHENTICATED
        BPS_EXT_IGNORABLE BPS_INT8 BPS_INT16 BPS_INT32 BPS_INT64 BPS_UINT8 BPS_FLOAT16 BPS_FLOAT32 BPS_FLOAT64
        BPS_BFLOAT16 BPS_COMPLEX64 BPS_COMPLEX128 BPS_BOOL BPS_SUM BPS_AVERAGE BPS_MIN BPS_MAX BPS_PRODUCT BPS_BIT_AND
        BPS_BIT_OR BPS_BIT_XOR BPS_ADASUM BPS_EXT_STREAMS BPS_EXT_CAST BPS_EXT_GIVE_UP BPS_EXT_MATCH BPS_ALL_REDUCE BPS_BROADCAST BPS_ALL_GATHER BPS_REDUCE_SCATTER BPS_ALL_TO_ALL BPS_REDUCE BPS_GATHER BPS_SCATTER BPS_SEND BPS_RECEIVE BPS_BARRIER BPS_CPU BPS_CUDA BPS_CUDA_HOST BPS_MODE_SYNCHRONOUS BPS_MODE_ASYNCHRONOUS BPS_LOG_TRACE
        BPS_LOG_DEBUG BPS_LOG_INFO BPS_LOG_WARNING BPS_LOG_ERROR BPS_REQUEST_DECLARING BPS_REQUEST_QUEUED
        BPS_REQUEST_ACTIVE BPS_REQUEST_DONE BPS_REQUEST_FAILED BPS_REQUEST_ENQUEUED BPS_TIMELINE_MARK_STEPS
        BPS_TIMELINE_MOMENT BPS_TIMELINE_BEGIN BPS_TIMELINE_END);
    structs!(all:
        bps_ext { type_ flags next }
        bps_open_args { ext coordinator job name token host transport scheduler has_place host_index num_hosts
            local_rank local_size num_servers log_level timeout_ms log log_user }
        bps_info { rank size local_rank local_size num_servers failed epoch generation shared_buffers reserved }
        bps_declare_args { ext name shape ndim dtype mode staleness }
        bps_push_pull_args { ext tensor input output priority op input_device input_device_id output_device
            output_device_id reserved timeout_ms done user done_in_call reserved2 }
        bps_broadcast_args { ext tensor input output priority root input_device input_device_id output_device
            output_device_id reserved timeout_ms done user done_in_call reserved2 }
        bps_barrier_args { ext name timeout_ms }
        bps_buffer_args { ext size device device_id }
        bps_result { data bytes shape splits ndim num_splits }
        bps_process_set_args { ext name ranks num_ranks reserved }
        bps_collective_args { ext name set input output output_bytes shape splits tag priority timeout_ms prescale postscale done user kind ndim dtype op num_splits root peer scaled input_device input_device_id output_device output_device_id }
        bps_group_args { ext operations num_operations reserved done user }
        bps_join_args { ext last_rank timeout_ms done user }
        bps_sparse_args { ext name set indices values num_rows shape priority timeout_ms done user ndim dtype op reserved });
    let streams = bps_streams::default();
    let base = &streams as *const bps_streams as usize;
    all.size("bps_streams", size_of::<bps_streams>());
    all.offset("bps_streams", "input", &streams.input as *const _ as usize - base);
    all.offset("bps_streams", "output", &streams.output as *const _ as usize - base);
    all.offset("bps_streams", "output_later", &streams.output_later as *const _ as usize - base);
    all.offset("bps_streams", "reserved", &streams.reserved as *const _ as usize - base);
    assert_eq!(streams.ext.struct_size, size_of::<bps_streams>());
    let cast = bps_cast::default();
    let base = &cast as *const bps_cast as usize;
    all.size("bps_cast", size_of::<bps_cast>());
    all.offset("bps_cast", "dtype", &cast.dtype as *const _ as usize - base);
    all.offset("bps_cast", "reserved", &cast.reserved as *const _ as usize - base);
    assert_eq!(cast.ext.struct_size, size_of::<bps_cast>());
    let give_up = bps_give_up::default();
    let base = &give_up as *const bps_give_up as usize;
    all.size("bps_give_up", size_of::<bps_give_up>());
    all.offset("bps_give_up", "reason", &give_up.reason as *const _ as usize - base);
    assert_eq!(give_up.ext.struct_size, size_of::<bps_give_up>());
    let number = bps_match::default();
    let base = &number as *const bps_match as usize;
    all.size("bps_match", size_of::<bps_match>());
    all.offset("bps_match", "number", &number.number as *const _ as usize - base);
    assert_eq!(number.ext.struct_size, size_of::<bps_match>());

    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"{}\"\nint main(void) {{\n{}  return 0;\n}}\n",
        name, all.c
    );
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").arg("-I").arg(&root).arg(&source).arg("-o").arg(&program).status();
    match compiled {
        Err(error) => return println!("skipped: there is no C compiler: {}", error),
        Ok(status) => assert!(status.success(), "cc: {}", status),
    }
    let output = Command::new(&program).output().unwrap();
    assert_eq!(all.rust, String::from_utf8(output.stdout).unwrap());
}
