//! Rust in a process of another language: a session of its own, beside that of its host.

use byteps::{ReduceOp, Session};

fn sums(rounds: u32) -> byteps::Result<f64> {
    let session = Session::options().name("guest").open()?;
    let rank = session.info()?.rank;
    let tensor = session.tensor::<f64>("shared name", &[1000])?;
    let mut total = 0.0;
    for round in 0..rounds {
        let values = vec![f64::from(round) + rank as f64; 1000];
        let values = tensor.push_pull(ReduceOp::Sum).start(values)?.wait()?;
        total += values[999];
    }
    session.shutdown(None)?;
    Ok(total)
}

/// The sum over `rounds` of push_pulls by all workers; negative after an error, which is printed.
#[no_mangle]
pub extern "C" fn guest_sums(rounds: u32) -> f64 {
    sums(rounds).unwrap_or_else(|error| {
        eprintln!("guest: {}", error);
        -1.0
    })
}
