//! Operations on borrowed memory.

use crate::callback;
use crate::element::Element;
use crate::error::{check, Code, Error, Result};
use crate::wait;
use byteps_sys as sys;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr;

/// Runs `body`, in which operations may be started on borrowed memory, and returns when all of them have ended: as
/// [`std::thread::scope`] does with threads. That is what makes the borrows sound, whatever is dropped or forgotten in
/// between.
///
/// Returns what `body` returns; or the error of the first operation that was not waited for, if one has failed. If
/// `body` panics, the operations are cancelled, and the panic goes on when they have ended.
///
/// ```no_run
/// # fn main() -> byteps::Result<()> {
/// # let session = byteps::Session::open()?;
/// # let (weight, bias) = (session.tensor::<f32>("w", &[64])?, session.tensor::<f32>("b", &[1])?);
/// # let (mut weight_gradient, mut bias_gradient) = (vec![0.5; 64], vec![0.5; 1]);
/// use byteps::ReduceOp::Average;
/// byteps::scope(|scope| -> byteps::Result<()> {
///     let first = weight.push_pull(Average).priority(1).start_in(scope, &mut weight_gradient)?;
///     let second = bias.push_pull(Average).start_in(scope, &mut bias_gradient)?;
///     let _averaged: &mut [f32] = first.wait()?;      // usable again
///     second.wait()?;
///     Ok(())
/// })??;
/// # Ok(()) }
/// ```
///
/// What is in flight cannot be touched:
///
/// ```compile_fail
/// # fn main() -> byteps::Result<()> {
/// # let weight = byteps::Session::open()?.tensor::<f32>("w", &[64])?;
/// # let mut gradient = vec![0.5; 64];
/// byteps::scope(|scope| {
///     let request = weight.push_pull(byteps::ReduceOp::Sum).start_in(scope, &mut gradient);
///     gradient[0] = 1.0; // error: borrowed
///     request
/// });
/// # Ok(()) }
/// ```
///
/// nor can it end before the scope does:
///
/// ```compile_fail
/// # fn main() -> byteps::Result<()> {
/// # let weight = byteps::Session::open()?.tensor::<f32>("w", &[64])?;
/// byteps::scope(|scope| {
///     let mut gradient = vec![0.5; 64];
///     weight.push_pull(byteps::ReduceOp::Sum).start_in(scope, &mut gradient).map(drop) // error: does not live long enough
/// });
/// # Ok(()) }
/// ```
///
/// Errors: FailedPrecondition on a thread of the library, where nothing may block; `body` did not run.
pub fn scope<'env, F, R>(body: F) -> Result<R>
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
{
    if callback::is_inside() {
        return Err(Error::new(Code::FailedPrecondition, "nothing may block on a thread of the library"));
    }
    let scope = Scope { requests: RefCell::default(), scope: PhantomData, env: PhantomData };
    let returned = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    if returned.is_err() {
        scope.cancel_all();
    }
    let first_error = scope.wait_for_all();
    match returned {
        Err(panic) => resume_unwind(panic),
        Ok(value) => first_error.map(|()| value),
    }
}

/// Where operations on borrowed memory are in flight; see [`scope`].
pub struct Scope<'scope, 'env: 'scope> {
    // Null: waited for.
    requests: RefCell<Vec<*mut sys::bps_request>>,
    // Invariant, as in std::thread::Scope: no shorter lifetime may pass for 'scope.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    pub(crate) fn adopt<T: Element>(
        &'scope self,
        request: *mut sys::bps_request,
        output: *mut [T],
    ) -> ScopedRequest<'scope, T> {
        let mut requests = self.requests.borrow_mut();
        let index = requests.len();
        requests.push(request);
        ScopedRequest { requests: &self.requests, index, output, of: PhantomData }
    }

    fn cancel_all(&self) {
        for &request in self.requests.borrow().iter().filter(|request| !request.is_null()) {
            // One that cannot be cancelled ends by itself.
            let _ = unsafe { check(sys::bps_cancel(request)) };
        }
    }

    fn wait_for_all(&self) -> Result<()> {
        let mut first = Ok(());
        for request in self.requests.take().into_iter().filter(|request| !request.is_null()) {
            let outcome = unsafe {
                let outcome = wait::until_ended(request);
                sys::bps_request_free(request);
                outcome
            };
            first = first.and(outcome);
        }
        first
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("requests", &self.requests.borrow().len()).finish()
    }
}

/// An operation in flight on memory that is borrowed until its [`scope`] ends. Dropped, it is waited for there.
#[must_use = "the result is usable after wait, or when the scope has ended"]
pub struct ScopedRequest<'scope, T: Element> {
    requests: &'scope RefCell<Vec<*mut sys::bps_request>>,
    index: usize,
    output: *mut [T],
    of: PhantomData<&'scope mut [T]>,
}

impl<'scope, T: Element> ScopedRequest<'scope, T> {
    /// Blocks until the operation has ended; gives the output back.
    pub fn wait(self) -> Result<&'scope mut [T]> {
        let request = std::mem::replace(&mut self.requests.borrow_mut()[self.index], ptr::null_mut());
        unsafe {
            let outcome = wait::until_ended(request);
            sys::bps_request_free(request);
            outcome?;
            Ok(&mut *self.output)
        }
    }

    /// Whether the operation has ended. Never blocks.
    pub fn is_ended(&self) -> bool {
        unsafe { wait::has_ended(self.request()) }.unwrap_or(false)
    }

    /// Asks to give up. The operation then ends with Cancelled here and with Aborted elsewhere, unless it was complete.
    pub fn cancel(&self) -> Result<()> {
        unsafe { check(sys::bps_cancel(self.request())) }
    }

    fn request(&self) -> *mut sys::bps_request {
        self.requests.borrow()[self.index]
    }
}

impl<T: Element> fmt::Debug for ScopedRequest<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedRequest").field("ended", &self.is_ended()).finish_non_exhaustive()
    }
}
