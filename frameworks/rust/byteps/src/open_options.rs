//! How a session is opened.

use crate::error::{check, Result};
use crate::log::{Level, LogSink};
use crate::session::{c_string, Inner, Session};
use crate::timeout::milliseconds;
use byteps_sys as sys;
use std::ffi::CString;
use std::os::raw::c_char;
use std::ptr::{self, NonNull};
use std::time::Duration;

/// Where a worker stands among the others, for jobs that no launcher has described in the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of this host among the worker hosts, from 0.
    pub host_index: u32,
    /// Worker hosts.
    pub num_hosts: u32,
    /// Index of this worker on its host, from 0.
    pub local_rank: u32,
    /// Workers on this host.
    pub local_size: u32,
    /// Servers of the job.
    pub num_servers: u32,
}

/// How to open a session. What is not said comes from the environment, and then from its default.
///
/// ```no_run
/// # fn main() -> byteps::Result<()> {
/// let session = byteps::Session::options().timeout(std::time::Duration::from_secs(60)).open()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct OpenOptions {
    texts: Texts<String>,
    place: Option<Place>,
    timeout: Option<Duration>,
    log_level: Option<Level>,
    log: Option<Box<LogSink>>,
}

#[derive(Debug, Default)]
struct Texts<T> {
    coordinator: Option<T>,
    job: Option<T>,
    name: Option<T>,
    token: Option<T>,
    host: Option<T>,
    transport: Option<T>,
    scheduler: Option<T>,
}

macro_rules! text_options {
    ($($(#[$doc:meta])* $option:ident)*) => {$(
        $(#[$doc])*
        pub fn $option(mut self, $option: impl Into<String>) -> Self {
            self.texts.$option = Some($option.into());
            self
        }
    )*};
}

impl OpenOptions {
    /// Everything from the environment.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    text_options! {
        /// "host:port" of the coordinator.
        coordinator
        /// Name of the job.
        job
        /// Name of this session within the job: several sessions of one process have different ones.
        name
        /// The job's secret.
        token
        /// Own address, or address of the interface, to tell the others.
        host
        /// Plugin that carries the data: a name, or a path with a slash.
        transport
        /// Plugin that decides what goes first: a name, or a path with a slash.
        scheduler
    }

    /// Where this worker stands; else the environment says.
    pub fn place(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Until all ranks must have arrived; else BYTEPS_START_TIMEOUT.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The least level that is logged; else BYTEPS_LOG_LEVEL.
    pub fn log_level(mut self, level: Level) -> Self {
        self.log_level = Some(level);
        self
    }

    /// Who receives the lines of the log, one at a time, on any thread; else they go to the standard error. A panic in it
    /// is caught, and the line is lost.
    pub fn log(mut self, sink: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        self.log = Some(Box::new(LogSink::new(sink)));
        self
    }

    /// Joins the job; waits until all of its members are there.
    ///
    /// Errors: InvalidArgument (an option or a variable), NotFound (a plugin), DeadlineExceeded (names the missing
    /// members), Unauthenticated (the token), FailedPrecondition (versions or counts of the members differ).
    pub fn open(self) -> Result<Session> {
        let texts = self.texts.to_c()?;
        let mut args = sys::bps_open_args {
            coordinator: pointer(&texts.coordinator),
            job: pointer(&texts.job),
            name: pointer(&texts.name),
            token: pointer(&texts.token),
            host: pointer(&texts.host),
            transport: pointer(&texts.transport),
            scheduler: pointer(&texts.scheduler),
            log_level: self.log_level.map_or(0, |level| level as i32 + 1),
            timeout_ms: milliseconds(self.timeout)?,
            ..Default::default()
        };
        if let Some(place) = self.place {
            args.has_place = 1;
            args.host_index = number(place.host_index);
            args.num_hosts = number(place.num_hosts);
            args.local_rank = number(place.local_rank);
            args.local_size = number(place.local_size);
            args.num_servers = number(place.num_servers);
        }
        if let Some(log) = &self.log {
            args.log = Some(LogSink::receive);
            args.log_user = &**log as *const LogSink as *mut _;
        }
        let mut session = ptr::null_mut();
        unsafe { check(sys::bps_open(&args, &mut session))? };
        let session = NonNull::new(session).expect("bps_open succeeds with a session");
        Ok(Session::from_inner(Inner::new(session, self.log)))
    }
}

impl Texts<String> {
    fn to_c(&self) -> Result<Texts<CString>> {
        let convert = |text: &Option<String>, what: &str| text.as_deref().map(|text| c_string(text, what)).transpose();
        Ok(Texts {
            coordinator: convert(&self.coordinator, "the coordinator")?,
            job: convert(&self.job, "the job")?,
            name: convert(&self.name, "the session's name")?,
            token: convert(&self.token, "the token")?,
            host: convert(&self.host, "the host")?,
            transport: convert(&self.transport, "the transport")?,
            scheduler: convert(&self.scheduler, "the scheduler")?,
        })
    }
}

fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

/// What is beyond the library's numbers is beyond its limits, too: it says so.
fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
