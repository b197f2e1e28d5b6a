//! Data-parallel training of a small network on handwritten digits.
//!
//!     export BYTEPS_HOME=$(python -c 'import byteps; print(byteps.__path__[0])')      # or the prefix of an installation
//!     cargo build --release --offline
//!     bpslaunch --workers 2 -- target/release/digits [EPOCHS [FILE]]
//!
//! What makes this training data-parallel is marked [1] to [5]; with one worker it is an ordinary program.

mod data;
mod network;
mod random;

use byteps::{ReduceOp, Session, Tensor};
use data::Digits;
use network::{Gradients, Network, LAYERS};
use random::Random;
use std::time::Instant;

const BATCH_SIZE: usize = 64; // over all workers
const LEARNING_RATE: f32 = 5e-3;
const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let epochs: u64 = arguments.next().map_or(Ok(30), |text| text.parse())?;
    let file = arguments.next().unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../data/digits.bin").into());
    let digits = Digits::read(file.as_ref())?;

    let session = Session::open()?; // [1] join the job
    let job = session.info()?;

    let mut network = Network::new(&mut Random::new(SEED + job.rank as u64)); // differs, so that only [2] makes them equal
    let mut tensors: Vec<Tensor<f32>> = Vec::new();
    for (i, parameter) in network.parameters.iter_mut().enumerate() {
        let tensor = session.tensor(&format!("parameter.{}", i), &[parameter.len()])?;
        tensor.broadcast(0).in_place(parameter)?; // [2] start from the same weights
        tensors.push(tensor);
    }
    let loss_tensor = session.tensor::<f32>("loss", &[1])?;

    let batch_size = (BATCH_SIZE / job.size).max(1);
    let steps = digits.train.len() / (batch_size * job.size);
    let mut gradients = Gradients::new();
    let start = Instant::now();
    let mut accuracy = 0.0;
    for epoch in 1..=epochs {
        let mut order: Vec<usize> = (0..digits.train.len()).collect();
        Random::new(SEED + epoch).shuffle(&mut order); // the same order on all workers
        let mine: Vec<usize> = order.into_iter().skip(job.rank).step_by(job.size).collect(); // [3] each takes its part
        let epoch_start = Instant::now();
        let mut loss = [0.0];
        for batch in mine.chunks_exact(batch_size).take(steps) {
            let errors = network.forward(batch.iter().map(|&i| &digits.train[i]));
            loss[0] += errors.loss / steps as f32;
            // [4] average the gradients over all workers: those of the last layer travel while the first one's are computed
            byteps::scope(|scope| -> byteps::Result<()> {
                let mut backward = network.backward(&errors, &mut gradients);
                for layer in (0..LAYERS).rev() {
                    for (i, gradient) in backward.next_layer() {
                        let push_pull = tensors[i].push_pull(ReduceOp::Average).priority(-(layer as i64));
                        let _ = push_pull.start_in(scope, gradient)?; // the scope waits for it
                    }
                }
                Ok(())
            })??;
            network.step(&gradients, LEARNING_RATE);
        }
        let seconds = epoch_start.elapsed().as_secs_f64();

        loss_tensor.push_pull(ReduceOp::Average).in_place(&mut loss)?; // [5] the mean over all workers
        accuracy = network.accuracy(&digits.test);
        if job.rank == 0 {
            let speed = (steps * batch_size * job.size) as f64 / seconds;
            println!(
                "epoch {:2}/{}  loss {:.4}  test accuracy {:.4}  {:.0} samples/s",
                epoch, epochs, loss[0], accuracy, speed
            );
        }
    }
    if job.rank == 0 {
        println!(
            "digits: test accuracy {:.4} in {:.1} s, {} workers, {} servers, transport {}, scheduler {}",
            accuracy,
            start.elapsed().as_secs_f64(),
            job.size,
            job.num_servers,
            session.transport(),
            session.scheduler()
        );
    }
    session.shutdown(None)?;
    Ok(())
}
