//! Operations on memory of GPUs in whole jobs, on the simulated GPU that BYTEPS_DEVICE names; `common` says how they are
//! started, `fake_gpu` what the program itself does with the GPU.

mod common;
#[path = "common/fake_gpu.rs"]
mod fake_gpu;

use byteps::{Code, DeviceBuffer, Session, Stream};
use common::{block_on, until, LONG};
use fake_gpu::Gpu;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::Arc;
use std::time::Duration;

macro_rules! gpu_jobs {
    ($($body:ident)*) => {$(
        #[test]
        fn $body() {
            if std::env::var_os("BYTEPS_DEVICE").is_none() {
                return println!("skipped: BYTEPS_DEVICE names no simulated GPU");
            }
            common::run(stringify!($body), 1, true);
            common::run(stringify!($body), 0, true);
        }
    )*};
}

gpu_jobs!(rounds_in_a_stream several_streams between_host_and_gpu broadcasts two_ends dropped_and_forgotten
          given_back_when_done refused collectives);

mod bodies {
    use super::*;
    use byteps::ReduceOp::{Average, Sum};

    /// A session, this rank, the GPU and a stream of the program's.
    fn open() -> (Session, usize, Gpu, Stream) {
        common::die_after(4 * LONG);
        let (session, rank) = common::open();
        let gpu = Gpu::open();
        let stream = gpu.stream();
        (session, rank, gpu, stream)
    }

    fn close(session: Session, gpu: Gpu) {
        session.shutdown(None).unwrap();
        gpu.assert_no_races();
    }

    // Small whole numbers: every order of additions has their bits.
    fn values(rank: usize, round: usize, len: usize) -> Vec<f32> {
        (0..len).map(|at| ((rank + 1) * (round + 3) + at * 7 % 1000) as f32).collect()
    }

    fn sums(round: usize, len: usize) -> Vec<f32> {
        values(0, round, len).iter().zip(values(1, round, len)).map(|(a, b)| a + b).collect()
    }

    /// A buffer with these values, when the stream has come there.
    fn filled(session: &Session, gpu: &Gpu, stream: Stream, values: &[f32]) -> DeviceBuffer<f32> {
        let buffer = session.device_buffer(values.len(), 0).unwrap();
        gpu.write(buffer.as_device_ptr(), values, stream);
        buffer
    }

    fn read(gpu: &Gpu, buffer: &DeviceBuffer<f32>, stream: Stream) -> Vec<f32> {
        let copied = gpu.read(buffer.as_device_ptr(), buffer.len(), stream);
        gpu.synchronize(stream);
        copied.values()
    }

    /// The host submits all rounds, each behind the one before, and waits for the GPU once, at the end.
    #[test]
    #[ignore = "runs in a job"]
    fn rounds_in_a_stream() {
        let (session, rank, gpu, stream) = open();
        let tensors: Vec<_> = [1, 5000, 300_001]
            .iter()
            .map(|&len| session.tensor::<f32>(&format!("of {}", len), &[len]).unwrap())
            .collect();
        // One allocation for all.
        let mut rest = session.device_buffer::<f32>(305_002, 0).unwrap();
        let mut buffers = Vec::new();
        for tensor in &tensors {
            let (buffer, others) = rest.split_at(tensor.len());
            buffers.push(buffer);
            rest = others;
        }
        assert!(rest.is_empty() && buffers[2].len() == 300_001 && buffers[2].gpu() == 0);
        drop(rest);
        let before = gpu.counts();
        let mut results = Vec::new();
        for round in 0..4 {
            let mut requests = Vec::new();
            for (tensor, buffer) in tensors.iter().zip(buffers.drain(..)) {
                gpu.write(buffer.as_device_ptr(), &values(rank, round, tensor.len()), stream);
                let sum = tensor.push_pull(Sum).priority(round as i64).timeout(LONG);
                requests.push(sum.on_gpu(stream).start(buffer).unwrap());
            }
            for request in requests {
                let buffer = request.wait_enqueued().unwrap();
                results.push((round, gpu.read(buffer.as_device_ptr(), buffer.len(), stream)));
                buffers.push(buffer);
            }
        }
        assert_eq!(gpu.counts().synchronisations, before.synchronisations, "no call has waited for the GPU");
        gpu.synchronize(stream);
        for (round, copied) in results {
            let found = copied.values();
            assert!(found == sums(round, found.len()), "round {}, {} elements", round, found.len());
        }
        drop(buffers);
        close(session, gpu);
    }

    /// Read behind one stream, written behind another, seen by these and by a third.
    #[test]
    #[ignore = "runs in a job"]
    fn several_streams() {
        let (session, rank, gpu, from) = open();
        let (to, third) = (gpu.stream(), gpu.stream());
        let tensor = session.tensor::<f32>("t", &[5000]).unwrap();
        for round in 0..3 {
            let input = filled(&session, &gpu, from, &values(rank, round, 5000));
            let output = session.device_buffer::<f32>(5000, 0).unwrap();
            let address = output.as_device_ptr();
            gpu.write(address, &[7.0; 5000], to); // which the result is behind
            let operation = tensor.push_pull(Sum).timeout(LONG).on_gpu(from).output_stream(to);
            let request = operation.start_between(input, output).unwrap();
            request.wait_on_stream(third).unwrap();
            assert!(request.is_enqueued());
            let seen = gpu.read(address, 5000, third);
            let (input, output) = request.wait_enqueued().unwrap();
            assert_eq!(read(&gpu, &output, to), sums(round, 5000));
            assert_eq!(read(&gpu, &input, from), values(rank, round, 5000));
            gpu.synchronize(third);
            assert_eq!(seen.values(), sums(round, 5000));
        }
        // The handle of each thread's own default stream.
        let own = unsafe { Stream::from_raw(2 as *mut _) };
        for stream in [own, Stream::DEFAULT] {
            let buffer = filled(&session, &gpu, stream, &values(rank, 3, 5000));
            let buffer = tensor.push_pull(Sum).timeout(LONG).on_gpu(stream).start(buffer).unwrap();
            assert_eq!(read(&gpu, &buffer.wait_enqueued().unwrap(), stream), sums(3, 5000));
        }
        close(session, gpu);
    }

    #[test]
    #[ignore = "runs in a job"]
    fn between_host_and_gpu() {
        let (session, rank, gpu, stream) = open();
        let tensor = session.tensor::<f32>("t", &[50, 100]).unwrap();
        let sum = || tensor.push_pull(Sum).timeout(LONG).on_gpu(stream);
        let host = values(rank, 1, 5000);
        let mut there = session.device_buffer::<f32>(5000, 0).unwrap();
        sum().between(&host, &mut there).unwrap();
        assert_eq!(read(&gpu, &there, stream), sums(1, 5000));
        let mut back = vec![0.0; 5000];
        sum().between(&there, &mut back[..]).unwrap();
        assert_eq!(back, sums(1, 5000).iter().map(|sum| 2.0 * sum).collect::<Vec<_>>());
        tensor.push_pull(Average).timeout(LONG).on_gpu(stream).in_place(&mut there).unwrap();
        assert_eq!(read(&gpu, &there, stream), sums(1, 5000));

        // Owned. An output on the host is there when the request is done, which is when a stream may go on, too.
        let (host, there) = sum().start_between(host, there).unwrap().wait().unwrap();
        let mut buffer = session.buffer::<f32>(5000).unwrap();
        buffer.fill(-1.0);
        let request = sum().start_between(there, buffer).unwrap();
        request.wait_on_stream(stream).unwrap();
        assert!(request.is_ended());
        let (there, buffer) = block_on(request).unwrap();
        assert_eq!((&buffer[..], &host), (&back[..], &values(rank, 1, 5000)));
        assert_eq!(read(&gpu, &there, stream), sums(1, 5000));

        let mut other = [0.0; 5000];
        let error = sum().between(&host, &mut other).unwrap_err();
        assert!(error.code() == Code::InvalidArgument && error.message().contains("on the host"), "{}", error);
        close(session, gpu);
    }

    #[test]
    #[ignore = "runs in a job"]
    fn broadcasts() {
        let (session, rank, gpu, stream) = open();
        let tensor = session.tensor::<f32>("t", &[5000]).unwrap();
        for root in [1, 0] {
            let from_root = || tensor.broadcast(root).timeout(LONG).on_gpu(stream);
            let mut data = filled(&session, &gpu, stream, &values(rank, root, 5000));
            from_root().in_place(&mut data).unwrap();
            assert_eq!(read(&gpu, &data, stream), values(root, root, 5000));
            // Elsewhere there is no input.
            let mut output = session.device_buffer::<f32>(5000, 0).unwrap();
            if rank == root {
                from_root().between(&data, &mut output).unwrap();
            } else {
                from_root().between(&[], &mut output).unwrap();
            }
            assert_eq!(read(&gpu, &output, stream), values(root, root, 5000));
            gpu.write(output.as_device_ptr(), &values(rank, 9, 5000), stream);
            let output = from_root().start(output).unwrap().wait_enqueued().unwrap();
            assert_eq!(read(&gpu, &output, stream), values(root, 9, 5000));
        }
        close(session, gpu);
    }

    /// What a request says before the result has come, and what at each of its two ends.
    #[test]
    #[ignore = "runs in a job"]
    fn two_ends() {
        static GO: AtomicI32 = AtomicI32::new(0);
        let (session, rank, gpu, stream) = open();
        let tensor = session.tensor::<f32>("late", &[5000]).unwrap();
        let sum = || tensor.push_pull(Sum).timeout(LONG).on_gpu(stream);
        let buffer = filled(&session, &gpu, stream, &values(rank, 0, 5000));
        let buffer = if rank == 0 {
            let request = sum().start(buffer).unwrap();
            assert!(!request.wait_for(Duration::from_millis(20)).unwrap());
            assert!(!request.is_enqueued() && !request.is_ended(), "the other rank has not begun");
            session.barrier().unwrap();
            until("the result is in a stream", || request.is_enqueued());
            request.wait_enqueued().unwrap()
        } else {
            session.barrier().unwrap();
            let request = sum().start(buffer).unwrap();
            while !request.wait_for(Duration::from_secs(1)).unwrap() {}
            assert!(request.is_ended() && request.is_enqueued());
            block_on(request).unwrap()
        };
        assert_eq!(read(&gpu, &buffer, stream), sums(0, 5000));

        // The input is not ready before its stream is.
        gpu.hold(stream, &GO);
        gpu.write(buffer.as_device_ptr(), &values(rank, 1, 5000), stream);
        let request = sum().start(buffer).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!request.is_enqueued());
        GO.store(1, Ordering::SeqCst);
        let buffer = request.wait_enqueued().unwrap();
        assert_eq!(read(&gpu, &buffer, stream), sums(1, 5000));

        // One that fails gives the memory back, by either end.
        let apart = session.tensor::<f32>("apart", &[10 + rank]).unwrap();
        for enqueued in [true, false] {
            let buffer = session.device_buffer::<f32>(10 + rank, 0).unwrap();
            let request = apart.push_pull(Sum).timeout(LONG).on_gpu(stream).start(buffer).unwrap();
            let failed = if enqueued { request.wait_enqueued() } else { request.wait() }.unwrap_err();
            assert_eq!(failed.error.code(), Code::FailedPrecondition, "{}", failed);
            assert_eq!(failed.memory.expect("the memory comes back").len(), 10 + rank);
        }
        close(session, gpu);
    }

    /// Memory of another owner, who hears when it is used no more.
    struct Watched {
        _memory: fake_gpu::Foreign,
        gone: Arc<AtomicBool>,
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            self.gone.store(true, Ordering::SeqCst);
        }
    }

    fn watched(gpu: &Gpu, stream: Stream, values: &[f32]) -> (DeviceBuffer<f32>, Arc<AtomicBool>) {
        let gone = Arc::new(AtomicBool::new(false));
        let foreign = gpu.allocate(values.len());
        gpu.write(foreign.first, values, stream);
        let (first, owner) = (foreign.first, Watched { _memory: foreign, gone: gone.clone() });
        (unsafe { DeviceBuffer::from_raw(first, values.len(), 0, owner) }, gone)
    }

    #[test]
    #[ignore = "runs in a job"]
    fn dropped_and_forgotten() {
        let (session, rank, gpu, stream) = open();
        let names = ["dropped", "forgotten", "kept"];
        let tensors = names.map(|name| session.tensor::<f32>(name, &[common::LARGE]).unwrap());
        let start = |index: usize, buffer: DeviceBuffer<f32>| {
            tensors[index].push_pull(Sum).timeout(LONG).on_gpu(stream).start(buffer).unwrap()
        };
        let own = values(rank, 0, common::LARGE);
        if rank == 0 {
            let (buffer, gone) = watched(&gpu, stream, &own);
            drop(start(0, buffer));
            let (buffer, never) = watched(&gpu, stream, &own);
            let forgotten = start(1, buffer);
            let (buffer, kept) = watched(&gpu, stream, &own);
            let request = start(2, buffer);
            assert!(!gone.load(Ordering::SeqCst), "the other rank has not begun: the library still reads it");
            std::mem::forget(forgotten);
            session.barrier().unwrap();
            until("the memory of a dropped request is given back in the end", || gone.load(Ordering::SeqCst));
            let (first, second) = request.wait_enqueued().unwrap().split_at(1000);
            drop(first);
            std::thread::sleep(Duration::from_millis(20));
            assert!(!kept.load(Ordering::SeqCst), "a part of it is still held");
            let found = read(&gpu, &second, stream);
            assert!(found == sums(0, common::LARGE)[1000..]);
            drop(second);
            until("the memory is given back with its last part", || kept.load(Ordering::SeqCst));
            assert!(!never.load(Ordering::SeqCst), "forgotten memory stays");
        } else {
            session.barrier().unwrap();
            for index in 0..3 {
                let (buffer, gone) = watched(&gpu, stream, &own);
                let buffer = start(index, buffer).wait().unwrap();
                assert!(read(&gpu, &buffer, stream) == sums(0, common::LARGE) && !gone.load(Ordering::SeqCst));
                drop(buffer);
                until("nothing else holds it", || gone.load(Ordering::SeqCst));
            }
        }
        close(session, gpu);
    }

    /// Buffers that are dropped when their results are enqueued: they are given back, when the results are done.
    #[test]
    #[ignore = "runs in a job"]
    fn given_back_when_done() {
        const LEN: usize = 2 << 20;
        // A GPU with room for eight of them.
        let options = std::env::var("BYTEPS_FAKE_GPU").unwrap_or_default();
        std::env::set_var("BYTEPS_FAKE_GPU", format!("{},memory={}", options, 8 * 4 * LEN).trim_start_matches(','));
        let (session, rank, gpu, stream) = open();
        assert_eq!(session.device_buffer::<f32>(9 * LEN, 0).unwrap_err().code(), Code::ResourceExhausted);
        let tensor = session.tensor::<f32>("t", &[LEN]).unwrap();
        for round in 0..24 {
            let buffer = session.device_buffer::<f32>(LEN, 0).unwrap();
            let last = buffer.as_device_ptr().wrapping_add(LEN - 1);
            gpu.write(last, &[(rank + round) as f32], stream);
            let request = tensor.push_pull(Sum).timeout(LONG).on_gpu(stream).start(buffer).unwrap();
            let buffer = request.wait_enqueued().unwrap();
            if round % 2 == 1 {
                // The program's own use ends before it lets go; the library's may not have ended.
                let copied = gpu.read(last, 1, stream);
                gpu.synchronize(stream);
                assert_eq!(copied.values(), [2.0 * round as f32 + 1.0]);
            }
            drop(buffer);
        }
        close(session, gpu);
    }

    #[test]
    #[ignore = "runs in a job"]
    fn refused() {
        let (session, _, gpu, stream) = open();
        let tensor = session.tensor::<f32>("t", &[100]).unwrap();
        let sum = || tensor.push_pull(Sum).timeout(LONG).on_gpu(stream);
        let refusal = |buffer: DeviceBuffer<f32>| {
            let len = buffer.len();
            let failed = sum().start(buffer).unwrap_err();
            assert_eq!(failed.memory.expect("nothing has begun").len(), len);
            failed.error
        };
        let error = refusal(session.device_buffer(99, 0).unwrap());
        assert!(error.message().contains("has 99 elements, not 100"), "{}", error);
        // What is said about foreign memory is checked.
        let (host, foreign) = (vec![0.0_f32; 100], gpu.allocate(100));
        let named = |first, gpu| unsafe { DeviceBuffer::from_raw(first, 100, gpu, ()) };
        for (buffer, part) in [
            (named(host.as_ptr() as *mut f32, 0), "ordinary host memory"),
            (named(foreign.first, 1), "memory of GPU 0"),
            (named(foreign.first.wrapping_add(1), 0), "beyond the end"),
        ] {
            let error = refusal(buffer);
            assert!(error.code() == Code::InvalidArgument && error.message().contains(part), "{}", error);
        }
        gpu.capture(stream, true);
        let buffer = session.device_buffer(100, 0).unwrap();
        let failed = sum().start(buffer).unwrap_err();
        gpu.capture(stream, false);
        assert_eq!(failed.error.code(), Code::FailedPrecondition, "{}", failed);

        // A capture that has begun meanwhile: the request is as it was.
        let request = sum().start(failed.memory.unwrap()).unwrap();
        gpu.capture(stream, true);
        until("the result is in a stream", || request.is_enqueued());
        let error = request.wait_on_stream(stream).unwrap_err();
        gpu.capture(stream, false);
        assert!(error.message().contains("captured"), "{}", error);
        request.wait_on_stream(stream).unwrap();
        assert_eq!(read(&gpu, &request.wait_enqueued().unwrap(), stream), [0.0; 100]);
        close(session, gpu);
    }

    #[test]
    #[ignore = "runs in a job"]
    fn collectives() {
        let (session, rank, gpu, stream) = open();
        let to = gpu.stream();
        let (none, three) = ([0.0_f32; 0], [1.0, 2.0, 3.0]);
        let own = |values: &[f32]| filled(&session, &gpu, stream, values);
        let room = |len: usize| session.device_buffer::<f32>(len, 0).unwrap();

        // In place.
        let sum = session.all_reduce::<f32>("sum", &[3], Sum).timeout(LONG).scaled(0.5, 4.0);
        let data = sum.on_gpu(stream).start(own(&three)).unwrap().wait_enqueued().unwrap();
        assert_eq!(read(&gpu, &data, stream), [4.0, 8.0, 12.0]);
        let failed = session.all_gather::<f32>("g", &[3]).on_gpu(stream).start(data).unwrap_err();
        assert!(failed.error.message().contains("use start_between") && failed.memory.is_some(), "{}", failed);

        // Rows differ between ranks, and the output has room for more.
        let mine = vec![rank as f32; 2 * (rank + 1)];
        let gather = session.all_gather::<f32>("gather", &[rank + 1, 2]).timeout(LONG);
        let request = gather.on_gpu(stream).output_stream(to).start_between(own(&mine), room(10)).unwrap();
        let (came, (input, output)) = request.wait_enqueued().unwrap();
        assert_eq!((came.shape, came.splits), (vec![3, 2], vec![1, 2]));
        assert_eq!(read(&gpu, &output, to)[..6], [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(read(&gpu, &input, stream), mine);
        let failed = gather.on_gpu(stream).start_between(input, room(5)).unwrap().wait_enqueued().unwrap_err();
        assert_eq!(failed.error.code(), Code::InvalidArgument, "{}", failed);
        assert_eq!(failed.memory.expect("the memory comes back").1.len(), 5);

        // To the host, and done for every stream.
        let exchange = session.all_to_all::<f32>("a2a", &[3]).splits(&[[1, 2], [3, 0]][rank]).timeout(LONG);
        let request = exchange.on_gpu(stream).start_between(own(&three), vec![0.0; 4]).unwrap();
        let (came, (_, output)) = block_on(request).unwrap();
        assert_eq!(came.splits, [[1, 3], [2, 0]][rank]);
        assert_eq!(output, [[1.0, 1.0, 2.0, 3.0], [2.0, 3.0, 0.0, 0.0]][rank]);
        // Nothing comes to rank 1, whose memory for it has no address.
        let lopsided = session.all_to_all::<f32>("lopsided", &[3]).splits(&[3, 0]).timeout(LONG);
        let nowhere = || unsafe { DeviceBuffer::from_raw(std::ptr::null_mut(), 0, 0, ()) };
        let output = if rank == 0 { room(6) } else { nowhere() };
        let (came, (_, output)) = lopsided.on_gpu(stream).start_between(own(&three), output).unwrap().wait().unwrap();
        assert_eq!((came.splits, output.len()), ([vec![3, 3], vec![0, 0]][rank].clone(), [6, 0][rank]));

        // One gives, the other gets.
        if rank == 0 {
            let send = session.send::<f32>(1, 7, &[3]).timeout(LONG).on_gpu(stream);
            send.start_between(own(&three), none).unwrap().wait().unwrap();
        } else {
            let receive = session.receive::<f32>(0, 7, &[3]).timeout(LONG).on_gpu(stream);
            let (came, (_, output)) = receive.start_between(none, room(3)).unwrap().wait_enqueued().unwrap();
            assert_eq!((came.shape, read(&gpu, &output, stream)), (vec![3], three.to_vec()));
        }
        close(session, gpu);
    }
}
