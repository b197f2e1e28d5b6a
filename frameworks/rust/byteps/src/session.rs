//! A membership in a job.

use crate::buffer::Buffer;
use crate::callback;
use crate::device_buffer::DeviceBuffer;
use crate::element::Element;
use crate::error::{check, Code, Error, Result};
use crate::log::LogSink;
use crate::open_options::OpenOptions;
use crate::tensor::Tensor;
use crate::timeout::milliseconds;
use byteps_sys as sys;
use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A membership in a job, from [`open`](Session::open) to the drop of the last clone of it and of its last [`Tensor`].
///
/// Clones are handles of the same membership; any thread may use them. Leave the job with [`shutdown`](Session::shutdown):
/// without it the other members see this one fail.
#[derive(Clone)]
pub struct Session {
    pub(crate) inner: Arc<Inner>,
}

/// Who we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// This worker's number in the job, 0 .. size - 1.
    pub rank: usize,
    /// Workers in the job.
    pub size: usize,
    /// This worker's number on its host.
    pub local_rank: usize,
    /// Workers on this host.
    pub local_size: usize,
    /// Servers that sum; 0 where the workers of one host do it, or this worker is alone.
    pub num_servers: usize,
    /// After a fatal error.
    pub failed: bool,
    /// Of the membership.
    pub epoch: u64,
    /// How often a session of this name was opened in this job, from 1.
    pub generation: u64,
    /// Whether other processes of this host can map memory of [`Session::buffer`].
    pub shared_buffers: bool,
}

/// The open session of the library. It is closed when no caller can call it any more.
pub(crate) struct Inner {
    session: NonNull<sys::bps_session>,
    // The library may log until the session is closed.
    log: Option<Box<LogSink>>,
    // Sets that could not be freed yet, since operations still used them.
    left_sets: Mutex<Vec<NonNull<sys::bps_process_set>>>,
}

// The library's calls on a session may be made concurrently, on any thread.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Inner {
    pub(crate) fn new(session: NonNull<sys::bps_session>, log: Option<Box<LogSink>>) -> Inner {
        Inner { session, log, left_sets: Mutex::default() }
    }

    /// Frees a set, at the latest when the session is closed.
    pub(crate) fn free_set(&self, set: NonNull<sys::bps_process_set>) {
        if unsafe { check(sys::bps_process_set_free(set.as_ptr())) }.is_err() {
            self.left_sets.lock().unwrap_or_else(PoisonError::into_inner).push(set);
        }
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::bps_session {
        self.session.as_ptr()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let left_sets = std::mem::take(self.left_sets.get_mut().unwrap_or_else(PoisonError::into_inner));
        let closing = Closing { session: self.session, log: self.log.take(), left_sets };
        if callback::is_inside() {
            // A wake-up has dropped the last handle. Closing waits for the thread that this runs on: another one does it.
            // If none can be had, the session stays open until the process ends.
            let _ = std::thread::Builder::new().name("byteps-close".into()).spawn(move || closing.close());
        } else {
            closing.close();
        }
    }
}

struct Closing {
    session: NonNull<sys::bps_session>,
    log: Option<Box<LogSink>>,
    left_sets: Vec<NonNull<sys::bps_process_set>>,
}

unsafe impl Send for Closing {}

impl Closing {
    fn close(self) {
        // Refused in a forked child, and in a callback that is not of this crate: there the session lives on, and its log.
        if unsafe { check(sys::bps_close(self.session.as_ptr())) }.is_err() {
            std::mem::forget(self.log);
        }
        for set in self.left_sets {
            // Refused in a forked child alone, where it stays.
            let _ = unsafe { check(sys::bps_process_set_free(set.as_ptr())) };
        }
    }
}

impl Session {
    /// Joins the job that the environment names (`DMLC_*` and `BYTEPS_*`, set by bpslaunch), and waits until all workers
    /// and servers are there. One worker alone needs neither servers nor a coordinator.
    pub fn open() -> Result<Session> {
        OpenOptions::new().open()
    }

    /// What else can be said about the job that is joined.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    pub(crate) fn from_inner(inner: Inner) -> Session {
        Session { inner: Arc::new(inner) }
    }

    /// Who we are.
    pub fn info(&self) -> Result<Info> {
        let mut info = sys::bps_info::default();
        unsafe { check(sys::bps_session_info(self.raw(), &mut info))? };
        let count = |number: i32| usize::try_from(number).unwrap_or(0);
        Ok(Info {
            rank: count(info.rank),
            size: count(info.size),
            local_rank: count(info.local_rank),
            local_size: count(info.local_size),
            num_servers: count(info.num_servers),
            failed: info.failed != 0,
            epoch: info.epoch,
            generation: info.generation,
            shared_buffers: info.shared_buffers != 0,
        })
    }

    /// The transport in use, for people.
    pub fn transport(&self) -> String {
        unsafe { CStr::from_ptr(sys::bps_transport_name(self.raw())) }.to_string_lossy().into_owned()
    }

    /// The scheduler in use, for people.
    pub fn scheduler(&self) -> String {
        unsafe { CStr::from_ptr(sys::bps_scheduler_name(self.raw())) }.to_string_lossy().into_owned()
    }

    /// Declares a tensor: a name that is the same on all ranks, and a shape. Does not block. The same name, type and shape
    /// give the same tensor again.
    ///
    /// ```no_run
    /// # fn main() -> byteps::Result<()> {
    /// # let session = byteps::Session::open()?;
    /// let weight = session.tensor::<f32>("layer1.weight", &[64, 32])?;
    /// assert_eq!(weight.len(), 64 * 32);
    /// # Ok(()) }
    /// ```
    pub fn tensor<T: Element>(&self, name: &str, shape: &[usize]) -> Result<Tensor<T>> {
        let c_name = c_string(name, "the name of a tensor")?;
        let extents = extents(name, shape)?;
        let args = sys::bps_declare_args {
            name: c_name.as_ptr(),
            shape: extents.as_ptr(),
            ndim: i32::try_from(shape.len()).unwrap_or(i32::MAX),
            dtype: T::DTYPE,
            ..Default::default()
        };
        let mut tensor = ptr::null_mut();
        unsafe { check(sys::bps_declare(self.raw(), &args, &mut tensor))? };
        let tensor = NonNull::new(tensor).expect("bps_declare succeeds with a tensor");
        Ok(Tensor::new(self.inner.clone(), tensor, name, shape))
    }

    /// Memory for `len` elements, zeros, of the kind that the library moves fastest: the other workers of this host read
    /// and write it where it is. For tensors that are reduced again and again.
    pub fn buffer<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        Buffer::new(self.raw(), len, sys::BPS_CPU, 0)
    }

    /// The same, pinned by a GPU (as the process counts them): GPUs copy from and to it without the help of a thread.
    pub fn pinned_buffer<T: Element>(&self, len: usize, gpu: i32) -> Result<Buffer<T>> {
        Buffer::new(self.raw(), len, sys::BPS_CUDA_HOST, gpu)
    }

    /// Memory of a GPU (as the process counts them) for `len` elements, zeros.
    pub fn device_buffer<T: Element>(&self, len: usize, gpu: i32) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::new(self.raw(), len, gpu)
    }

    /// Waits until every worker has called it as often as this one. It does not wait for operations in flight.
    pub fn barrier(&self) -> Result<()> {
        self.named_barrier("", None)
    }

    /// As [`barrier`](Session::barrier), with a name: barriers of different names do not meet. `timeout`: `None` is
    /// `BYTEPS_OP_TIMEOUT`.
    pub fn named_barrier(&self, name: &str, timeout: Option<Duration>) -> Result<()> {
        let name = c_string(name, "the name of a barrier")?;
        let timeout_ms = milliseconds(timeout)?;
        let args = sys::bps_barrier_args { name: name.as_ptr(), timeout_ms, ..Default::default() };
        unsafe { check(sys::bps_barrier(self.raw(), &args)) }
    }

    /// Leaves the job in order: waits until all operations of this worker have ended and all members have come here too or
    /// left, at most `timeout` (`None`: 5 s). Whatever it returns, the session can do nothing more; another call returns
    /// at once.
    pub fn shutdown(&self, timeout: Option<Duration>) -> Result<()> {
        let timeout_ms = milliseconds(timeout)?;
        unsafe { check(sys::bps_shutdown(self.raw(), timeout_ms)) }
    }

    /// The session of the C interface, for calls that this crate does not have. It must not be closed.
    pub fn raw(&self) -> *mut sys::bps_session {
        self.inner.raw()
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("info", &self.info()).finish()
    }
}

/// Text for the library, which ends at the first NUL.
pub(crate) fn c_string(text: &str, what: &str) -> Result<CString> {
    CString::new(text)
        .map_err(|_| Error::new(Code::InvalidArgument, format!("{} {:?} has a NUL character", what, text)))
}

pub(crate) fn extents(name: &str, shape: &[usize]) -> Result<Vec<i64>> {
    let too_large =
        || Error::new(Code::InvalidArgument, format!("tensor \"{}\" of shape {:?} has too many elements", name, shape));
    // The product must fit too: it is what slices are compared with.
    shape.iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent)).ok_or_else(too_large)?;
    shape.iter().map(|&extent| i64::try_from(extent).map_err(|_| too_large())).collect()
}
