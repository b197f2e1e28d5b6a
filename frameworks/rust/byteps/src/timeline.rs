//! What becomes of operations, as a file of Chrome's trace events.

use crate::error::{check, Code, Error, Result};
use crate::session::{c_string, Session};
use byteps_sys as sys;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::ptr;

/// A span of the program's own in the timeline, from [`Session::timeline_span`] to its drop, on one thread.
#[must_use = "the span ends when this is dropped"]
pub struct TimelineSpan<'session> {
    session: &'session Session,
    // Spans belong to the thread that has begun them.
    thread: PhantomData<*const ()>,
}

impl Session {
    /// Writes what becomes of every operation of this rank from now on, stage by stage, as Chrome's trace events: rank 0 to
    /// `path`, rank 3 with `.rank3` before its extension. [`stop_timeline`](Session::stop_timeline) ends the file, or the
    /// end of the session.
    ///
    /// `mark_steps`: show where the first operation goes into a round that none has gone into.
    ///
    /// Errors: InvalidArgument (it cannot be written: why), FailedPrecondition (one is being written).
    pub fn start_timeline(&self, path: impl AsRef<Path>, mark_steps: bool) -> Result<()> {
        let path = path.as_ref();
        let text = path.to_str().ok_or_else(|| {
            Error::new(Code::InvalidArgument, format!("the path of a timeline, {:?}, is not UTF-8", path))
        })?;
        let text = c_string(text, "the path of a timeline")?;
        let flags = if mark_steps { sys::BPS_TIMELINE_MARK_STEPS } else { 0 };
        unsafe { check(sys::bps_timeline_start(self.raw(), text.as_ptr(), flags)) }
    }

    /// Ends the file that [`start_timeline`](Session::start_timeline) or a variable has begun, and waits until it is
    /// written.
    ///
    /// Errors: FailedPrecondition (none is being written), Unavailable (not all of it could be written: why).
    pub fn stop_timeline(&self) -> Result<()> {
        unsafe { check(sys::bps_timeline_stop(self.raw())) }
    }

    /// Puts a moment of the program's own into the timeline that is being written; nothing, where there is none.
    pub fn timeline_mark(&self, name: &str) -> Result<()> {
        self.mark(name, sys::BPS_TIMELINE_MOMENT)
    }

    /// Puts a span of the program's own into the timeline, until it is dropped. Spans of a thread nest.
    pub fn timeline_span(&self, name: &str) -> Result<TimelineSpan<'_>> {
        self.mark(name, sys::BPS_TIMELINE_BEGIN)?;
        Ok(TimelineSpan { session: self, thread: PhantomData })
    }

    fn mark(&self, name: &str, kind: i32) -> Result<()> {
        let name = c_string(name, "the name of a mark")?;
        unsafe { check(sys::bps_timeline_mark(self.raw(), name.as_ptr(), kind)) }
    }
}

impl Drop for TimelineSpan<'_> {
    fn drop(&mut self) {
        // In a forked child it fails: there is no timeline there.
        let _ = unsafe { check(sys::bps_timeline_mark(self.session.raw(), ptr::null(), sys::BPS_TIMELINE_END)) };
    }
}

impl fmt::Debug for TimelineSpan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimelineSpan").finish_non_exhaustive()
    }
}
