//! Whether this thread is inside a callback of the library, where nothing may block.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Whether a callback of this crate is running on this thread.
#[inline]
pub(crate) fn is_inside() -> bool {
    // A thread that ends has no callbacks any more.
    DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

/// Marks the length of a callback.
pub(crate) struct Inside(());

impl Inside {
    pub(crate) fn enter() -> Inside {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    }
}
