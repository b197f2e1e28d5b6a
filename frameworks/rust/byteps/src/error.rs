//! What goes wrong, as a Rust error.

use byteps_sys as sys;
use std::ffi::CStr;
use std::fmt;

/// What kind of failure an [`Error`] is; numerically the codes of the C interface, of Abseil and of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum Code {
    /// The operation was given up here, or its session was closed.
    Cancelled = sys::BPS_CANCELLED,
    /// A failure of a kind that this crate does not know.
    Unknown = sys::BPS_UNKNOWN,
    /// An argument or an environment variable has a value that cannot be used.
    InvalidArgument = sys::BPS_INVALID_ARGUMENT,
    /// A member did not come in time; the message names it.
    DeadlineExceeded = sys::BPS_DEADLINE_EXCEEDED,
    /// Something named, such as a plugin, is not there.
    NotFound = sys::BPS_NOT_FOUND,
    /// An operation on a tensor of this name is still in flight on this rank.
    AlreadyExists = sys::BPS_ALREADY_EXISTS,
    /// Not allowed.
    PermissionDenied = sys::BPS_PERMISSION_DENIED,
    /// A limit was reached.
    ResourceExhausted = sys::BPS_RESOURCE_EXHAUSTED,
    /// Not possible in this state: the ranks disagree about a tensor, the session was shut down, or this process was
    /// forked from the one that opened the session.
    FailedPrecondition = sys::BPS_FAILED_PRECONDITION,
    /// Another rank gave up the operation; the message names it.
    Aborted = sys::BPS_ABORTED,
    /// Beyond the end of something.
    OutOfRange = sys::BPS_OUT_OF_RANGE,
    /// The library does not do this.
    Unimplemented = sys::BPS_UNIMPLEMENTED,
    /// A defect of the library.
    Internal = sys::BPS_INTERNAL,
    /// A member of the job is gone; the message names it. The session cannot be used any more.
    Unavailable = sys::BPS_UNAVAILABLE,
    /// Data were lost or damaged.
    DataLoss = sys::BPS_DATA_LOSS,
    /// The job's token is missing or wrong.
    Unauthenticated = sys::BPS_UNAUTHENTICATED,
}

impl Code {
    fn from_number(code: i32) -> Code {
        match code {
            sys::BPS_CANCELLED => Code::Cancelled,
            sys::BPS_INVALID_ARGUMENT => Code::InvalidArgument,
            sys::BPS_DEADLINE_EXCEEDED => Code::DeadlineExceeded,
            sys::BPS_NOT_FOUND => Code::NotFound,
            sys::BPS_ALREADY_EXISTS => Code::AlreadyExists,
            sys::BPS_PERMISSION_DENIED => Code::PermissionDenied,
            sys::BPS_RESOURCE_EXHAUSTED => Code::ResourceExhausted,
            sys::BPS_FAILED_PRECONDITION => Code::FailedPrecondition,
            sys::BPS_ABORTED => Code::Aborted,
            sys::BPS_OUT_OF_RANGE => Code::OutOfRange,
            sys::BPS_UNIMPLEMENTED => Code::Unimplemented,
            sys::BPS_INTERNAL => Code::Internal,
            sys::BPS_UNAVAILABLE => Code::Unavailable,
            sys::BPS_DATA_LOSS => Code::DataLoss,
            sys::BPS_UNAUTHENTICATED => Code::Unauthenticated,
            _ => Code::Unknown,
        }
    }
}

/// A failed call, in the library's words: what was asked, what was found, who is missing, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    message: String,
    retryable: bool,
}

/// The result of a call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into(), retryable: false }
    }

    /// Takes over a status of the library, which is not null.
    ///
    /// # Safety
    /// `status` is a status that the caller owns; it is freed.
    pub(crate) unsafe fn take(status: *mut sys::bps_status) -> Error {
        let error = Error {
            code: Code::from_number(sys::bps_status_code(status)),
            message: CStr::from_ptr(sys::bps_status_message(status)).to_string_lossy().into_owned(),
            retryable: sys::bps_status_retryable(status) != 0,
        };
        sys::bps_status_free(status);
        error
    }

    /// The kind of failure.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The library's words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the same call may succeed when tried again on this session. `false`: the session has failed, or the
    /// arguments are wrong.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The result of a call of the library.
///
/// # Safety
/// `status` is null, or a status that the caller owns.
#[inline]
pub(crate) unsafe fn check(status: *mut sys::bps_status) -> Result<()> {
    if status.is_null() {
        Ok(())
    } else {
        Err(Error::take(status))
    }
}

/// An operation that failed, and the memory that was lent to it.
///
/// `?` makes an [`Error`] of it where a function returns [`Result`].
pub struct Failed<B> {
    /// Why.
    pub error: Error,
    /// The memory, back. What it holds is unspecified if the operation had been accepted. `None` where it cannot be given
    /// back, since the operation is still in flight: `wait` was called in a wake-up on a thread of the library.
    pub memory: Option<B>,
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for Failed<B> {}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Error {
        failed.error
    }
}
