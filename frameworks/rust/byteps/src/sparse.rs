//! The reduction of tensors of which each rank has some rows.

use crate::collective::Description;
use crate::element::Element;
use crate::error::{check, Result};
use crate::extensions::{self, Extensions};
use crate::operation::ReduceOp;
use crate::output::Output;
use crate::process_set::ProcessSet;
use crate::request::{Handle, Request};
use crate::session::{c_string, extents, Session};
use crate::timeout::milliseconds;
use byteps_sys as sys;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The reduction of a tensor of which each rank has some rows, zeros elsewhere; made by [`Session::sparse_all_reduce`].
#[must_use = "a reduction begins with run or start"]
pub struct SparseReduction<T: Element> {
    description: Description,
    of: PhantomData<fn(T) -> T>,
}

impl Session {
    /// The reduction of a tensor of this shape of which each rank has some rows. `op` is Sum or Average.
    ///
    /// ```no_run
    /// # fn main() -> byteps::Result<()> {
    /// # let session = byteps::Session::open()?;
    /// let reduction = session.sparse_all_reduce::<f32>("embedding", &[100_000, 4], byteps::ReduceOp::Sum);
    /// let reduced = reduction.run(&[7, 99_999], &[0.5; 2 * 4])?;
    /// for (i, number) in reduced.numbers.iter().enumerate() {
    ///     let _row = &reduced.rows[4 * i..4 * (i + 1)]; // of embedding[number]
    /// #   let _ = number;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn sparse_all_reduce<T: Element>(&self, name: &str, shape: &[usize], op: ReduceOp) -> SparseReduction<T> {
        let mut description = Description::new(self, sys::BPS_ALL_REDUCE, name, T::DTYPE, shape);
        description.op = op as i32;
        SparseReduction { description, of: PhantomData }
    }
}

impl<T: Element> SparseReduction<T> {
    /// Among the ranks of a set; else all.
    pub fn on(mut self, set: &ProcessSet) -> Self {
        self.description.set = Some(set.clone());
        self
    }

    /// Of several operations the one with the larger priority is sooner.
    pub fn priority(mut self, priority: i64) -> Self {
        self.description.priority = priority;
        self
    }

    /// Until the whole operation must have ended; else BYTEPS_OP_TIMEOUT.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.description.timeout = Some(timeout);
        self
    }

    /// A number that the ranks compare, such as a step's: where it differs the operation is FailedPrecondition on all of them,
    /// instead of a result of what does not belong together. 0 is none.
    pub fn matching(mut self, number: u64) -> Self {
        self.description.number = number;
        self
    }

    /// Does it: returns when it has ended.
    pub fn run(&self, numbers: &[i64], rows: &[T]) -> Result<SparseOutput<T>> {
        self.start(numbers, rows)?.wait()
    }

    /// Starts it: `rows` are the rows that this rank has, and `numbers` their numbers, in any order; rows that are named
    /// several times are added up. Both are read before this returns.
    pub fn start(&self, numbers: &[i64], rows: &[T]) -> Result<SparseRequest<T>> {
        let description = &self.description;
        let row: usize = description.shape.iter().skip(1).product();
        if numbers.len().checked_mul(row) != Some(rows.len()) {
            let why = format!("{} rows of {} elements each are not {} elements", numbers.len(), row, rows.len());
            return Err(description.invalid(&why));
        }
        let request = Request::launch((), |_, done, user| self.submit(numbers, rows, None, Some(done), user))?;
        Ok(SparseRequest { request, of: PhantomData })
    }

    /// Uses the next round of its name up without taking part, as where a training step ended half-way, so that later ones meet
    /// those of the other ranks again. Returns when that is done; the operation of the others is Aborted, with this rank and
    /// the reason in the error.
    pub fn give_up(&self, reason: &str) -> Result<()> {
        extensions::give_up(|| self.submit(&[], &[], Some(reason), None, ptr::null_mut()))
    }

    /// `reason`: of a round that is given up.
    fn submit(
        &self,
        numbers: &[i64],
        rows: &[T],
        reason: Option<&str>,
        done: Option<sys::bps_done_fn>,
        user: *mut c_void,
    ) -> Result<*mut sys::bps_request> {
        let description = &self.description;
        let shape = extents(&description.name, &description.shape)?;
        let name = c_string(&description.name, "the name of a sparse tensor")?;
        let extensions = Extensions::new(description.number, reason, extensions::NONE)?;
        let args = sys::bps_sparse_args {
            ext: Extensions::first_of(&extensions, extensions::NONE),
            name: name.as_ptr(),
            set: description.raw_set()?,
            indices: numbers.as_ptr(),
            values: rows.as_ptr() as *const c_void,
            num_rows: numbers.len() as i64,
            shape: shape.as_ptr(),
            priority: description.priority,
            timeout_ms: milliseconds(description.timeout)?,
            done,
            user,
            ndim: i32::try_from(shape.len()).unwrap_or(i32::MAX),
            dtype: T::DTYPE,
            op: description.op,
            ..Default::default()
        };
        let mut request = ptr::null_mut();
        unsafe { check(sys::bps_sparse_all_reduce(description.session.raw(), &args, &mut request))? };
        Ok(request)
    }
}

impl<T: Element> fmt::Debug for SparseReduction<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseReduction").field("name", &self.description.name).finish_non_exhaustive()
    }
}

/// What a sparse reduction has brought.
#[derive(Debug)]
pub struct SparseOutput<T: Element> {
    /// The rows that any rank has, in the order of their numbers; or the whole tensor, where that was less to send.
    pub rows: Output<T>,
    /// Their numbers. Without extents (`numbers.shape()` is empty): `rows` is the whole tensor.
    pub numbers: Output<i64>,
}

impl<T: Element> SparseOutput<T> {
    /// Whether `rows` is the whole tensor.
    pub fn is_whole(&self) -> bool {
        self.numbers.shape().is_empty()
    }

    fn new((_, handle): ((), Handle)) -> Result<SparseOutput<T>> {
        let handle = Arc::new(handle);
        // Both are in the library's memory, of these types.
        unsafe { Ok(SparseOutput { rows: Output::new(&handle, 0)?, numbers: Output::new(&handle, 1)? }) }
    }
}

/// A sparse reduction in flight.
#[must_use = "dropping a request lets its operation go on, and drops the result"]
pub struct SparseRequest<T: Element> {
    request: Request<()>,
    of: PhantomData<fn() -> T>,
}

impl<T: Element> SparseRequest<T> {
    /// Blocks until it has ended; gives what it has brought.
    pub fn wait(self) -> Result<SparseOutput<T>> {
        SparseOutput::new(self.request.wait_and_keep()?)
    }

    /// Whether it has ended. Never blocks.
    pub fn is_ended(&self) -> bool {
        self.request.is_ended()
    }

    /// Asks to give up.
    pub fn cancel(&self) -> Result<()> {
        self.request.cancel()
    }
}

impl<T: Element> Future for SparseRequest<T> {
    type Output = Result<SparseOutput<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.request.poll_and_keep(context).map(|landed| SparseOutput::new(landed?))
    }
}

impl<T: Element> fmt::Debug for SparseRequest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseRequest").field("ended", &self.is_ended()).finish_non_exhaustive()
    }
}
