//! What is to be done with a tensor in the memory of a GPU, before it is done.

use crate::device_buffer::DeviceBuffer;
use crate::device_request::DeviceRequest;
use crate::element::Element;
use crate::error::{Failed, Result};
use crate::operation::Operation;
use crate::place::{DeviceInput, DeviceOutput, Place};
use crate::stream::{Stream, Streams};

/// An [`Operation`] on memory of a GPU that has not begun, made by [`Operation::on_gpu`]. The memory is a [`DeviceBuffer`];
/// of an input and an output one may be on the host.
///
/// | method | memory | returns |
/// |---|---|---|
/// | [`in_place`](DeviceOperation::in_place), [`between`](DeviceOperation::between) | borrowed | when it is done |
/// | [`start`](DeviceOperation::start), [`start_between`](DeviceOperation::start_between) | owned by the [`DeviceRequest`] | at once |
///
/// The input is read behind what its stream holds when the operation begins, the output written behind what its stream
/// holds then. The plugin that `BYTEPS_DEVICE` names is loaded by the first such call. All threads may begin operations.
///
/// Errors of each, besides those of [`Operation`]: InvalidArgument (the memory or the stream is not of that GPU; neither
/// input nor output is of a GPU; at the root of a broadcast one of the two is on the host), NotFound and Unavailable (no
/// plugin, no driver, no GPU), FailedPrecondition (a stream is being captured into a graph), ResourceExhausted (pinned
/// memory); and of the operation, when it ends: DataLoss (the GPU's context is lost).
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation begins with in_place, between, start..."]
pub struct DeviceOperation<'t, T: Element> {
    operation: Operation<'t, T>,
    streams: Streams,
}

impl<'t, T: Element> Operation<'t, T> {
    /// The same on memory of a GPU, in the order of `stream`. Priority and timeout are said before.
    pub fn on_gpu(self, stream: Stream) -> DeviceOperation<'t, T> {
        DeviceOperation { operation: self, streams: Streams { input: stream, output: stream } }
    }
}

impl<'t, T: Element> DeviceOperation<'t, T> {
    /// Another stream for the output than for the input.
    pub fn output_stream(mut self, stream: Stream) -> Self {
        self.streams.output = stream;
        self
    }

    /// Does it, the result replacing what was in `data`; returns when it is done, and the host waits for the GPU.
    pub fn in_place(self, data: &mut DeviceBuffer<T>) -> Result<()> {
        let place = data.place();
        self.operation.run(place, place, Some(&self.streams.raw()))
    }

    /// Does it from `input` into `output`: of a GPU to the host, of the host to a GPU, or both of one GPU. (A broadcast reads
    /// the input of its root alone; elsewhere it may be empty.)
    pub fn between<I, O>(self, input: &I, output: &mut O) -> Result<()>
    where
        I: DeviceInput<T> + ?Sized,
        O: DeviceOutput<T> + ?Sized,
    {
        let (input, output) = (input.input(), output.output());
        Place::check_streams(input, output)?;
        self.operation.run(input, output, Some(&self.streams.raw()))
    }

    /// Starts it on memory that the request owns meanwhile.
    pub fn start(
        self,
        memory: DeviceBuffer<T>,
    ) -> std::result::Result<DeviceRequest<DeviceBuffer<T>>, Failed<DeviceBuffer<T>>> {
        let places = |memory: &mut DeviceBuffer<T>| Ok((memory.place(), memory.place()));
        let request = self.operation.launch(memory, Some(&self.streams.raw()), places)?;
        Ok(DeviceRequest::new(request, self.streams.output))
    }

    /// Starts it from one memory into another, one of which may be on the host; the request gives both back.
    pub fn start_between<I, O>(self, input: I, output: O) -> std::result::Result<DeviceRequest<(I, O)>, Failed<(I, O)>>
    where
        I: DeviceInput<T> + Send + 'static,
        O: DeviceOutput<T> + Send + 'static,
    {
        let request = self.operation.launch((input, output), Some(&self.streams.raw()), |(input, output)| {
            let (input, output) = (input.input(), output.output());
            Place::check_streams(input, output)?;
            Ok((input, output))
        })?;
        Ok(DeviceRequest::new(request, self.streams.output))
    }
}
