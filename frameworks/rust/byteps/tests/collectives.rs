//! Collectives, process sets, groups, join and sparse rows in whole jobs; `common` says how they are started.

mod common;

use byteps::{Code, Collective};
use common::{block_on, open, until, Watched, LARGE};
use std::sync::atomic::Ordering;
use std::sync::Arc;

jobs!(
    each_kind
    inputs
    sets
    groups
    joins
    sparse_rows
    disagreements
    given_up_rounds
    numbers_that_must_agree
    a_set_that_goes_first
);

mod bodies {
    use super::*;
    use byteps::ReduceOp::{Adasum, Average, BitOr, Max, Product, Sum};

    #[test]
    #[ignore = "runs in a job"]
    fn each_kind() {
        let (session, rank) = open();
        let own = rank as f32;
        // Rows differ between ranks.
        let rows = session.all_gather::<f32>("gather", &[rank + 1, 2]).run(&vec![own; 2 * (rank + 1)]).unwrap();
        assert_eq!(*rows, [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!((rows.shape(), rows.splits()), (&[3, 2][..], &[1, 2][..]));

        let three = [1.0, 2.0, 3.0];
        assert_eq!(*session.all_reduce("max", &[3], Max).run(&[own, 5.0, -own]).unwrap(), [1.0, 5.0, 0.0]);
        let scaled = session.all_reduce("scaled", &[3], Sum).scaled(0.5, 4.0);
        assert_eq!(*scaled.run(&three).unwrap(), [4.0, 8.0, 12.0]);
        // Equal vectors: their mean.
        assert_eq!(*session.all_reduce("adasum", &[3], Adasum).run(&three).unwrap(), three);
        let mut bits = [1_u8 << rank];
        session.all_reduce("bits", &[1], BitOr).in_place(&mut bits).unwrap();
        assert_eq!(bits, [3]);

        let scattered = session.reduce_scatter("rs", &[3], Sum).splits(&[1, 2]).run(&three).unwrap();
        assert_eq!(*scattered, *[&[2.0][..], &[4.0, 6.0]][rank]);
        let exchanged = session.all_to_all("a2a", &[2]).run(&[10 * rank as i64, 10 * rank as i64 + 1]).unwrap();
        assert_eq!(*exchanged, [rank as i64, 10 + rank as i64]);
        let uneven = session.all_to_all("a2a uneven", &[3]).splits(&[[1, 2], [3, 0]][rank]).run(&three).unwrap();
        assert_eq!((uneven.len(), uneven.splits()), ([4, 2][rank], &[[1, 3], [2, 0]][rank][..]));

        let reduced = session.reduce("reduce", &[3], Product, 1).run(&three).unwrap();
        assert_eq!(*reduced, *[&[][..], &[1.0, 4.0, 9.0]][rank]);
        assert_eq!(session.gather("to root", &[3], 0).run(&three).unwrap().len(), [6, 0][rank]);
        let input: &[i32] = [&[5, 6, 7][..], &[]][rank];
        assert_eq!(*session.scatter("from root", &[input.len()], 0).run(input).unwrap(), *[&[5, 6][..], &[7]][rank]);
        let input: &[f64] = [&[][..], &[4.0, 5.0]][rank];
        assert_eq!(*session.broadcast("b", &[2], 1).run(input).unwrap(), [4.0, 5.0]);
        let mut data = [rank; 4].map(|rank| rank as i8);
        session.broadcast("in place", &[2, 2], 1).in_place(&mut data).unwrap();
        assert_eq!(data, [1; 4]);
        session.barrier_of_ranks("barrier").run(&[]).unwrap();

        // Each to the other, in the order of submission.
        let sent: Vec<_> = (0..3).map(|i| session.send(1 - rank, 7, &[1]).start([own + i as f32]).unwrap()).collect();
        for i in 0..3 {
            let received = session.receive::<f32>(1 - rank, 7, &[0]).run(&[]).unwrap();
            assert_eq!((*received).to_vec(), [1.0 - own + i as f32]);
        }
        sent.into_iter().for_each(|request| drop(request.wait().unwrap()));
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn inputs() {
        let (session, rank) = open();
        // The input comes back, and the output is another memory, which outlives everything.
        let gather = |name: &str| session.all_gather::<f32>(name, &[2]);
        let (output, input) = gather("vec").start(vec![1.0 + rank as f32; 2]).unwrap().wait().unwrap();
        assert_eq!((&*output, input), (&[1.0, 1.0, 2.0, 2.0][..], vec![1.0 + rank as f32; 2]));
        let shared: Arc<[f32]> = Arc::from(vec![3.0; 2]);
        let request = gather("arc").priority(-2).start(shared.clone()).unwrap();
        assert_eq!(*block_on(request).unwrap().0, [3.0; 4]);
        let mut buffer = session.buffer::<f32>(2).unwrap();
        buffer.fill(4.0);
        assert_eq!(*gather("buffer").start(buffer).unwrap().wait().unwrap().0, [4.0; 4]);
        let (mut kept, _) = gather("array").start([5.0; 2]).unwrap().wait().unwrap();

        // Dropped and forgotten while the other has not begun.
        let large = |name: &str| session.all_gather::<f32>(name, &[LARGE]);
        if rank == 0 {
            let (memory, gone) = Watched::new(LARGE);
            drop(large("dropped").start(memory).unwrap());
            let (memory, never) = Watched::new(LARGE);
            std::mem::forget(large("forgotten").start(memory).unwrap());
            assert!(!gone.load(Ordering::SeqCst), "the library still reads it");
            session.barrier().unwrap();
            until("the memory of a dropped request is dropped in the end", || gone.load(Ordering::SeqCst));
            assert!(!never.load(Ordering::SeqCst), "forgotten memory stays");
        } else {
            session.barrier().unwrap();
            for name in ["dropped", "forgotten"] {
                let output = large(name).run(&vec![2.0; LARGE]).unwrap();
                assert!(output[..LARGE].iter().all(|&value| value == 1.0));
            }
        }
        session.shutdown(None).unwrap();
        drop(session);
        kept[0] = 6.0;
        assert_eq!(*kept, [6.0, 5.0, 5.0, 5.0]);
    }

    #[test]
    #[ignore = "runs in a job"]
    fn sets() {
        let (session, rank) = open();
        let both = session.process_set(&[1, 0], "").unwrap();
        assert_eq!(both.ranks(), [0, 1]);
        assert_eq!(*session.all_reduce("t", &[2], Average).on(&both).run(&[rank as f32, 1.0]).unwrap(), [0.5, 1.0]);
        // Of one rank alone, the other knows nothing of it.
        let alone = session.process_set(&[rank], "alone").unwrap();
        assert_eq!(*session.all_reduce("t", &[1], Sum).on(&alone).run(&[7.0_f64]).unwrap(), [7.0]);
        let other = session.process_set(&[1 - rank], "alone").unwrap();
        let error = session.all_reduce("t", &[1], Sum).on(&other).run(&[7.0_f64]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{}", error);
        assert_eq!(session.process_set(&[0, 2], "").unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(session.process_set(&[], "").unwrap_err().code(), Code::InvalidArgument);
        let second = byteps::Session::options().name("second").open().unwrap();
        let error = second.all_reduce("t", &[1], Sum).on(&both).run(&[1.0_f32]).unwrap_err();
        assert!(error.message().contains("another session"), "{}", error);
        second.shutdown(None).unwrap();
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn groups() {
        let (session, rank) = open();
        let mut group = session.group();
        let sum = group.add(&session.all_reduce("sum", &[LARGE], Sum), vec![1.0_f32; LARGE]);
        let rows = group.add(&session.all_gather("rows", &[1]), [7_i16 + rank as i16]);
        group.add(&session.barrier_of_ranks("barrier"), []);
        let mut outputs = block_on(group.start().unwrap()).unwrap();
        assert_eq!(outputs.take::<f64>(sum).unwrap_err().code(), Code::InvalidArgument);
        let (sum, rows) = (outputs.take::<f32>(sum).unwrap(), outputs.take::<i16>(rows).unwrap());
        assert_eq!(outputs.take::<i16>(1).unwrap_err().code(), Code::InvalidArgument);
        drop(outputs);
        assert!(sum.iter().all(|&value| value == 2.0));
        assert_eq!(*rows, [7, 8]);

        // One is refused: none is started, and the names are free.
        let mut group = session.group();
        group.add(&session.all_reduce("good", &[1], Sum), [1.0_f32]);
        group.add(&session.all_reduce("bad", &[2], Sum), [1.0_f32]);
        assert_eq!(group.start().unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(session.group().start().unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(*session.all_reduce("good", &[1], Sum).run(&[1.0_f32]).unwrap(), [2.0]);
        // One fails: so does the whole.
        let mut group = session.group();
        group.add(&session.all_gather("apart", &[1, 1 + rank]), vec![1.0_f32; 1 + rank]);
        group.add(&session.all_reduce("good", &[1], Sum), [1.0_f32]);
        let error = group.start().unwrap().wait().unwrap_err();
        assert!([Code::FailedPrecondition, Code::Aborted].contains(&error.code()), "{}", error);
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn joins() {
        let (session, rank) = open();
        let tensor = session.tensor::<f32>("t", &[3]).unwrap();
        for (steps, last) in [([2, 4], 1), ([3, 1], 0)] {
            for step in 0..steps[rank] {
                let mut data = [1.0; 3];
                tensor.push_pull(Sum).in_place(&mut data).unwrap();
                let both = step < steps[1 - rank];
                assert_eq!(data, [if both { 2.0 } else { 1.0 }; 3]);
            }
            let request = session.join(None).unwrap();
            let joined = if rank == 0 { request.wait() } else { block_on(request) };
            assert_eq!(joined.unwrap(), last);
        }
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn sparse_rows() {
        let (session, rank) = open();
        let reduction = session.sparse_all_reduce::<f32>("table", &[100, 2], Sum);
        let reduced = reduction.run(&[90, rank as i64], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!((&*reduced.numbers, reduced.is_whole()), (&[0, 1, 90][..], false));
        assert_eq!(*reduced.rows, [3.0, 4.0, 3.0, 4.0, 2.0, 4.0]);
        // Rows of all take more than the whole.
        let small = session.sparse_all_reduce::<f64>("small", &[2, 1], Average);
        let reduced = block_on(small.start(&[0, 1, 0, 1], &[2.0; 4]).unwrap()).unwrap();
        assert_eq!((&*reduced.rows, reduced.is_whole()), (&[4.0, 4.0][..], true));
        let error = reduction.run(&[0], &[1.0]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{}", error);
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn disagreements() {
        let (session, rank) = open();
        let apart = session.all_gather::<f32>("apart", &[1, 1 + rank]);
        let failed = apart.start(vec![0.0; 1 + rank]).unwrap().wait().unwrap_err();
        assert_eq!(
            (failed.error.code(), failed.memory.map(|memory| memory.len())),
            (Code::FailedPrecondition, Some(1 + rank))
        );
        let short = |collective: Collective<f32>| collective.run(&[1.0]).unwrap_err().code();
        assert_eq!(short(session.all_gather("short", &[2])), Code::InvalidArgument);
        assert_eq!(short(session.all_reduce("no op", &[1], Sum).splits(&[1, 1])), Code::InvalidArgument);
        assert_eq!(short(session.all_gather("", &[1])), Code::InvalidArgument);
        let error = session.all_gather("in place", &[1]).in_place(&mut [1.0_f32]).unwrap_err();
        assert!(error.message().contains("another size"), "{}", error);
        if rank == 0 {
            let request = session.all_gather("given up", &[LARGE]).start(vec![1.0_f32; LARGE]).unwrap();
            let twice = session.all_gather("given up", &[LARGE]).start(vec![1.0_f32; LARGE]).unwrap_err();
            assert_eq!(twice.error.code(), Code::AlreadyExists);
            request.cancel().unwrap();
            assert_eq!(request.wait().unwrap_err().error.code(), Code::Cancelled);
            session.barrier().unwrap();
        } else {
            session.barrier().unwrap();
            let error = session.all_gather("given up", &[LARGE]).run(&vec![1.0_f32; LARGE]).unwrap_err();
            assert_eq!(error.code(), Code::Aborted, "{}", error);
        }
        session.shutdown(None).unwrap();
    }

    /// Rank 0 does not come to a round; the next one is whole.
    #[test]
    #[ignore = "runs in a job"]
    fn given_up_rounds() {
        let (session, rank) = open();
        let check = |given_up: byteps::Result<()>| match (rank, given_up) {
            (0, given_up) => given_up.unwrap(),
            (_, given_up) => {
                let error = given_up.unwrap_err();
                assert_eq!(error.code(), Code::Aborted, "{}", error);
                assert!(error.message().contains("no memory") && error.message().contains("rank 0"), "{}", error);
            }
        };
        let either = |give_up: &dyn Fn() -> byteps::Result<()>, run: &dyn Fn() -> byteps::Result<()>| {
            check(if rank == 0 { give_up() } else { run() });
        };
        let tensor = session.tensor::<f32>("tensor", &[2]).unwrap();
        either(&|| tensor.push_pull(Sum).give_up("no memory"), &|| tensor.push_pull(Sum).in_place(&mut [1.0; 2]));
        either(&|| tensor.broadcast(1).give_up("no memory"), &|| tensor.broadcast(1).in_place(&mut [1.0; 2]));
        let mut data = [1.0; 2];
        tensor.push_pull(Sum).in_place(&mut data).unwrap();
        assert_eq!(data, [2.0; 2]);

        let gather = session.all_gather::<f32>("gather", &[2]).matching(3);
        either(&|| gather.give_up("no memory"), &|| gather.run(&[1.0; 2]).map(drop));
        assert_eq!(*gather.run(&[1.0; 2]).unwrap(), [1.0; 4]);
        let rows = session.sparse_all_reduce::<f32>("rows", &[9, 2], Sum);
        either(&|| rows.give_up("no memory"), &|| rows.run(&[8], &[1.0; 2]).map(drop));
        assert_eq!(*rows.run(&[8], &[1.0; 2]).unwrap().rows, [2.0; 2]);
        assert_eq!(gather.give_up("a\0b").unwrap_err().code(), Code::InvalidArgument);
        session.shutdown(None).unwrap();
    }

    #[test]
    #[ignore = "runs in a job"]
    fn numbers_that_must_agree() {
        let (session, rank) = open();
        let number = 7 + rank as u64;
        let tensor = session.tensor::<f32>("tensor", &[2]).unwrap();
        let mut data = [1.0; 2];
        let failures = [
            tensor.push_pull(Sum).matching(number).in_place(&mut data),
            tensor.broadcast(0).matching(number).in_place(&mut data),
            session.all_gather::<f32>("gather", &[2]).matching(number).run(&[1.0; 2]).map(drop),
            session.sparse_all_reduce::<f32>("rows", &[9, 2], Sum).matching(number).run(&[8], &[1.0; 2]).map(drop),
        ];
        for failure in failures {
            assert_eq!(failure.unwrap_err().code(), Code::FailedPrecondition);
        }
        data = [1.0; 2];
        tensor.push_pull(Sum).matching(7).in_place(&mut data).unwrap();
        assert_eq!(data, [2.0; 2]);
        session.shutdown(None).unwrap();
    }

    /// A set is let go of while an operation uses it.
    #[test]
    #[ignore = "runs in a job"]
    fn a_set_that_goes_first() {
        let (session, rank) = open();
        let both = session.process_set(&[0, 1], "goes").unwrap();
        let gather = session.all_gather::<f32>("t", &[LARGE]).on(&both);
        if rank == 0 {
            let request = gather.start(vec![1.0; LARGE]).unwrap();
            drop((both, gather));
            session.barrier().unwrap();
            assert_eq!(request.wait().unwrap().0.len(), 2 * LARGE);
        } else {
            session.barrier().unwrap();
            assert_eq!(gather.run(&vec![2.0; LARGE]).unwrap()[0], 1.0);
        }
        session.shutdown(None).unwrap();
    }
}
