//! Streams of GPUs.

use byteps_sys as sys;
use std::os::raw::c_void;

/// A stream of the program's, as the GPU's driver names it. Operations on memory of a GPU are ordered by streams: what a
/// stream holds when an operation begins is done before the operation reads its input or writes its output, and no thread
/// of the host waits for that.
///
/// ```no_run
/// use byteps::Stream;
/// # let handle = std::ptr::null_mut();
/// let stream = unsafe { Stream::from_raw(handle) }; // CUstream, cudaStream_t, or the handle of another crate's stream
/// # drop(stream);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(*mut c_void);

// A name; what the driver does with it may be asked for on any thread.
unsafe impl Send for Stream {}
unsafe impl Sync for Stream {}

impl Stream {
    /// The legacy default stream of the GPU that the memory is of.
    pub const DEFAULT: Stream = Stream(std::ptr::null_mut());

    /// The stream of this handle: a `CUstream` or `cudaStream_t`. `cudaStreamPerThread` (2) is the default stream of the
    /// thread that makes the call that it is given to.
    ///
    /// # Safety
    /// The driver knows the handle as a stream as long as it is named in calls: it is not destroyed before.
    pub const unsafe fn from_raw(handle: *mut c_void) -> Stream {
        Stream(handle)
    }

    /// The handle.
    pub const fn as_raw(self) -> *mut c_void {
        self.0
    }
}

/// The streams of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) input: Stream,
    pub(crate) output: Stream,
}

impl Streams {
    // The output's stream waits when the program says so (`wait_on_stream`), and not by itself: a thread of the library
    // would make it wait at a time that the program does not know, such as in the middle of a capture.
    pub(crate) fn raw(&self) -> sys::bps_streams {
        sys::bps_streams {
            input: self.input.as_raw(),
            output: self.output.as_raw(),
            output_later: 1,
            ..Default::default()
        }
    }
}
