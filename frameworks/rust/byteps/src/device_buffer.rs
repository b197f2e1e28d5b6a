//! Memory of GPUs.

use crate::buffer::allocate;
use crate::callback;
use crate::element::Element;
use crate::error::{check, Result};
use crate::place::Place;
use byteps_sys as sys;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

/// Elements in the memory of a GPU: new memory, made by [`Session::device_buffer`](crate::Session::device_buffer), or
/// memory of another crate's or library's, named by [`from_raw`](DeviceBuffer::from_raw).
///
/// The host cannot touch them: the address is for kernels, and for [operations](crate::Operation::on_gpu). It is a handle,
/// cheap to move, that may outlive its session. Dropped, it gives the memory back, but not before the last operation has
/// ended that uses it. (To give memory of the library's back waits for the GPU: keep buffers from step to step.)
pub struct DeviceBuffer<T: Element> {
    first: *mut T,
    len: usize,
    gpu: i32,
    // Operations in flight hold it, too.
    owner: Arc<Owner>,
    elements: PhantomData<*mut T>,
}

// An address, which means nothing to the host.
unsafe impl<T: Element> Send for DeviceBuffer<T> {}
unsafe impl<T: Element> Sync for DeviceBuffer<T> {}

impl<T: Element> DeviceBuffer<T> {
    pub(crate) fn new(session: *mut sys::bps_session, len: usize, gpu: i32) -> Result<DeviceBuffer<T>> {
        let (buffer, _) = allocate::<T>(session, len, sys::BPS_CUDA, gpu)?;
        let allocation = Allocation(buffer);
        let first = unsafe { sys::bps_buffer_data(buffer.as_ptr()) } as *mut T;
        Ok(unsafe { DeviceBuffer::from_raw(first, len, gpu, allocation) })
    }

    /// `len` elements at `first` in the memory of GPU `gpu` (as the process counts them, from 0). `owner` is dropped when
    /// the memory is used no more: neither by this buffer nor by an operation in flight. That may be on another thread.
    /// Of memory that is never freed it is `()`.
    ///
    /// ```no_run
    /// # struct Array; // of another crate, on a GPU
    /// # impl Array { fn address(&self) -> u64 { 0 } fn len(&self) -> usize { 0 } }
    /// # let array = Array;
    /// let (first, len) = (array.address() as *mut f32, array.len());
    /// let gradient = unsafe { byteps::DeviceBuffer::from_raw(first, len, 0, array) };
    /// # drop(gradient);
    /// ```
    ///
    /// # Safety
    /// Until `owner` is dropped the memory is there, and is only used in the order of the streams that its operations
    /// name: kernels that read what an operation writes, or write what it reads, are in a stream that waits for it.
    pub unsafe fn from_raw<O: Send + 'static>(first: *mut T, len: usize, gpu: i32, owner: O) -> DeviceBuffer<T> {
        DeviceBuffer { first, len, gpu, owner: Arc::new(Owner(Some(Box::new(owner)))), elements: PhantomData }
    }

    /// Its first `mid` elements, and the others, as buffers of their own. Panics if it has fewer.
    pub fn split_at(mut self, mid: usize) -> (DeviceBuffer<T>, DeviceBuffer<T>) {
        assert!(mid <= self.len, "a buffer of {} elements has no element {}", self.len, mid);
        let mut rest = self.share();
        // Not `add`: an empty buffer may have no address.
        rest.first = self.first.wrapping_add(mid);
        rest.len = self.len - mid;
        self.len = mid;
        (self, rest)
    }

    /// Where it lies in the memory of the GPU.
    pub fn as_device_ptr(&self) -> *mut T {
        self.first
    }

    /// Its number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Has it none?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The GPU, as the process counts them.
    pub fn gpu(&self) -> i32 {
        self.gpu
    }

    pub(crate) fn place(&self) -> Place {
        Place::device(self.first, self.len, self.gpu)
    }

    /// The same elements once more: for a caller that sees to it that they are not used twice.
    pub(crate) fn share(&self) -> DeviceBuffer<T> {
        DeviceBuffer { owner: self.owner.clone(), elements: PhantomData, ..*self }
    }
}

impl<T: Element> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements at {:p} of GPU {}", self.len, self.first, self.gpu)
    }
}

/// What keeps memory of a GPU.
struct Owner(Option<Box<dyn Send>>);

// It is dropped, and not looked at.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        let owner = self.0.take();
        if callback::is_inside() {
            // The last operation has ended. To give memory of a GPU back waits for the GPU, which the library's thread must
            // not do. If no thread can be had, it does.
            let _ = thread::Builder::new().name("byteps-free".into()).spawn(move || drop(owner));
        }
    }
}

/// Memory of the library's.
struct Allocation(NonNull<sys::bps_buffer>);

// The library's calls on a buffer may be made on any thread.
unsafe impl Send for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // Refused while an operation uses it, which none does: each holds the owner until it has ended.
        let _ = unsafe { check(sys::bps_buffer_free(self.0.as_ptr())) };
    }
}
