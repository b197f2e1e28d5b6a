//! An operation on memory of a GPU in flight.

use crate::device_buffer::DeviceBuffer;
use crate::element::Element;
use crate::error::{Failed, Result};
use crate::request::{Handle, Request};
use crate::stream::Stream;
use crate::wait;
use byteps_sys as sys;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// An operation in flight on memory of a GPU; it owns its memory `B`, as a [`Request`] does. It has two ends:
///
/// | end | method | what it says |
/// |---|---|---|
/// | *enqueued* | [`wait_enqueued`](DeviceRequest::wait_enqueued) | the result has come over the network; the operation's stream waits for the rest. The host goes on: it puts kernels behind it, or starts the next operation |
/// | *done* | [`wait`](DeviceRequest::wait), or as a [`Future`] | the result is in the memory, for every stream and for the host |
///
/// To drop it is to let the operation go on by itself: the memory is held until the operation has ended.
///
/// ```no_run
/// # fn main() -> byteps::Result<()> {
/// # use byteps::{ReduceOp::Average, Session, Stream};
/// # let session = Session::open()?;
/// # let stream = Stream::DEFAULT;
/// # fn launch_backward(_: *mut f32, _: Stream) {}
/// # fn launch_update(_: *mut f32, _: Stream) {}
/// let weight = session.tensor::<f32>("w", &[64])?;
/// let mut gradient = session.device_buffer::<f32>(64, 0)?;
/// for _step in 0..100 {
///     launch_backward(gradient.as_device_ptr(), stream);
///     let request = weight.push_pull(Average).on_gpu(stream).start(gradient)?; // behind the backward pass
///     gradient = request.wait_enqueued()?;                                     // no wait for the GPU
///     launch_update(gradient.as_device_ptr(), stream);                         // behind the result
/// }
/// # Ok(()) }
/// ```
///
/// What is in flight cannot be used:
///
/// ```compile_fail
/// # fn main() -> byteps::Result<()> {
/// # use byteps::{ReduceOp::Sum, Session, Stream};
/// # let session = Session::open()?;
/// # let weight = session.tensor::<f32>("w", &[64])?;
/// let gradient = session.device_buffer::<f32>(64, 0)?;
/// let request = weight.push_pull(Sum).on_gpu(Stream::DEFAULT).start(gradient)?;
/// weight.push_pull(Sum).on_gpu(Stream::DEFAULT).start(gradient)?; // error: moved
/// # Ok(()) }
/// ```
///
/// nor does memory of the host come back before the operation is done, since no stream orders the host:
///
/// ```compile_fail
/// # fn main() -> byteps::Result<()> {
/// # use byteps::{ReduceOp::Sum, Session, Stream};
/// # let session = Session::open()?;
/// # let weight = session.tensor::<f32>("w", &[64])?;
/// # let there = session.device_buffer::<f32>(64, 0)?;
/// let request = weight.push_pull(Sum).on_gpu(Stream::DEFAULT).start_between(there, vec![0.0; 64])?;
/// request.wait_enqueued()?; // error: Vec is not Share; `wait` is for it
/// # Ok(()) }
/// ```
#[must_use = "dropping a request lets its operation go on, and drops the result"]
pub struct DeviceRequest<B: Send + 'static> {
    request: Request<B>,
    output_stream: Stream,
}

// Public, since a bound names it; sealed, since its module is private.
pub trait Share {
    /// The same memory once more.
    fn share(&self) -> Self;
}

/// Memory that is all on GPUs, which streams put in order: what [`DeviceRequest::wait_enqueued`] gives back. An empty array
/// counts, as the input of a rank that gives none.
pub trait OnDevice: Share {}

impl<B: Share> OnDevice for B {}

impl<T: Element> Share for DeviceBuffer<T> {
    fn share(&self) -> Self {
        DeviceBuffer::share(self)
    }
}

impl<T: Element> Share for [T; 0] {
    fn share(&self) -> Self {
        []
    }
}

impl<I: Share, O: Share> Share for (I, O) {
    fn share(&self) -> Self {
        (self.0.share(), self.1.share())
    }
}

impl<B: Send + 'static> DeviceRequest<B> {
    pub(crate) fn new(request: Request<B>, output_stream: Stream) -> DeviceRequest<B> {
        DeviceRequest { request, output_stream }
    }

    /// Blocks until the result is *enqueued*, and makes the operation's output stream wait for it; gives the memory back,
    /// with the result or with the error. The host waits for the other ranks and for what the streams held when the
    /// operation began, and not for the result's copies.
    ///
    /// What is put into that stream from now on sees the result, and so do operations on that stream. Other streams must
    /// wait for it: by an event of the program's, or by [`wait_on_stream`](DeviceRequest::wait_on_stream) before. The
    /// memory may be dropped at once: it is given back when the operation is done.
    ///
    /// Errors: those of the operation; FailedPrecondition (the stream is being captured into a graph, or this is a thread of
    /// the library): then the operation goes on, and keeps the memory.
    pub fn wait_enqueued(self) -> std::result::Result<B, Failed<B>>
    where
        B: OnDevice,
    {
        self.wait_enqueued_and_keep().map(|(memory, _)| memory)
    }

    /// The same; the handle stays, for what the operation has brought.
    pub(crate) fn wait_enqueued_and_keep(self) -> std::result::Result<(B, Handle), Failed<B>>
    where
        B: OnDevice,
    {
        match self.wait_on_stream(self.output_stream) {
            Ok(()) => {
                // The operation holds the memory until it is done, too. No second caller gets it: the request ends here.
                let memory = unsafe { self.request.memory() }.share();
                Ok((memory, self.request.into_handle()))
            }
            Err(_) if self.is_ended() => self.wait_and_keep(),
            Err(error) => Err(Failed { error, memory: None }),
        }
    }

    pub(crate) fn wait_and_keep(self) -> std::result::Result<(B, Handle), Failed<B>> {
        self.request.wait_and_keep()
    }

    pub(crate) fn poll_and_keep(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<std::result::Result<(B, Handle), Failed<B>>> {
        self.request.poll_and_keep(context)
    }

    /// Blocks until the result is *enqueued*, and makes `stream`, of the output's GPU, wait for it. May be called for several
    /// streams; the operation's own waits by `wait_enqueued`, or by this. Where the output is on the host this waits until the
    /// operation is done.
    ///
    /// Errors: as of [`wait_enqueued`](DeviceRequest::wait_enqueued); the request is as it was.
    pub fn wait_on_stream(&self, stream: Stream) -> Result<()> {
        unsafe { wait::on_stream(self.request.raw(), stream.as_raw()) }
    }

    /// Whether the result is *enqueued*, or the operation has ended: whether `wait_enqueued` would not block. No stream waits
    /// for the result because of this call. Never blocks.
    pub fn is_enqueued(&self) -> bool {
        let state = unsafe { sys::bps_request_state(self.request.raw()) };
        [sys::BPS_REQUEST_ENQUEUED, sys::BPS_REQUEST_DONE, sys::BPS_REQUEST_FAILED].contains(&state)
    }

    /// Blocks until the operation is *done*; gives the memory back, with the result or with the error. The host waits for the
    /// GPU.
    pub fn wait(self) -> std::result::Result<B, Failed<B>> {
        self.request.wait()
    }

    /// Blocks until the operation has ended, at most `timeout`; says whether it has. `wait` then does not block.
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        self.request.wait_for(timeout)
    }

    /// Whether the operation has ended: is *done*, or has failed. Never blocks.
    pub fn is_ended(&self) -> bool {
        self.request.is_ended()
    }

    /// Asks to give up. The operation then ends with Cancelled here and with Aborted elsewhere, unless it was complete.
    pub fn cancel(&self) -> Result<()> {
        self.request.cancel()
    }
}

impl<B: Send + 'static> Future for DeviceRequest<B> {
    type Output = std::result::Result<B, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.request).poll(context)
    }
}

impl<B: Send + 'static> fmt::Debug for DeviceRequest<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceRequest")
            .field("enqueued", &self.is_enqueued())
            .field("ended", &self.is_ended())
            .finish_non_exhaustive()
    }
}
