//! Deadlines, from `Duration` to the library's milliseconds.

use crate::error::{Code, Error, Result};
use std::time::Duration;

/// Milliseconds, rounded up; `None` is 0, the library's default. A duration of zero is no deadline that can be kept.
pub(crate) fn milliseconds(timeout: Option<Duration>) -> Result<i64> {
    let duration = match timeout {
        None => return Ok(0),
        Some(duration) => duration,
    };
    if duration.is_zero() {
        return Err(Error::new(Code::InvalidArgument, "the timeout is zero; None means the default"));
    }
    let rounded = duration.as_nanos().saturating_add(999_999) / 1_000_000;
    // Centuries: the library's clock counts nanoseconds in 64 bits.
    Ok(rounded.min(1 << 42) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_up_and_refuses_zero() {
        assert_eq!(milliseconds(None), Ok(0));
        assert_eq!(milliseconds(Some(Duration::from_nanos(1))), Ok(1));
        assert_eq!(milliseconds(Some(Duration::from_millis(7))), Ok(7));
        assert_eq!(milliseconds(Some(Duration::from_micros(7001))), Ok(8));
        assert_eq!(milliseconds(Some(Duration::MAX)), Ok(1 << 42));
        assert_eq!(milliseconds(Some(Duration::ZERO)).unwrap_err().code(), Code::InvalidArgument);
    }
}
