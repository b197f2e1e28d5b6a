//! What tests of whole jobs share: two workers and a server in processes of their own, started by bpslaunch, which must be
//! in PATH.
//!
//! A body is a test that is ignored outside of a job. The test of the same name starts a job whose workers are this very
//! program, told to run that body alone.

#![allow(dead_code)] // not every program of tests uses everything

use byteps::Session;
use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

pub const LONG: Duration = Duration::from_secs(60);

/// Elements that travel in several parts. (Of a small tensor the inputs may be everywhere before it is given up.)
pub const LARGE: usize = 100_000;

/// Runs `bodies::<name>` in every worker of a job; the job's output, if it did not succeed as expected.
pub fn run(name: &str, servers: usize, succeeds: bool) -> String {
    let mut command = Command::new("bpslaunch");
    command.args(["--workers", "2", "--servers", &servers.to_string(), "--"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("bodies::{}", name), "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("BYTEPS_FORCE_DISTRIBUTED", if servers > 0 { "1" } else { "0" });
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: bpslaunch cannot be started: {}", error);
            return String::new();
        }
    };
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.success(), succeeds, "{}", text);
    let ran = text.lines().filter(|line| line.starts_with("[worker") && line.ends_with("running 1 test")).count();
    assert_eq!(ran, 2, "the body must run on both workers: {}", text);
    text
}

#[macro_export]
macro_rules! jobs {
    ($($body:ident)*) => {$(
        #[test]
        fn $body() {
            common::run(stringify!($body), 1, true);
            common::run(stringify!($body), 0, true);
        }
    )*};
}

/// The least executor there is: runs a future on this thread.
pub fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(Thread, AtomicBool);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::SeqCst);
            self.0.unpark();
        }
    }
    let wake = Arc::new(Unpark(thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(wake.clone());
    let deadline = Instant::now() + LONG;
    loop {
        match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => {
                while !wake.1.swap(false, Ordering::SeqCst) {
                    assert!(Instant::now() < deadline, "nothing has woken the task");
                    thread::park_timeout(Duration::from_secs(1));
                }
            }
        }
    }
}

/// What tells that it was dropped, and lends memory.
pub struct Watched {
    values: Vec<f32>,
    dropped: Arc<AtomicBool>,
}

impl Watched {
    pub fn new(len: usize) -> (Watched, Arc<AtomicBool>) {
        let dropped = Arc::new(AtomicBool::new(false));
        (Watched { values: vec![1.0; len], dropped: dropped.clone() }, dropped)
    }
}

impl AsRef<[f32]> for Watched {
    fn as_ref(&self) -> &[f32] {
        &self.values
    }
}

impl AsMut<[f32]> for Watched {
    fn as_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // What the library still writes to must not become another caller's.
        self.values.fill(f32::NAN);
        self.dropped.store(true, Ordering::SeqCst);
    }
}

pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{}", what);
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn open() -> (Session, usize) {
    let session = Session::open().unwrap();
    let info = session.info().unwrap();
    assert_eq!(info.size, 2);
    (session, info.rank)
}

/// Ends this worker, and so its job, if it has not ended by then.
pub fn die_after(limit: Duration) {
    thread::spawn(move || {
        thread::sleep(limit);
        eprintln!("the body has not ended after {:?}", limit);
        std::process::abort();
    });
}
