//! As overhead.c, from Rust.

use byteps::{ReduceOp, Session};
use std::time::Instant;

const BATCHES: u32 = 200;
const ROUNDS: u32 = 2000;

fn measure(what: &str, rounds: u32, mut call: impl FnMut() -> byteps::Result<()>) -> byteps::Result<()> {
    let mut best = f64::MAX;
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..rounds {
            call()?;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(rounds));
    }
    println!("{} {:.1}", what, best);
    Ok(())
}

fn main() -> byteps::Result<()> {
    let session = Session::open()?;
    let tensor = session.tensor::<f32>("overhead", &[1])?;
    let mut values = vec![1.0];
    measure("Rust", ROUNDS, || tensor.push_pull(ReduceOp::Sum).in_place(&mut values))?;
    measure("Rust, scope", ROUNDS, || {
        byteps::scope(|scope| tensor.push_pull(ReduceOp::Sum).start_in(scope, &mut values)?.wait().map(drop))?
    })?;
    let mut owned = Some(values);
    measure("Rust, owned memory", ROUNDS / 10, || {
        owned = Some(tensor.push_pull(ReduceOp::Sum).start(owned.take().unwrap())?.wait()?);
        Ok(())
    })?;
    session.shutdown(None)
}
