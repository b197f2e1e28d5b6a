//! Some of the ranks of a job.

use crate::error::{check, Result};
use crate::session::{c_string, Inner, Session};
use byteps_sys as sys;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Some of the ranks, for collectives of their own; made by [`Session::process_set`]. A clone is the same set. It keeps its
/// session open.
#[derive(Clone)]
pub struct ProcessSet {
    inner: Arc<SetInner>,
}

struct SetInner {
    session: Arc<Inner>,
    set: NonNull<sys::bps_process_set>,
    ranks: Vec<usize>,
}

// The library's calls on a set may be made concurrently, on any thread.
unsafe impl Send for SetInner {}
unsafe impl Sync for SetInner {}

impl Drop for SetInner {
    fn drop(&mut self) {
        self.session.free_set(self.set);
    }
}

impl Session {
    /// Makes a set of these ranks, in any order. Sets of the same ranks and name are the same one on all ranks; none is
    /// asked, so ranks that are not in it need not make it.
    pub fn process_set(&self, ranks: &[usize], name: &str) -> Result<ProcessSet> {
        let name = c_string(name, "the name of a process set")?;
        let mut numbers: Vec<i32> = ranks.iter().map(|&rank| i32::try_from(rank).unwrap_or(i32::MAX)).collect();
        let args = sys::bps_process_set_args {
            name: name.as_ptr(),
            ranks: numbers.as_ptr(),
            num_ranks: i32::try_from(numbers.len()).unwrap_or(i32::MAX),
            ..Default::default()
        };
        let mut set = ptr::null_mut();
        unsafe { check(sys::bps_process_set_create(self.raw(), &args, &mut set))? };
        let set = NonNull::new(set).expect("bps_process_set_create succeeds with a set");
        numbers.sort_unstable();
        let ranks = numbers.iter().map(|&rank| rank as usize).collect();
        Ok(ProcessSet { inner: Arc::new(SetInner { session: self.inner.clone(), set, ranks }) })
    }
}

impl ProcessSet {
    /// Its ranks, ascending: the order of splits and gathered rows.
    pub fn ranks(&self) -> &[usize] {
        &self.inner.ranks
    }

    /// Whether it was made by the session, and may be used with it.
    pub(crate) fn is_of(&self, session: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.inner.session, session)
    }

    pub(crate) fn raw(&self) -> *mut sys::bps_process_set {
        self.inner.set.as_ptr()
    }
}

impl fmt::Debug for ProcessSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProcessSet").field(&self.inner.ranks).finish()
    }
}
