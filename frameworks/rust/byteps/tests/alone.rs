//! A job of one worker: no servers, no launcher.

use byteps::{Bf16, Bool, Code, Complex, Level, ReduceOp, Session, Stream, Tensor, F16};
use std::sync::Arc;

fn session() -> Session {
    Session::options().log_level(Level::Error).open().unwrap()
}

#[test]
fn who_we_are() {
    let session = session();
    let info = session.info().unwrap();
    assert_eq!((info.rank, info.size, info.local_rank, info.local_size), (0, 1, 0, 1));
    assert!(!info.failed && info.generation >= 1);
    assert!(!session.transport().is_empty() && !session.scheduler().is_empty());
    assert!(!byteps::version().is_empty());
    assert_eq!(byteps::abi_version().0, byteps::sys::BPS_ABI_MAJOR);
    assert!(format!("{:?}", session).contains("rank: 0"));
    session.shutdown(None).unwrap();
    assert_eq!(session.barrier().unwrap_err().code(), Code::FailedPrecondition);
    session.shutdown(None).unwrap();
}

#[test]
fn every_type() {
    fn identity<T: byteps::Element + PartialEq + std::fmt::Debug>(session: &Session, name: &str, values: [T; 3]) {
        let tensor = session.tensor::<T>(name, &[3]).unwrap();
        let mut data = values;
        tensor.push_pull(ReduceOp::Sum).in_place(&mut data).unwrap();
        assert_eq!(data, values, "{}", name);
        let mut copy = [values[0]; 3];
        tensor.broadcast(0).between(&values, &mut copy).unwrap();
        assert_eq!(copy, values, "{}", name);
    }
    let session = session();
    identity(&session, "i8", [-1_i8, 2, 3]);
    identity(&session, "u8", [1_u8, 2, 255]);
    identity(&session, "i16", [-1_i16, 2, i16::MIN]);
    identity(&session, "c64", [Complex { re: 1.0_f32, im: -2.0 }; 3]);
    identity(&session, "c128", [Complex { re: 1.0_f64, im: -2.0 }; 3]);
    identity(&session, "bool", [true, false, true].map(Bool::from));
    identity(&session, "i32", [-1_i32, 2, 3]);
    identity(&session, "i64", [-1_i64, 2, i64::MAX]);
    identity(&session, "f32", [-1.5_f32, 2.0, 3.0]);
    identity(&session, "f64", [-1.5_f64, 2.0, 3.0]);
    identity(&session, "f16", [-1.5, 2.0, 3.0].map(F16::from_f32));
    identity(&session, "bf16", [-1.5, 2.0, 3.0].map(Bf16::from_f32));
    session.shutdown(None).unwrap();
}

#[test]
fn lengths_are_checked() {
    let session = session();
    let tensor = session.tensor::<f32>("lengths", &[2, 3]).unwrap();
    assert_eq!((tensor.name(), tensor.shape(), tensor.len(), tensor.is_empty()), ("lengths", &[2, 3][..], 6, false));
    let error = tensor.push_pull(ReduceOp::Sum).in_place(&mut [0.0; 5]).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("\"lengths\" of shape [2, 3]") && error.message().contains("5 elements, not 6"));
    let failed = tensor.push_pull(ReduceOp::Sum).start(vec![1.0; 7]).unwrap_err();
    assert_eq!((failed.error.code(), failed.memory), (Code::InvalidArgument, Some(vec![1.0; 7])));
    let failed = tensor.push_pull(ReduceOp::Sum).start_between(vec![1.0; 6], vec![0.0; 7]).unwrap_err();
    assert!(failed.to_string().contains("the output has 7 elements"));
    byteps::scope(|scope| {
        assert!(tensor.push_pull(ReduceOp::Sum).start_in(scope, &mut []).is_err());
    })
    .unwrap();
    assert_eq!(session.tensor::<f32>("huge", &[usize::MAX, 2]).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(session.tensor::<f32>("nul\0", &[1]).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(session.tensor::<f32>("", &[1]).unwrap_err().code(), Code::InvalidArgument);
    session.tensor::<f32>("scalar", &[]).unwrap().push_pull(ReduceOp::Max).in_place(&mut [1.0]).unwrap();
    session.tensor::<f32>("empty", &[0, 4]).unwrap().push_pull(ReduceOp::Sum).in_place(&mut []).unwrap();
    session.shutdown(None).unwrap();
}

#[test]
fn memory_of_every_kind() {
    let session = session();
    let tensor = session.tensor::<f32>("kinds", &[4]).unwrap();
    let sum = || tensor.push_pull(ReduceOp::Sum);
    assert_eq!(sum().start(vec![1.0; 4]).unwrap().wait().unwrap(), vec![1.0; 4]);
    assert_eq!(sum().start([2.0; 4]).unwrap().wait().unwrap(), [2.0; 4]);
    let boxed: Box<[f32]> = Box::new([3.0; 4]);
    assert_eq!(*sum().start(boxed).unwrap().wait().unwrap(), [3.0; 4]);
    let shared: Arc<[f32]> = vec![4.0; 4].into();
    let (_, output) = sum().start_between(shared.clone(), vec![0.0; 4]).unwrap().wait().unwrap();
    assert_eq!(output, *shared);
    let leaked: &'static mut [f32] = Box::leak(Box::new([5.0; 4]));
    assert_eq!(sum().start(leaked).unwrap().wait().unwrap(), &[5.0; 4]);

    let mut buffer = session.buffer::<f32>(4).unwrap();
    assert_eq!(buffer[..], [0.0; 4]);
    buffer.fill(6.0);
    buffer = sum().start(buffer).unwrap().wait().unwrap();
    assert_eq!(buffer.iter().sum::<f32>(), 24.0);
    assert_eq!(session.buffer::<f64>(0).unwrap().len(), 0);
    assert_eq!(session.buffer::<f64>(usize::MAX / 4).unwrap_err().code(), Code::ResourceExhausted);
    gpu_buffers(&session, &tensor);
    session.shutdown(None).unwrap();
    drop((session, tensor));
    assert_eq!(buffer[3], 6.0, "a buffer outlives its session");
}

// Where the test is given a GPU, a simulated one; else the errors say what is missing.
fn gpu_buffers(session: &Session, tensor: &Tensor<f32>) {
    if std::env::var_os("BYTEPS_DEVICE").is_none() {
        let code = session.pinned_buffer::<f32>(4, 0).unwrap_err().code();
        assert!(matches!(code, Code::NotFound | Code::Unavailable), "{:?}", code);
        return;
    }
    let mut pinned = session.pinned_buffer::<f32>(4, 0).unwrap();
    assert_eq!(pinned[..], [0.0; 4]);
    pinned.fill(7.0);
    assert_eq!(tensor.push_pull(ReduceOp::Sum).start(pinned).unwrap().wait().unwrap()[..], [7.0; 4]);
    // From the host to the GPU, there in place, and back.
    let sum = || tensor.push_pull(ReduceOp::Sum).on_gpu(Stream::DEFAULT);
    let (mut there, mut back) = (session.device_buffer::<f32>(4, 0).unwrap(), [0.0; 4]);
    sum().between(&[1.0, 2.0, 3.0, 4.0], &mut there).unwrap();
    sum().in_place(&mut there).unwrap();
    let there = sum().start(there).unwrap().wait_enqueued().unwrap();
    sum().between(&there, &mut back).unwrap();
    assert_eq!(back, [1.0, 2.0, 3.0, 4.0]);
    let device = session.device_buffer::<f64>(1000, 0).unwrap();
    assert!(!device.as_device_ptr().is_null());
    assert_eq!((device.len(), device.is_empty()), (1000, false));
    assert_eq!(session.device_buffer::<f64>(1, 7).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(session.pinned_buffer::<f64>(1, 7).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn refused_openings() {
    let error = Session::options().scheduler("nowhere").open().unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains("\"nowhere\""), "{}", error);
    assert!(!error.is_retryable());
    let error = Session::options().job("a\0b").open().unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[test]
fn a_timeline_has_operations_and_marks() {
    let path = std::env::temp_dir().join(format!("byteps-rust-timeline-{}.json", std::process::id()));
    let session = session();
    assert_eq!(session.stop_timeline().unwrap_err().code(), Code::FailedPrecondition);
    let error = session.start_timeline("/dev/null/t.json", false).unwrap_err();
    assert!(error.code() == Code::InvalidArgument && error.message().contains("/dev/null/t.json"), "{}", error);
    session.start_timeline(&path, true).unwrap();
    assert_eq!(session.start_timeline(&path, true).unwrap_err().code(), Code::FailedPrecondition);
    {
        let _span = session.timeline_span("reduction").unwrap();
        session.timeline_mark("begins").unwrap();
        let tensor = session.tensor::<f32>("gradient", &[3]).unwrap();
        tensor.push_pull(ReduceOp::Sum).in_place(&mut [1.0; 3]).unwrap();
    }
    session.stop_timeline().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let parts = [r#""reduction","ph":"B""#, r#""begins","ph":"i""#, r#""gradient""#, r#""ph":"E""#, r#""STEP""#];
    for part in parts {
        assert!(text.contains(part), "{} is not in {}", part, text);
    }
    assert!(text.ends_with("\n]\n"));
}

#[test]
fn types_go_where_they_may() {
    fn everywhere<T: Send + Sync>() {}
    everywhere::<Session>();
    everywhere::<byteps::Tensor<f32>>();
    everywhere::<byteps::Request<Vec<f32>>>();
    everywhere::<byteps::Request<std::cell::Cell<Vec<f32>>>>();
    everywhere::<byteps::Buffer<f32>>();
    everywhere::<byteps::Error>();
    everywhere::<byteps::DeviceBuffer<f32>>();
    everywhere::<byteps::DeviceRequest<byteps::DeviceBuffer<f32>>>();
    everywhere::<Stream>();
    fn future<F: std::future::Future + Send + Unpin + 'static>() {}
    future::<byteps::Request<Vec<f32>>>();
    future::<byteps::DeviceRequest<byteps::DeviceBuffer<f32>>>();
}
