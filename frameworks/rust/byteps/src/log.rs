//! The library's log, in Rust's hands.

use byteps_sys as sys;
use std::ffi::CStr;
use std::fmt;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// How serious a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub enum Level {
    /// Each step.
    Trace = sys::BPS_LOG_TRACE,
    /// What explains a problem.
    Debug = sys::BPS_LOG_DEBUG,
    /// What happens once.
    Info = sys::BPS_LOG_INFO,
    /// What may be wrong.
    Warning = sys::BPS_LOG_WARNING,
    /// What is wrong.
    Error = sys::BPS_LOG_ERROR,
}

/// A closure that receives lines.
pub(crate) struct LogSink {
    sink: Box<dyn Fn(Level, &str) + Send + Sync>,
}

impl LogSink {
    pub(crate) fn new(sink: impl Fn(Level, &str) + Send + Sync + 'static) -> LogSink {
        LogSink { sink: Box::new(sink) }
    }

    /// The `bps_log_fn` of a session; `user` is a `LogSink`.
    pub(crate) unsafe extern "C" fn receive(
        user: *mut c_void,
        level: i32,
        _file: *const c_char,
        _line: i32,
        message: *const c_char,
    ) {
        let sink = &*(user as *const LogSink);
        let message = CStr::from_ptr(message).to_string_lossy();
        let level = match level {
            sys::BPS_LOG_TRACE => Level::Trace,
            sys::BPS_LOG_DEBUG => Level::Debug,
            sys::BPS_LOG_INFO => Level::Info,
            sys::BPS_LOG_WARNING => Level::Warning,
            _ => Level::Error,
        };
        // A panic must not cross the library; its message is on the standard error.
        let _ = catch_unwind(AssertUnwindSafe(|| (sink.sink)(level, &message)));
    }
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogSink")
    }
}
