//! push_pull and broadcast in whole jobs; `common` says how they are started.

mod common;

use byteps::{Code, Error, ReduceOp, Request, Session};
use common::{block_on, open, run, until, Watched, LARGE, LONG};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

jobs!(reductions broadcasts futures dropped_and_forgotten scopes disagreements cancelled closed_in_flight two_sessions
      closed_by_a_wake_up many_threads);

#[test]
fn a_member_dies() {
    let text = run("a_member_dies", 1, false);
    assert!(text.is_empty() || text.contains("rank 0 heard of rank 1"), "{}", text);
}

mod bodies {
    use super::*;
    use byteps::ReduceOp::{Average, BitAnd, BitOr, BitXor, Max, Min, Product, Sum};

    #[test]
    #[ignore = "runs in a job"]
    fn reductions() {
        let (session, rank) = open();
        let own = [rank as f32 + 1.0, -2.0, 4.0];
        let tensor = session.tensor::<f32>("t", &[3]).unwrap();
        let expected: [(ReduceOp, [f32; 3]); 5] = [
            (Sum, [3.0, -4.0, 8.0]),
            (Average, [1.5, -2.0, 4.0]),
            (Min, [1.0, -2.0, 4.0]),
            (Max, [2.0, -2.0, 4.0]),
            (Product, [2.0, 4.0, 16.0]),
        ];
        for (op, result) in expected {
            let mut data = own;
            tensor.push_pull(op).in_place(&mut data).unwrap();
            assert_eq!(data, result, "{:?}", op);
            let mut output = [0.0; 3];
            tensor.push_pull(op).priority(-7).timeout(LONG).between(&own, &mut output).unwrap();
            assert_eq!((output, own[1]), (result, -2.0), "{:?}", op);
        }
        let bits = session.tensor::<i16>("bits", &[2]).unwrap();
        for (op, result) in [(BitAnd, [0b0100, 0]), (BitOr, [0b0111, -1]), (BitXor, [0b0011, -1])] {
            let mut data = if rank == 0 { [0b0110, 0] } else { [0b0101, -1] };
            bits.push_pull(op).in_place(&mut data).unwrap();
            assert_eq!(data, result, "{:?}", op);
        }
        assert_eq!(tensor.push_pull(BitOr).in_place(&mut [0.0; 3]).unwrap_err().code(), Code::InvalidArgument);
        let large = session.tensor::<i64>("large", &[1000, 1000]).unwrap();
        let mut data = session.buffer::<i64>(large.len()).unwrap();
        for (i, value) in data.iter_mut().enumerate() {
            *value = i as i64;
        }
        large.push_pull(Sum).in_place(&mut data).unwrap();
        assert!(data.iter().enumerate().all(|(i, &value)| value == 2 * i as i64));
        session.named_barrier("end", Some(LONG)).unwrap();
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn broadcasts() {
        let (session, rank) = open();
        let tensor = session.tensor::<f64>("t", &[4]).unwrap();
        for root in [1, 0] {
            let mut data = [rank as f64; 4];
            tensor.broadcast(root).in_place(&mut data).unwrap();
            assert_eq!(data, [root as f64; 4]);
            let input = if rank == root { vec![7.0; 4] } else { Vec::new() };
            tensor.broadcast(root).between(&input, &mut data).unwrap();
            assert_eq!(data, [7.0; 4]);
        }
        let error = tensor.broadcast(2).in_place(&mut [0.0; 4]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{}", error);
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn futures() {
        let (session, rank) = open();
        // In opposite orders on the two ranks: tensors meet by name.
        let mut order: Vec<usize> = (0..20).collect();
        if rank == 1 {
            order.reverse();
        }
        let requests: Vec<(usize, Request<Vec<f32>>)> = order
            .into_iter()
            .map(|i| {
                let tensor = session.tensor::<f32>(&format!("t{}", i), &[100 * i + 1]).unwrap();
                let values = vec![i as f32; tensor.len()];
                (i, tensor.push_pull(Sum).priority(i as i64).start(values).unwrap())
            })
            .collect();
        for (i, request) in requests {
            let values = block_on(request).unwrap();
            assert!(values.len() == 100 * i + 1 && values.iter().all(|&value| value == 2.0 * i as f32));
        }
        // Awaited inside an async function, with `?` on both kinds of error.
        async fn twice(session: &Session) -> byteps::Result<Vec<f32>> {
            let tensor = session.tensor::<f32>("twice", &[5])?;
            let once = tensor.push_pull(Sum).start(vec![1.0; 5])?.await?;
            Ok(tensor.push_pull(Sum).start(once)?.await?)
        }
        assert_eq!(block_on(Box::pin(twice(&session))).unwrap(), vec![4.0; 5]);
        // Waited for in slices.
        let tensor = session.tensor::<f32>("late", &[1]).unwrap();
        if rank == 0 {
            let request = tensor.push_pull(Sum).start([1.0]).unwrap();
            assert!(!request.wait_for(Duration::from_millis(20)).unwrap() && !request.is_ended());
            session.barrier().unwrap();
            while !request.wait_for(Duration::from_secs(1)).unwrap() {}
            assert!(request.is_ended());
            assert_eq!(request.wait().unwrap(), [3.0]);
        } else {
            session.barrier().unwrap();
            assert_eq!(tensor.push_pull(Sum).start([2.0]).unwrap().wait().unwrap(), [3.0]);
        }
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn dropped_and_forgotten() {
        let (session, rank) = open();
        let dropped = session.tensor::<f32>("dropped", &[LARGE]).unwrap();
        let forgotten = session.tensor::<f32>("forgotten", &[LARGE]).unwrap();
        if rank == 0 {
            let (memory, gone) = Watched::new(LARGE);
            drop(dropped.push_pull(Sum).start(memory).unwrap());
            assert!(!gone.load(Ordering::SeqCst), "the other rank has not begun: the library still reads it");
            let (memory, never) = Watched::new(LARGE);
            std::mem::forget(forgotten.push_pull(Sum).start(memory).unwrap());
            session.barrier().unwrap();
            until("the memory of a dropped request is dropped in the end", || gone.load(Ordering::SeqCst));
            // Another round of that name needs the first to have ended.
            until("the forgotten operation ends", || forgotten.push_pull(Sum).in_place(&mut [1.0; LARGE]).is_ok());
            assert!(!never.load(Ordering::SeqCst), "forgotten memory stays");
        } else {
            session.barrier().unwrap();
            for tensor in [&dropped, &forgotten, &forgotten] {
                let sums = tensor.push_pull(Sum).start(vec![2.0; LARGE]).unwrap().wait().unwrap();
                assert!(sums.iter().all(|&sum| sum == 3.0));
            }
        }
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn scopes() {
        let (session, rank) = open();
        let tensors: Vec<_> =
            (0..10).map(|i| session.tensor::<f32>(&format!("t{}", i), &[1000 * i + 1]).unwrap()).collect();
        let mut gradients: Vec<Vec<f32>> = tensors.iter().map(|tensor| vec![1.0; tensor.len()]).collect();
        let (mut first, total) = (vec![1.0; 1], vec![10.0; 1]);
        let mut sum = vec![0.0; 1];
        let one = session.tensor::<f32>("one", &[1]).unwrap();
        let two = session.tensor::<f32>("two", &[1]).unwrap();
        let seen = byteps::scope(|scope| -> byteps::Result<f32> {
            for (tensor, gradient) in tensors.iter().zip(&mut gradients) {
                let request = tensor.push_pull(Sum).start_in(scope, gradient)?;
                match tensor.len() % 3 {
                    0 => drop(request),
                    1 => std::mem::forget(Box::new(request)),
                    _ => assert_eq!(request.wait()?[0], 2.0),
                }
            }
            let request = two.push_pull(Sum).start_between_in(scope, &total, &mut sum)?;
            let seen = one.push_pull(Sum).start_in(scope, &mut first)?.wait()?[0];
            while !request.is_ended() {
                thread::yield_now();
            }
            Ok(seen + total[0])
        });
        assert_eq!(seen.unwrap().unwrap(), 12.0);
        assert!(gradients.iter().flatten().all(|&value| value == 2.0));
        assert_eq!((first[0], sum[0]), (2.0, 20.0));

        // A panic on one rank: what is in flight is given up there, and the borrow ends with the scope all the same.
        let lost = session.tensor::<f32>("lost", &[LARGE]).unwrap();
        let mut gradient = vec![1.0; LARGE];
        if rank == 0 {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                byteps::scope(|scope| {
                    std::mem::forget(Box::new(lost.push_pull(Sum).start_in(scope, &mut gradient).unwrap()));
                    panic!("on purpose");
                })
            }));
            assert!(panicked.is_err());
            session.barrier().unwrap();
        } else {
            session.barrier().unwrap();
            assert_eq!(lost.push_pull(Sum).in_place(&mut gradient).unwrap_err().code(), Code::Aborted);
        }
        // No caller waits for it, and it fails: the scope says so.
        let name = format!("shape of rank {}", rank);
        let apart = session.tensor::<f32>(&name, &[1]).unwrap();
        let mut gradient = [1.0];
        let missed: Result<(), Error> = byteps::scope(|scope| {
            let _ = apart.push_pull(Sum).timeout(Duration::from_millis(200)).start_in(scope, &mut gradient).unwrap();
        });
        assert_eq!(missed.unwrap_err().code(), Code::DeadlineExceeded);
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn disagreements() {
        let (session, rank) = open();
        let tensor = session.tensor::<f32>("t", &[10 + rank]).unwrap();
        let failed = tensor.push_pull(Sum).start(vec![1.0; tensor.len()]).unwrap().wait().unwrap_err();
        assert_eq!(failed.error.code(), Code::FailedPrecondition);
        assert!(failed.error.message().contains("\"t\""), "{}", failed);
        assert_eq!(failed.memory.expect("the memory comes back").len(), 10 + rank);
        let tensor = session.tensor::<f32>("t", &[10]).unwrap();
        assert_eq!(tensor.push_pull(Sum).start(vec![1.0; 10]).unwrap().wait().unwrap(), vec![2.0; 10]);
        // Twice at once.
        let twice = session.tensor::<f32>("twice", &[10]).unwrap();
        if rank == 0 {
            let request = twice.push_pull(Sum).start(vec![1.0; 10]).unwrap();
            let failed = twice.push_pull(Sum).start(vec![1.0; 10]).unwrap_err();
            assert_eq!((failed.error.code(), failed.memory), (Code::AlreadyExists, Some(vec![1.0; 10])));
            session.barrier().unwrap();
            request.wait().unwrap();
        } else {
            session.barrier().unwrap();
            twice.push_pull(Sum).in_place(&mut [1.0; 10]).unwrap();
        }
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn cancelled() {
        let (session, rank) = open();
        let tensor = session.tensor::<f32>("given up", &[LARGE]).unwrap();
        if rank == 0 {
            let request = tensor.push_pull(Sum).start(vec![1.0; LARGE]).unwrap();
            request.cancel().unwrap();
            let failed = block_on(request).unwrap_err();
            assert_eq!(failed.error.code(), Code::Cancelled, "{}", failed);
            assert!(failed.memory.is_some());
            session.barrier().unwrap();
        } else {
            session.barrier().unwrap();
            let error = tensor.push_pull(Sum).in_place(&mut vec![1.0; LARGE]).unwrap_err();
            assert_eq!(error.code(), Code::Aborted);
            assert!(error.message().contains("rank 0"), "{}", error);
        }
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn closed_in_flight() {
        let (session, rank) = open();
        let (memory, gone) = Watched::new(1000);
        let tensor = session.tensor::<f32>(&format!("only on rank {}", rank), &[1000]).unwrap();
        let request = tensor.push_pull(Sum).start(memory).unwrap();
        let kept = {
            let tensor = session.tensor::<f32>(&format!("kept by rank {}", rank), &[10]).unwrap();
            tensor.push_pull(Sum).start(vec![1.0; 10]).unwrap()
        };
        drop(tensor);
        // The slower of the two hears that the other has left.
        let left = [Code::DeadlineExceeded, Code::Unavailable];
        assert!(left.contains(&session.shutdown(Some(Duration::from_millis(200))).unwrap_err().code()));
        drop(session);
        assert!(kept.is_ended(), "a session that is closed has ended everything");
        let failed = kept.wait().unwrap_err();
        assert!([Code::Cancelled, Code::Unavailable].contains(&failed.error.code()), "{}", failed);
        assert_eq!(failed.memory.unwrap().len(), 10);
        drop(request);
        assert!(gone.load(Ordering::SeqCst));
    }

    #[test]
    #[ignore = "runs in a job"]
    fn two_sessions() {
        let (session, rank) = open();
        let second = Session::options().name("second").open().unwrap();
        assert_eq!(second.info().unwrap().size, 2);
        // Equal names, other tensors: the two do not meet.
        let (a, b) = (session.tensor::<f32>("t", &[10]).unwrap(), second.tensor::<f32>("t", &[10]).unwrap());
        let in_first = a.push_pull(Sum).start(vec![1.0; 10]).unwrap();
        let in_second = b.push_pull(Sum).start(vec![10.0 + rank as f32; 10]).unwrap();
        assert_eq!(in_second.wait().unwrap(), vec![21.0; 10]);
        assert_eq!(in_first.wait().unwrap(), vec![2.0; 10]);
        drop((a, b));
        second.shutdown(None).unwrap();
        drop(second);
        let a = session.tensor::<f32>("after", &[10]).unwrap();
        assert_eq!(a.push_pull(Sum).start(vec![1.0; 10]).unwrap().wait().unwrap(), vec![2.0; 10]);
        session.shutdown(None).unwrap();
    }

    /// The last handle of a session goes with a waker, on a thread of the library: it is closed all the same.
    #[test]
    #[ignore = "runs in a job"]
    fn closed_by_a_wake_up() {
        struct Holds(std::sync::Mutex<Option<Session>>);
        impl Wake for Holds {
            fn wake(self: Arc<Self>) {
                let session = self.0.lock().unwrap().take().unwrap();
                // Nothing may block here, and says so instead.
                let tensor = session.tensor::<f32>("inside", &[1]).unwrap();
                let error = tensor.push_pull(Sum).in_place(&mut [1.0]).unwrap_err();
                assert_eq!(error.code(), Code::FailedPrecondition);
                assert_eq!(byteps::scope(|_| ()).unwrap_err().code(), Code::FailedPrecondition);
                drop((tensor, session));
            }
        }
        let (session, rank) = open();
        let second = Session::options().name("second");
        if rank == 1 {
            let second = second.open().unwrap();
            let tensor = second.tensor::<f32>("t", &[10]).unwrap();
            session.barrier().unwrap();
            // The other leaves at once, perhaps before the sum is home.
            let _ = tensor.push_pull(Sum).in_place(&mut [1.0; 10]);
            session.barrier().unwrap();
            return session.shutdown(None).unwrap();
        }
        let (logged, lines) = std::sync::mpsc::channel();
        let logged = std::sync::Mutex::new(logged);
        let second = second.log(move |_, line| drop(logged.lock().unwrap().send(line.to_string()))).open().unwrap();
        let mut request = second.tensor::<f32>("t", &[10]).unwrap().push_pull(Sum).start(vec![1.0; 10]).unwrap();
        let waker = Waker::from(Arc::new(Holds(std::sync::Mutex::new(Some(second)))));
        assert!(Pin::new(&mut request).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        session.barrier().unwrap();
        assert_eq!(request.wait().unwrap(), vec![2.0; 10]);
        // The log's closure goes with the session, and the channel with it.
        let deadline = Instant::now() + LONG;
        while lines.recv_timeout(LONG) != Err(std::sync::mpsc::RecvTimeoutError::Disconnected) {
            assert!(Instant::now() < deadline, "the session was not closed");
        }
        session.barrier().unwrap();
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn many_threads() {
        let (session, _) = open();
        thread::scope(|scope| {
            for t in 0..8 {
                let session = session.clone();
                scope.spawn(move || {
                    let tensor = session.tensor::<f32>(&format!("thread {}", t), &[500]).unwrap();
                    for round in 0..50 {
                        let values = tensor.push_pull(Sum).start(vec![round as f32; 500]).unwrap().wait().unwrap();
                        assert_eq!(values, vec![2.0 * round as f32; 500]);
                    }
                });
            }
        });
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn a_member_dies() {
        let (session, rank) = open();
        let tensor = session.tensor::<f32>("t", &[100_000]).unwrap();
        let mut data = vec![1.0; 100_000];
        session.barrier().unwrap();
        if rank == 1 {
            std::process::abort();
        }
        let error = tensor.push_pull(Sum).in_place(&mut data).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(!error.is_retryable());
        assert!(error.message().contains("rank 1"), "{}", error);
        println!("rank 0 heard of rank 1");
        assert!(session.info().unwrap().failed);
        assert_eq!(session.barrier().unwrap_err().code(), Code::Unavailable);
    }
}
