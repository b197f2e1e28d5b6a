//! The library's log. One test alone: it changes the environment of the process.

use byteps::{Level, Session};
use std::sync::{Arc, Mutex};

#[test]
fn lines_go_to_the_closure() {
    std::env::set_var("BYTEPS_NO_SUCH_VARIABLE", "1");
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = lines.clone();
    let open = || {
        let sink = sink.clone();
        Session::options().log(move |level, line| sink.lock().unwrap().push((level, line.to_string())))
    };
    drop(open().log_level(Level::Warning).open().unwrap());
    let warned = std::mem::take(&mut *lines.lock().unwrap());
    assert!(warned.iter().any(|(level, line)| *level == Level::Warning && line.contains("BYTEPS_NO_SUCH_VARIABLE")));
    assert!(warned.iter().all(|(level, line)| *level >= Level::Warning && !line.is_empty()));

    drop(open().log_level(Level::Error).open().unwrap());
    assert!(lines.lock().unwrap().is_empty(), "a level that is asked for is kept");
    drop(Session::options().log(|_, _| panic!("on purpose")).log_level(Level::Warning).open().unwrap());
    assert_eq!(Arc::strong_count(&lines), 2, "the closures of closed sessions are dropped");
}
