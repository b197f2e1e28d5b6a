//! A declared tensor.

use crate::element::Element;
use crate::operation::{Kind, Operation, ReduceOp};
use crate::session::Inner;
use byteps_sys as sys;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

/// A name, a type and a shape that all ranks know: what operations are about. It holds no numbers; those are in slices and
/// vectors of the caller. Made by [`Session::tensor`](crate::Session::tensor); it keeps its session open.
#[derive(Clone)]
pub struct Tensor<T: Element> {
    session: Arc<Inner>,
    tensor: NonNull<sys::bps_tensor>,
    name: Arc<str>,
    shape: Arc<[usize]>,
    len: usize,
    of: PhantomData<fn(T) -> T>,
}

// The library's calls on a tensor may be made concurrently, on any thread.
unsafe impl<T: Element> Send for Tensor<T> {}
unsafe impl<T: Element> Sync for Tensor<T> {}

impl<T: Element> Tensor<T> {
    pub(crate) fn new(session: Arc<Inner>, tensor: NonNull<sys::bps_tensor>, name: &str, shape: &[usize]) -> Self {
        let len = shape.iter().product();
        Tensor { session, tensor, name: name.into(), shape: shape.into(), len, of: PhantomData }
    }

    /// The name, as declared.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shape, as declared.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements: the product of the shape.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The reduction over all workers: every rank gives as much as it gets.
    pub fn push_pull(&self, op: ReduceOp) -> Operation<'_, T> {
        Operation::new(self, Kind::PushPull(op))
    }

    /// The copy of what worker `root` has to every rank.
    pub fn broadcast(&self, root: usize) -> Operation<'_, T> {
        Operation::new(self, Kind::Broadcast(root))
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::bps_tensor {
        self.tensor.as_ptr()
    }

    #[inline]
    pub(crate) fn raw_session(&self) -> *mut sys::bps_session {
        self.session.raw()
    }
}

impl<T: Element> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor").field("name", &self.name).field("shape", &self.shape).finish()
    }
}
