//! Memory of the library's own.

use crate::element::Element;
use crate::error::{check, Code, Error, Result};
use byteps_sys as sys;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

/// Elements in memory that the library moves fastest; made by [`Session::buffer`](crate::Session::buffer). A slice in
/// every other respect. It may outlive its session.
pub struct Buffer<T: Element> {
    buffer: NonNull<sys::bps_buffer>,
    first: NonNull<T>,
    len: usize,
    owns: PhantomData<T>,
}

// It owns its elements, as a Vec does.
unsafe impl<T: Element> Send for Buffer<T> {}
unsafe impl<T: Element> Sync for Buffer<T> {}

impl<T: Element> Buffer<T> {
    /// In memory of the host: `sys::BPS_CPU`, or `sys::BPS_CUDA_HOST`, pinned by this GPU.
    pub(crate) fn new(session: *mut sys::bps_session, len: usize, device: i32, gpu: i32) -> Result<Buffer<T>> {
        let (buffer, size) = allocate::<T>(session, len, device, gpu)?;
        // A page is aligned for every element; an empty buffer may have no address.
        let data = unsafe { sys::bps_buffer_data(buffer.as_ptr()) } as *mut T;
        let first = if size == 0 { NonNull::dangling() } else { NonNull::new(data).expect("a buffer has an address") };
        Ok(Buffer { buffer, first, len, owns: PhantomData })
    }
}

// The buffer, and its bytes.
pub(crate) fn allocate<T: Element>(
    session: *mut sys::bps_session,
    len: usize,
    device: i32,
    device_id: i32,
) -> Result<(NonNull<sys::bps_buffer>, usize)> {
    let size = len.checked_mul(size_of::<T>()).filter(|&size| isize::try_from(size).is_ok()).ok_or_else(|| {
        Error::new(Code::ResourceExhausted, format!("a buffer of {} elements is larger than any memory", len))
    })?;
    let args = sys::bps_buffer_args { size, device, device_id, ..Default::default() };
    let mut buffer = ptr::null_mut();
    unsafe { check(sys::bps_buffer_alloc(session, &args, &mut buffer))? };
    Ok((NonNull::new(buffer).expect("bps_buffer_alloc succeeds with a buffer"), size))
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        // Refused while an operation uses it, which the borrow checker has ruled out; and its memory would then stay.
        let _ = unsafe { check(sys::bps_buffer_free(self.buffer.as_ptr())) };
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T: Element> AsRef<[T]> for Buffer<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: Element> AsMut<[T]> for Buffer<T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<T: Element + std::fmt::Debug> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}
