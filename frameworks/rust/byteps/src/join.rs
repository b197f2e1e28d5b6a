//! The end of a rank's data.

use crate::error::{check, Result};
use crate::request::Request;
use crate::session::Session;
use crate::timeout::milliseconds;
use byteps_sys as sys;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::task::{Context, Poll};
use std::time::Duration;

/// Where the library writes who joined last.
struct LastRank(i32);

impl LastRank {
    fn rank(&self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }
}

/// This rank's join, which ends when all ranks have joined.
#[must_use = "the ranks go on when the join has ended"]
pub struct JoinRequest {
    request: Request<LastRank>,
}

impl Session {
    /// Says that this rank has no data left. Until all ranks have said so it counts as zeros in what the others submit, and
    /// submits nothing itself. `timeout` counts from the last operation of the others; `None`: BYTEPS_OP_TIMEOUT.
    ///
    /// Errors: AlreadyExists (a join of this rank has not ended); and when it ends DeadlineExceeded (names who has not
    /// joined; this rank stays joined, and may join again to wait on), Cancelled (likewise), Unavailable.
    pub fn join(&self, timeout: Option<Duration>) -> Result<JoinRequest> {
        let timeout_ms = milliseconds(timeout)?;
        let request = Request::launch(LastRank(-1), |last_rank, done, user| {
            let args = sys::bps_join_args {
                last_rank: &mut last_rank.0,
                timeout_ms,
                done: Some(done),
                user,
                ..Default::default()
            };
            let mut request = ptr::null_mut();
            unsafe { check(sys::bps_join(self.raw(), &args, &mut request))? };
            Ok(request)
        })?;
        Ok(JoinRequest { request })
    }
}

impl JoinRequest {
    /// Blocks until all ranks have joined; says which was the last, the same on all.
    pub fn wait(self) -> Result<usize> {
        Ok(self.request.wait()?.rank())
    }

    /// Whether all ranks have joined. Never blocks.
    pub fn is_ended(&self) -> bool {
        self.request.is_ended()
    }

    /// Gives up waiting: this rank stays joined.
    pub fn cancel(&self) -> Result<()> {
        self.request.cancel()
    }
}

impl Future for JoinRequest {
    type Output = Result<usize>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.request).poll(context).map(|landed| Ok(landed?.rank()))
    }
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest").field("ended", &self.is_ended()).finish_non_exhaustive()
    }
}
