//! What goes with the arguments of an operation: a number that the ranks compare, the reason of a round that is given up.

use crate::callback;
use crate::error::{Code, Error, Result};
use crate::session::c_string;
use crate::wait::{self, Waited};
use byteps_sys as sys;
use std::ffi::CString;
use std::ptr;

/// The chain of an operation's extensions. It points into itself, so it stays in its box.
pub(crate) struct Extensions {
    number: sys::bps_match,
    given_up: sys::bps_give_up,
    _reason: Option<CString>,
    first: *const sys::bps_ext,
}

impl Extensions {
    /// Those in front of `last`, which may be null; none, where there are no others. `number`: 0 is none; `reason`: of a round
    /// that is given up.
    pub(crate) fn new(number: u64, reason: Option<&str>, last: *const sys::bps_ext) -> Result<Option<Box<Extensions>>> {
        if number == 0 && reason.is_none() {
            return Ok(None);
        }
        let reason = reason.map(|reason| c_string(reason, "the reason of a round that is given up")).transpose()?;
        let mut made = Box::new(Extensions {
            number: sys::bps_match { number, ..Default::default() },
            given_up: sys::bps_give_up::default(),
            _reason: None,
            first: last,
        });
        if number != 0 {
            made.number.ext.next = made.first;
            made.first = &made.number.ext;
        }
        if let Some(reason) = reason {
            made.given_up.reason = reason.as_ptr();
            made.given_up.ext.next = made.first;
            made.first = &made.given_up.ext;
            made._reason = Some(reason);
        }
        Ok(Some(made))
    }

    /// What the arguments point at.
    pub(crate) fn first_of(extensions: &Option<Box<Extensions>>, last: *const sys::bps_ext) -> *const sys::bps_ext {
        extensions.as_ref().map_or(last, |extensions| extensions.first)
    }
}

/// Gives a round up by `submit`, and waits until that is done.
pub(crate) fn give_up(submit: impl FnOnce() -> Result<*mut sys::bps_request>) -> Result<()> {
    if callback::is_inside() {
        return Err(Error::new(Code::FailedPrecondition, "nothing may block on a thread of the library"));
    }
    let request = submit()?;
    // It is freed once, here, and has no memory.
    let waited = unsafe {
        let waited = wait::wait(request);
        sys::bps_request_free(request);
        waited
    };
    match waited {
        Waited::Ended(Err(error)) if error.code() == Code::Cancelled => Ok(()),
        Waited::Ended(outcome) => outcome,
        Waited::Refused(error) => Err(error),
    }
}

/// The end of a chain without streams.
pub(crate) const NONE: *const sys::bps_ext = ptr::null();
