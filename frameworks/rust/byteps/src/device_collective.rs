//! Collectives on memory of GPUs.

use crate::collective::{Collective, Description};
use crate::device_buffer::DeviceBuffer;
use crate::device_request::{DeviceRequest, OnDevice};
use crate::element::Element;
use crate::error::{Failed, Result};
use crate::output::Filled;
use crate::place::{DeviceInput, DeviceOutput, Place};
use crate::request::{Handle, Request};
use crate::stream::{Stream, Streams};
use byteps_sys as sys;
use std::fmt;
use std::future::Future;
use std::mem::size_of;
use std::os::raw::c_void;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};
use std::time::Duration;

/// A [`Collective`] on memory of a GPU that has not begun, made by [`Collective::on_gpu`]. Its output is memory of the
/// caller's, which may be larger than what comes: [`Filled`] tells.
///
/// ```no_run
/// # fn main() -> byteps::Result<()> {
/// # let session = byteps::Session::open()?;
/// # let stream = byteps::Stream::DEFAULT;
/// let (tokens, all) = (session.device_buffer::<f32>(12, 0)?, session.device_buffer::<f32>(24, 0)?);
/// let gather = session.all_gather::<f32>("tokens", &[4, 3]).on_gpu(stream);
/// let (filled, (tokens, all)) = gather.start_between(tokens, all)?.wait_enqueued()?;
/// assert_eq!((filled.shape, filled.splits), (vec![8, 3], vec![4, 4]));
/// # drop((tokens, all));
/// # Ok(()) }
/// ```
///
/// Streams, memory and further errors are as of [`DeviceOperation`](crate::DeviceOperation); InvalidArgument when it ends:
/// an output is too small.
#[derive(Clone, Debug)]
#[must_use = "a collective begins with start or start_between"]
pub struct DeviceCollective<T: Element> {
    collective: Collective<T>,
    streams: Streams,
}

impl<T: Element> Collective<T> {
    /// The same on memory of a GPU, in the order of `stream`. All else is said before.
    pub fn on_gpu(&self, stream: Stream) -> DeviceCollective<T> {
        DeviceCollective { collective: self.clone(), streams: Streams { input: stream, output: stream } }
    }
}

impl<T: Element> DeviceCollective<T> {
    /// Another stream for the output than for the input.
    pub fn output_stream(mut self, stream: Stream) -> Self {
        self.streams.output = stream;
        self
    }

    /// Starts it on memory that the request owns meanwhile, the result replacing what was there: of all_reduce, broadcast and
    /// reduce (there on the root).
    pub fn start(
        &self,
        memory: DeviceBuffer<T>,
    ) -> std::result::Result<DeviceRequest<DeviceBuffer<T>>, Failed<DeviceBuffer<T>>> {
        let request = Request::launch(memory, |memory, done, user| {
            self.collective.description.check_in_place("start_between")?;
            self.submit(memory.place(), memory.place(), done, user)
        })?;
        Ok(DeviceRequest::new(request, self.streams.output))
    }

    /// Starts it from one memory into another, one of which may be on the host; the request gives both back. What a rank does
    /// not give or get may be an empty array.
    pub fn start_between<I, O>(
        &self,
        input: I,
        output: O,
    ) -> std::result::Result<DeviceCollectiveRequest<I, O>, Failed<(I, O)>>
    where
        I: DeviceInput<T> + Send + 'static,
        O: DeviceOutput<T> + Send + 'static,
    {
        let request = Request::launch((input, output), |(input, output), done, user| {
            let (input, output) = (input.input(), output.output());
            Place::check_streams(input, output)?;
            self.submit(input, output, done, user)
        })?;
        Ok(DeviceCollectiveRequest { request: DeviceRequest::new(request, self.streams.output) })
    }

    /// Hands it over. The memory belongs to the library until the operation has ended.
    fn submit(
        &self,
        input: Place,
        output: Place,
        done: sys::bps_done_fn,
        user: *mut c_void,
    ) -> Result<*mut sys::bps_request> {
        let description: &Description = &self.collective.description;
        let mut streams = self.streams.raw();
        // An empty buffer may have no address, which would ask for memory of the library's.
        let output = if output.len > 0 { output } else { Place::host(NonNull::<T>::dangling().as_ptr(), 0) };
        let mut filled = description.arguments(input.first, input.len)?;
        let args = &mut filled.args;
        streams.ext.next = args.ext;
        args.ext = &streams.ext;
        args.input_device = input.device;
        args.input_device_id = input.gpu;
        args.output = output.first;
        args.output_bytes = (output.len * size_of::<T>()) as u64;
        args.output_device = output.device;
        args.output_device_id = output.gpu;
        args.done = Some(done);
        args.user = user;
        unsafe { description.submit(&filled) }
    }
}

/// What has come, and input and output.
type Landed<I, O> = std::result::Result<(Filled, (I, O)), Failed<(I, O)>>;

/// A collective in flight from one memory into another; it owns both, and has the two ends of a [`DeviceRequest`].
#[must_use = "dropping a request lets its operation go on, and drops the result"]
pub struct DeviceCollectiveRequest<I: Send + 'static, O: Send + 'static> {
    request: DeviceRequest<(I, O)>,
}

impl<I: Send + 'static, O: Send + 'static> DeviceCollectiveRequest<I, O> {
    /// Blocks until the result is *enqueued*, as [`DeviceRequest::wait_enqueued`]; says what has come.
    pub fn wait_enqueued(self) -> Landed<I, O>
    where
        (I, O): OnDevice,
    {
        self.request.wait_enqueued_and_keep().and_then(land)
    }

    /// As [`DeviceRequest::wait_on_stream`].
    pub fn wait_on_stream(&self, stream: Stream) -> Result<()> {
        self.request.wait_on_stream(stream)
    }

    /// Whether the result is *enqueued*, or the operation has ended. Never blocks.
    pub fn is_enqueued(&self) -> bool {
        self.request.is_enqueued()
    }

    /// Blocks until the operation is *done*; says what has come, and gives the memory back. The host waits for the GPU.
    pub fn wait(self) -> Landed<I, O> {
        self.request.wait_and_keep().and_then(land)
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

fn land<I, O>((memory, handle): ((I, O), Handle)) -> Landed<I, O> {
    match Filled::new(&handle) {
        Ok(filled) => Ok((filled, memory)),
        Err(error) => Err(Failed { error, memory: Some(memory) }),
    }
}

impl<I: Send + 'static, O: Send + 'static> Future for DeviceCollectiveRequest<I, O> {
    type Output = Landed<I, O>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.request.poll_and_keep(context).map(|landed| landed.and_then(land))
    }
}

impl<I: Send + 'static, O: Send + 'static> fmt::Debug for DeviceCollectiveRequest<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCollectiveRequest")
            .field("enqueued", &self.is_enqueued())
            .field("ended", &self.is_ended())
            .finish_non_exhaustive()
    }
}
