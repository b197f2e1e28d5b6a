//! An operation in flight that owns its memory.

use crate::callback;
use crate::error::{check, Code, Error, Failed, Result};
use crate::timeout::milliseconds;
use crate::wait::{self, Waited};
use byteps_sys as sys;
use std::cell::UnsafeCell;
use std::fmt;
use std::future::Future;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// What the library and the request share: the memory, and how the flight goes.
///
/// The memory has one place, in here, from before the start until the end; only then may `take_memory` move it out. If
/// it is not taken, it is dropped with the last of the two, so neither a request that was dropped nor one that was
/// forgotten frees what the library still uses.
pub(crate) struct Flight<B> {
    memory: UnsafeCell<Option<B>>,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    outcome: Option<Result<()>>,
    waker: Option<Waker>,
}

// The memory goes to the library's thread when that is the last to let go of the flight; it is never looked at by two.
unsafe impl<B: Send> Send for Flight<B> {}
unsafe impl<B: Send> Sync for Flight<B> {}

impl<B: Send + 'static> Flight<B> {
    pub(crate) fn new(memory: B) -> Arc<Flight<B>> {
        Arc::new(Flight { memory: UnsafeCell::new(Some(memory)), progress: Mutex::default() })
    }

    /// The memory, before the start.
    ///
    /// # Safety
    /// Nothing else looks at it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn memory(&self) -> &mut B {
        (*self.memory.get()).as_mut().expect("the memory is in its flight")
    }

    /// Moves the memory out.
    ///
    /// # Safety
    /// The flight has ended, or never began, and it is not taken elsewhere.
    pub(crate) unsafe fn take_memory(&self) -> Option<B> {
        (*self.memory.get()).take()
    }

    /// A share of the flight for the library, which gives it to `done`.
    pub(crate) fn share(self: &Arc<Self>) -> *mut c_void {
        Arc::into_raw(self.clone()) as *mut c_void
    }

    /// Takes the share back.
    ///
    /// # Safety
    /// `user` is of `share`, and was not taken back before.
    pub(crate) unsafe fn unshare(user: *mut c_void) -> Arc<Self> {
        Arc::from_raw(user as *const Self)
    }

    /// The `bps_done_fn` of a flight.
    pub(crate) unsafe extern "C" fn done(user: *mut c_void, error: *mut sys::bps_status) {
        let _inside = callback::Inside::enter();
        let flight = Self::unshare(user);
        let outcome = check(error);
        let waker = {
            let mut progress = flight.progress();
            progress.outcome = Some(outcome);
            progress.waker.take()
        };
        // Wakers and the memory may be of types whose code panics, which must not cross the library.
        let _ = catch_unwind(AssertUnwindSafe(move || {
            if let Some(waker) = waker {
                waker.wake();
            }
            drop(flight);
        }));
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of the library, freed with this.
pub(crate) struct Handle(pub(crate) *mut sys::bps_request);

// The library's calls on a request may be made concurrently, on any thread.
unsafe impl Send for Handle {}
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        unsafe { sys::bps_request_free(self.0) };
    }
}

/// An operation in flight that owns its memory `B`, and gives it back when it has ended. Both ways of waiting take it
/// whole: [`wait`](Request::wait) blocks, and as a [`Future`] it wakes a task; no executor is needed that knows of it.
///
/// To drop it is to let the operation go on by itself: the memory is dropped when the operation has ended, on a thread of
/// the library. It may outlive its session, whose end ends it.
///
/// ```compile_fail
/// # fn main() -> byteps::Result<()> {
/// # let weight = byteps::Session::open()?.tensor::<f32>("w", &[64])?;
/// let mut gradient = vec![0.5; 64];
/// let request = weight.push_pull(byteps::ReduceOp::Sum).start(gradient)?;
/// gradient[0] = 1.0; // error: moved
/// # Ok(()) }
/// ```
///
/// For the least latency of small tensors, which a thread that waits may carry itself, use
/// [`in_place`](crate::Operation::in_place) or a [`scope`](crate::scope()).
#[must_use = "dropping a request lets its operation go on, and drops the result"]
pub struct Request<B: Send + 'static> {
    flight: Arc<Flight<B>>,
    request: Handle,
}

// A shared request shows nothing of its memory.
unsafe impl<B: Send> Send for Request<B> {}
unsafe impl<B: Send> Sync for Request<B> {}

impl<B: Send + 'static> Request<B> {
    /// Starts an operation that owns `memory`: `submit` gets it in the place that it keeps, and what `done` and `user` are
    /// to be. The operation may use the memory until it has ended.
    pub(crate) fn launch(
        memory: B,
        submit: impl FnOnce(&mut B, sys::bps_done_fn, *mut c_void) -> Result<*mut sys::bps_request>,
    ) -> std::result::Result<Request<B>, Failed<B>> {
        let flight = Flight::new(memory);
        // Only this call knows of it yet. The borrow of the memory goes on, in the pointers that `submit` makes, until
        // the flight ends: nothing moves, drops or looks at the memory before.
        let user = flight.share();
        match submit(unsafe { flight.memory() }, Flight::<B>::done, user) {
            Ok(request) => Ok(Request { flight, request: Handle(request) }),
            Err(error) => {
                // Not accepted: the callback never runs, and the flight has ended before it began.
                unsafe { Flight::<B>::unshare(user) };
                Err(Failed { error, memory: unsafe { flight.take_memory() } })
            }
        }
    }

    /// Waits as `wait` does; the handle stays, for what the operation has brought.
    pub(crate) fn wait_and_keep(self) -> std::result::Result<(B, Handle), Failed<B>> {
        if callback::is_inside() {
            let error = Error::new(Code::FailedPrecondition, "nothing may block on a thread of the library");
            return Err(Failed { error, memory: None });
        }
        match unsafe { wait::wait(self.request.0) } {
            // An ended operation touches its memory no more; and it is this request alone that takes it.
            Waited::Ended(outcome) => self.land(outcome).map(|memory| (memory, self.request)),
            Waited::Refused(error) => Err(Failed { error, memory: None }),
        }
    }

    /// Polls as a future; the handle stays, for what the operation has brought.
    pub(crate) fn poll_and_keep(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<std::result::Result<(B, Handle), Failed<B>>> {
        Pin::new(&mut *self).poll(context).map(|landed| {
            let handle = std::mem::replace(&mut self.request, Handle(ptr::null_mut()));
            landed.map(|memory| (memory, handle))
        })
    }

    /// Blocks until the operation has ended; gives the memory back, with the result or with the error.
    pub fn wait(self) -> std::result::Result<B, Failed<B>> {
        self.wait_and_keep().map(|(memory, _)| memory)
    }

    /// Blocks until the operation has ended, at most `timeout`; says whether it has. `wait` then does not block.
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        let outcome = unsafe { check(sys::bps_wait(self.request.0, milliseconds(Some(timeout))?)) };
        let ended = self.is_ended();
        match outcome {
            Err(error) if !ended && error.code() != Code::DeadlineExceeded => Err(error),
            _ => Ok(ended),
        }
    }

    /// Whether the operation has ended. Never blocks.
    pub fn is_ended(&self) -> bool {
        unsafe { wait::has_ended(self.request.0) }.unwrap_or(false)
    }

    /// Asks to give up. The operation then ends with Cancelled here and with Aborted elsewhere, unless it was complete.
    pub fn cancel(&self) -> Result<()> {
        unsafe { check(sys::bps_cancel(self.request.0)) }
    }

    /// The request of the library.
    pub(crate) fn raw(&self) -> *mut sys::bps_request {
        self.request.0
    }

    /// The same, alone: the operation goes on with its memory.
    pub(crate) fn into_handle(self) -> Handle {
        self.request
    }

    /// The memory, in flight.
    ///
    /// # Safety
    /// It was not taken, and the library does not write to the value itself, but at most to what that names.
    pub(crate) unsafe fn memory(&self) -> &B {
        self.flight.memory()
    }

    fn land(&self, outcome: Result<()>) -> std::result::Result<B, Failed<B>> {
        let memory = unsafe { self.flight.take_memory() };
        match (outcome, memory) {
            (Ok(()), Some(memory)) => Ok(memory),
            (Ok(()), None) => panic!("this request was polled again after it had given its result"),
            (Err(error), memory) => Err(Failed { error, memory }),
        }
    }
}

impl<B: Send + 'static> Future for Request<B> {
    type Output = std::result::Result<B, Failed<B>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = {
            let mut progress = self.flight.progress();
            match progress.outcome.take() {
                None => {
                    // The last one that asked is the one that is woken.
                    progress.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
                Some(outcome) => {
                    progress.outcome = Some(outcome.clone());
                    outcome
                }
            }
        };
        Poll::Ready(self.land(outcome))
    }
}

// The memory is in its flight, which does not move with the request.
impl<B: Send + 'static> Unpin for Request<B> {}

impl<B: Send + 'static> fmt::Debug for Request<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("ended", &self.is_ended()).finish_non_exhaustive()
    }
}
