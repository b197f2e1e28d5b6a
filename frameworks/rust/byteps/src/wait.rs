//! Waiting for a request of the C interface.

use crate::error::{check, Code, Error, Result};
use byteps_sys as sys;
use std::os::raw::c_void;

/// How a wait went.
pub(crate) enum Waited {
    /// The operation has ended, so.
    Ended(Result<()>),
    /// The operation goes on; the wait could not.
    Refused(Error),
}

/// Waits until the operation has ended.
///
/// # Safety
/// `request` is a request that has not been freed.
pub(crate) unsafe fn wait(request: *mut sys::bps_request) -> Waited {
    loop {
        let status = sys::bps_wait(request, 0);
        if status.is_null() {
            return Waited::Ended(Ok(()));
        }
        let error = Error::take(status);
        match has_ended(request) {
            // The operation may have ended just after the wait: ask for its own outcome.
            Ok(true) => return Waited::Ended(check(sys::bps_wait(request, 0))),
            // The library is late in ending it.
            Ok(false) if error.code() == Code::DeadlineExceeded => {}
            Ok(false) | Err(_) => return Waited::Refused(error),
        }
    }
}

/// Waits until the result is in a stream, or the operation has ended, and makes `stream` wait for the result.
///
/// # Safety
/// As `wait`; and the GPU's driver knows `stream`.
pub(crate) unsafe fn on_stream(request: *mut sys::bps_request, stream: *mut c_void) -> Result<()> {
    loop {
        match check(sys::bps_wait_on_stream(request, stream, 0)) {
            // The library is late in ending it.
            Err(error) if error.code() == Code::DeadlineExceeded && !has_ended(request)? => {}
            outcome => return outcome,
        }
    }
}

/// Whether the operation has ended. Never blocks.
///
/// # Safety
/// As `wait`.
pub(crate) unsafe fn has_ended(request: *mut sys::bps_request) -> Result<bool> {
    let mut done = 0;
    check(sys::bps_test(request, &mut done))?;
    Ok(done != 0)
}

/// Waits until the operation has ended, where nothing else will do: its memory is borrowed, and the borrow ends when this
/// returns.
///
/// # Safety
/// As `wait`.
pub(crate) unsafe fn until_ended(request: *mut sys::bps_request) -> Result<()> {
    match wait(request) {
        Waited::Ended(outcome) => outcome,
        Waited::Refused(error) => {
            // A callback of the library that is not of this crate, or a fork in the middle. To return would hand memory
            // back that another thread writes, and to wait here would be for ever.
            eprintln!("byteps: an operation on borrowed memory cannot be waited for here: {}", error);
            std::process::abort();
        }
    }
}
