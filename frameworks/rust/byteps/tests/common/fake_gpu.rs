//! The simulated GPU that BYTEPS_DEVICE names, as a program has CUDA's: streams, memory, copies. The library uses the same
//! one. Declared as in abi/device.h and device_plugins/fake/control.h.

use byteps::Stream;
use std::ffi::{CStr, CString};
use std::mem::size_of_val;
use std::os::raw::{c_char, c_int, c_void};
use std::ptr;

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

type Device = *mut c_void;
type Failure = *mut c_void;
type Unused = *const c_void;
type Copy = unsafe extern "C" fn(Device, *mut c_void, *const c_void, u64, *mut c_void, Failure) -> i32;

#[repr(C)]
struct OpenArgs {
    struct_size: usize,
    config: Unused,
    log: Unused,
    index: i32,
    reserved: i32,
}

/// bps_device_table, as far as it is used.
#[repr(C)]
struct Table {
    struct_size: usize,
    open: unsafe extern "C" fn(*const OpenArgs, *mut Device, Failure) -> i32,
    close: Unused,
    allocate: unsafe extern "C" fn(Device, u64, *mut *mut c_void, Failure) -> i32,
    release: unsafe extern "C" fn(Device, *mut c_void, Failure) -> i32,
    allocate_host: unsafe extern "C" fn(Device, u64, *mut *mut c_void, Failure) -> i32,
    release_host: unsafe extern "C" fn(Device, *mut c_void, Failure) -> i32,
    register_host: Unused,
    unregister_host: Unused,
    pointer: Unused,
    stream_create: unsafe extern "C" fn(Device, i32, *mut *mut c_void, Failure) -> i32,
    stream_destroy: Unused,
    stream_state: Unused,
    stream_wait: Unused,
    event_create: Unused,
    event_destroy: Unused,
    event_record: Unused,
    event_query: Unused,
    copy_to_host: Copy,
    copy_to_device: Copy,
    copy_within: Unused,
    fill: Unused,
    synchronize: unsafe extern "C" fn(Device, *mut c_void, Failure) -> i32,
}

/// fake_gpu_counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub synchronisations: u64,
    pub others: [u64; 9],
    pub bytes_to_device: u64,
    pub remote_reads: u64,
    pub flushes: u64,
    pub races: u64,
    pub conversions: u64,
}

/// fake_gpu_control, as far as it is used.
#[repr(C)]
struct Control {
    table: *const Table,
    reset: Unused,
    counts: unsafe extern "C" fn(*mut Counts),
    race: unsafe extern "C" fn(u64, *mut c_char, usize) -> i32,
    host_access: Unused,
    peek: Unused,
    fail: Unused,
    lose: Unused,
    capture: unsafe extern "C" fn(*mut c_void, i32),
    launch: Unused,
    remote_access: Unused,
    hold: unsafe extern "C" fn(i32, *mut c_void, *const i32) -> i32,
}

/// GPU 0, as the program sees it.
#[derive(Clone, Copy)]
pub struct Gpu {
    control: &'static Control,
    table: &'static Table,
    device: Device,
}

// What it names may be used on any thread.
unsafe impl Send for Gpu {}

/// Memory of the GPU that no crate of ours has made.
pub struct Foreign {
    pub first: *mut f32,
    gpu: Gpu,
}

unsafe impl Send for Foreign {}

impl Drop for Foreign {
    fn drop(&mut self) {
        let released = unsafe { (self.gpu.table.release)(self.gpu.device, self.first as *mut c_void, ptr::null_mut()) };
        assert_eq!(released, 0);
    }
}

impl Gpu {
    pub fn open() -> Gpu {
        let path = CString::new(std::env::var("BYTEPS_DEVICE").expect("BYTEPS_DEVICE is set")).unwrap();
        unsafe {
            let plugin = dlopen(path.as_ptr(), RTLD_NOW);
            assert!(!plugin.is_null(), "{:?}", CStr::from_ptr(dlerror()));
            let found = dlsym(plugin, b"bps_fake_gpu\0".as_ptr() as *const c_char);
            assert!(!found.is_null(), "the plugin is the simulated GPU");
            let control: unsafe extern "C" fn() -> *const Control = std::mem::transmute(found);
            let control = &*control();
            let table = &*control.table;
            let args = OpenArgs {
                struct_size: std::mem::size_of::<OpenArgs>(),
                config: ptr::null(),
                log: ptr::null(),
                index: 0,
                reserved: 0,
            };
            let mut device = ptr::null_mut();
            assert_eq!((table.open)(&args, &mut device, ptr::null_mut()), 0);
            Gpu { control, table, device }
        }
    }

    pub fn stream(&self) -> Stream {
        let mut stream = ptr::null_mut();
        assert_eq!(unsafe { (self.table.stream_create)(self.device, 0, &mut stream, ptr::null_mut()) }, 0);
        // It stays until the process ends.
        unsafe { Stream::from_raw(stream) }
    }

    /// Memory for floats; NaN, as all that was never written.
    pub fn allocate(&self, len: usize) -> Foreign {
        let mut first = ptr::null_mut();
        assert_eq!(unsafe { (self.table.allocate)(self.device, 4 * len as u64, &mut first, ptr::null_mut()) }, 0);
        Foreign { first: first as *mut f32, gpu: *self }
    }

    // Pinned memory, which stays until the process ends: a stream may use it at any time.
    fn pinned(&self, len: usize) -> &'static mut [f32] {
        let mut first = ptr::null_mut();
        let size = 4 * len.max(1) as u64;
        assert_eq!(unsafe { (self.table.allocate_host)(self.device, size, &mut first, ptr::null_mut()) }, 0);
        unsafe {
            ptr::write_bytes(first as *mut u8, 0, size as usize);
            std::slice::from_raw_parts_mut(first as *mut f32, len)
        }
    }

    /// Puts a copy of these values into a stream.
    pub fn write(&self, to: *mut f32, values: &[f32], stream: Stream) {
        let from = self.pinned(values.len());
        from.copy_from_slice(values);
        let (to, size) = (to as *mut c_void, size_of_val(values) as u64);
        let from = from.as_ptr() as *const c_void;
        let put = unsafe { (self.table.copy_to_device)(self.device, to, from, size, stream.as_raw(), ptr::null_mut()) };
        assert_eq!(put, 0);
    }

    /// Puts a copy to the host into a stream: what it will be when the stream is synchronised.
    pub fn read(&self, from: *const f32, len: usize, stream: Stream) -> Copied {
        let to = self.pinned(len);
        let (to_raw, from) = (to.as_mut_ptr() as *mut c_void, from as *const c_void);
        let size = 4 * len as u64;
        let put =
            unsafe { (self.table.copy_to_host)(self.device, to_raw, from, size, stream.as_raw(), ptr::null_mut()) };
        assert_eq!(put, 0);
        Copied { first: to.as_ptr(), len }
    }

    pub fn synchronize(&self, stream: Stream) {
        assert_eq!(unsafe { (self.table.synchronize)(self.device, stream.as_raw(), ptr::null_mut()) }, 0);
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        unsafe { (self.control.counts)(&mut counts) };
        counts
    }

    pub fn capture(&self, stream: Stream, on: bool) {
        unsafe { (self.control.capture)(stream.as_raw(), on.into()) };
    }

    /// What is put into the stream from now on waits until *go is not 0.
    pub fn hold(&self, stream: Stream, go: &'static std::sync::atomic::AtomicI32) {
        let go = go as *const _ as *const i32;
        assert_eq!(unsafe { (self.control.hold)(0, stream.as_raw(), go) }, 0);
    }

    /// Every access was ordered, and none was of memory that was given back.
    pub fn assert_no_races(&self) {
        let mut text = [0_u8; 600];
        let found = unsafe { (self.control.race)(0, text.as_mut_ptr() as *mut c_char, text.len()) };
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        assert_eq!(found, 0, "{}", String::from_utf8_lossy(&text[..end]));
    }
}

/// What a stream has copied to the host.
pub struct Copied {
    first: *const f32,
    len: usize,
}

impl Copied {
    pub fn values(&self) -> Vec<f32> {
        unsafe { std::slice::from_raw_parts(self.first, self.len) }.to_vec()
    }
}
