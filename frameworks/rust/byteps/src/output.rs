//! What collectives bring.

use crate::element::Element;
use crate::error::{check, Result};
use crate::request::Handle;
use byteps_sys as sys;
use std::fmt;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

/// What operation `index` of a request has brought.
unsafe fn result(handle: &Handle, index: usize) -> Result<sys::bps_result> {
    let mut result = sys::bps_result::default();
    check(sys::bps_request_result(handle.0, i32::try_from(index).unwrap_or(i32::MAX), &mut result))?;
    Ok(result)
}

unsafe fn numbers(first: *const i64, count: i32) -> Vec<usize> {
    match usize::try_from(count) {
        Ok(count) if count > 0 => slice::from_raw_parts(first, count).iter().map(|&n| n as usize).collect(),
        _ => Vec::new(),
    }
}

/// What a collective has put at the beginning of the output that it was given; of a rank that gets nothing both are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filled {
    /// Its shape, row-major; a scalar has no extents.
    pub shape: Vec<usize>,
    /// As [`Output::splits`].
    pub splits: Vec<usize>,
}

impl Filled {
    pub(crate) fn new(handle: &Handle) -> Result<Filled> {
        // The numbers are copied, and the handle lives meanwhile.
        unsafe {
            let result = result(handle, 0)?;
            Ok(Filled { shape: numbers(result.shape, result.ndim), splits: numbers(result.splits, result.num_splits) })
        }
    }
}

/// What a collective has brought: a slice of elements, in memory of the library's that it owns. It may outlive its session.
pub struct Output<T: Element> {
    // Keeps the memory.
    _handle: Arc<Handle>,
    first: NonNull<T>,
    len: usize,
    shape: Vec<usize>,
    splits: Vec<usize>,
    owns: PhantomData<T>,
}

// It owns its elements, as a Vec does.
unsafe impl<T: Element> Send for Output<T> {}
unsafe impl<T: Element> Sync for Output<T> {}

impl<T: Element> Output<T> {
    /// The output of operation `index` of the request, which no other value makes.
    ///
    /// # Safety
    /// It is in the library's memory, and its elements are of type T.
    pub(crate) unsafe fn new(handle: &Arc<Handle>, index: usize) -> Result<Output<T>> {
        let result = result(handle, index)?;
        Ok(Output {
            _handle: handle.clone(),
            first: NonNull::new(result.data as *mut T).unwrap_or_else(NonNull::dangling),
            len: result.bytes as usize / size_of::<T>(),
            shape: numbers(result.shape, result.ndim),
            splits: numbers(result.splits, result.num_splits),
            owns: PhantomData,
        })
    }

    /// Its shape, row-major; a scalar has no extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// By the ranks of the set: of gather, all-gather, scatter and all-to-all the rows that came from each, of
    /// reduce-scatter those that went to each; else empty.
    pub fn splits(&self) -> &[usize] {
        &self.splits
    }
}

impl<T: Element> Deref for Output<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Output<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T: Element> AsRef<[T]> for Output<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: Element> AsMut<[T]> for Output<T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Output<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("shape", &self.shape)
            .field("splits", &self.splits)
            .field("data", &&**self)
            .finish()
    }
}
