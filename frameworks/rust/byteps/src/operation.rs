//! What is to be done with a tensor, and with what priority, before it is done.

use crate::callback;
use crate::element::Element;
use crate::error::{check, Code, Error, Failed, Result};
use crate::extensions::{self, Extensions};
use crate::place::Place;
use crate::request::Request;
use crate::scope::{Scope, ScopedRequest};
use crate::tensor::Tensor;
use crate::timeout::milliseconds;
use crate::wait;
use byteps_sys as sys;
use std::os::raw::c_void;
use std::ptr;
use std::time::Duration;

/// What a reduction makes of the contributions of all workers. The result has the same bits on every rank and in every
/// run. Sums and products of integers wrap; minima and maxima propagate NaN. The sum of [`Bool`](crate::Bool)s is their "or", the
/// product their "and". InvalidArgument, because it has no meaning: minima and maxima of complex numbers, the average of
/// `Bool`s, bitwise operations on anything but integers and `Bool`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum ReduceOp {
    /// The sum, in rank order.
    Sum = sys::BPS_SUM,
    /// The sum divided by the number of workers; of integers rounded towards minus infinity.
    Average = sys::BPS_AVERAGE,
    /// The least.
    Min = sys::BPS_MIN,
    /// The greatest.
    Max = sys::BPS_MAX,
    /// The product.
    Product = sys::BPS_PRODUCT,
    /// Bit by bit: set where all have it set.
    BitAnd = sys::BPS_BIT_AND,
    /// Bit by bit: set where any rank has it set.
    BitOr = sys::BPS_BIT_OR,
    /// Bit by bit: set where an odd number have it set.
    BitXor = sys::BPS_BIT_XOR,
    /// Of [`Session::all_reduce`](crate::Session::all_reduce) alone, of floats: gradients of like directions count once,
    /// others add up.
    Adasum = sys::BPS_ADASUM,
}

/// The operations on declared tensors; all others are collectives (`collective.rs`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    PushPull(ReduceOp),
    Broadcast(usize),
}

/// An operation on a tensor that has not begun. How it begins says who owns the memory meanwhile:
///
/// | method | memory | returns |
/// |---|---|---|
/// | [`in_place`](Operation::in_place), [`between`](Operation::between) | borrowed | when it has ended |
/// | [`start_in`](Operation::start_in), [`start_between_in`](Operation::start_between_in) | borrowed until a [`scope`](crate::scope()) ends | at once |
/// | [`start`](Operation::start), [`start_between`](Operation::start_between) | owned by the [`Request`], which is also a future | at once |
///
/// Each way the compiler sees to it that the memory is neither freed, moved, read nor written while it is in flight,
/// whatever is forgotten or unwound. [`on_gpu`](Operation::on_gpu) does the same with memory of a GPU.
///
/// Errors of each: InvalidArgument (a slice has not the length of the tensor), AlreadyExists (an operation on a tensor of
/// this name is in flight on this rank); and of the operation, when it ends: FailedPrecondition (the ranks disagree; the
/// session stays usable), DeadlineExceeded (names who did not come), Unavailable (a member died), Cancelled, Aborted
/// (another rank gave up). After an error the output's contents are unspecified.
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation begins with in_place, between, start..."]
pub struct Operation<'t, T: Element> {
    tensor: &'t Tensor<T>,
    kind: Kind,
    priority: i64,
    timeout: Option<Duration>,
    number: u64,
}

impl<'t, T: Element> Operation<'t, T> {
    pub(crate) fn new(tensor: &'t Tensor<T>, kind: Kind) -> Self {
        Operation { tensor, kind, priority: 0, timeout: None, number: 0 }
    }

    /// Of several tensors the one with the larger priority is sooner.
    pub fn priority(mut self, priority: i64) -> Self {
        self.priority = priority;
        self
    }

    /// Until the whole operation must have ended; else BYTEPS_OP_TIMEOUT.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// A number that the ranks compare, such as a step's: where it differs the operation is FailedPrecondition on all of them,
    /// instead of a result of what does not belong together. 0 is none.
    pub fn matching(mut self, number: u64) -> Self {
        self.number = number;
        self
    }

    /// Does it, the result replacing what was in `data`.
    pub fn in_place(self, data: &mut [T]) -> Result<()> {
        let place = Place::host(data.as_mut_ptr(), data.len());
        self.run(place, place, None)
    }

    /// Does it from `input` into `output`. (A broadcast reads the input of its root alone; elsewhere it may be empty.)
    pub fn between(self, input: &[T], output: &mut [T]) -> Result<()> {
        self.run(Place::host(input.as_ptr(), input.len()), Place::host(output.as_mut_ptr(), output.len()), None)
    }

    /// Starts it in a [`scope`](crate::scope()), in place.
    pub fn start_in<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        data: &'scope mut [T],
    ) -> Result<ScopedRequest<'scope, T>> {
        let len = data.len();
        // From here on a raw pointer: while the operation is in flight, no reference claims to be the only writer.
        let data: *mut [T] = data;
        let place = Place::host(data as *const T, len);
        let request = self.submit(place, place, None, None, ptr::null_mut())?;
        Ok(scope.adopt(request, data))
    }

    /// Starts it in a [`scope`](crate::scope()), from `input` into `output`.
    pub fn start_between_in<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        input: &'scope [T],
        output: &'scope mut [T],
    ) -> Result<ScopedRequest<'scope, T>> {
        let (input, len) = (Place::host(input.as_ptr(), input.len()), output.len());
        let output: *mut [T] = output;
        let request = self.submit(input, Place::host(output as *const T, len), None, None, ptr::null_mut())?;
        Ok(scope.adopt(request, output))
    }

    /// Starts it on memory that the request owns until it has ended: a `Vec`, a boxed slice, an array, a
    /// [`Buffer`](crate::Buffer).
    pub fn start<B: AsMut<[T]> + Send + 'static>(self, memory: B) -> std::result::Result<Request<B>, Failed<B>> {
        self.launch(memory, None, |memory| {
            let slice = memory.as_mut();
            let place = Place::host(slice.as_mut_ptr(), slice.len());
            Ok((place, place))
        })
    }

    /// Starts it from one memory into another; `wait` gives both back. The input may be shared, such as an `Arc<[T]>`.
    pub fn start_between<I, O>(self, input: I, output: O) -> std::result::Result<Request<(I, O)>, Failed<(I, O)>>
    where
        I: AsRef<[T]> + Send + 'static,
        O: AsMut<[T]> + Send + 'static,
    {
        self.launch((input, output), None, |(input, output)| {
            let (input, output) = ((*input).as_ref(), output.as_mut());
            Ok((Place::host(input.as_ptr(), input.len()), Place::host(output.as_mut_ptr(), output.len())))
        })
    }

    /// Uses the next round of its name up without taking part, as where a training step ended half-way, so that later ones meet
    /// those of the other ranks again. Returns when that is done; the operation of the others is Aborted, with this rank and
    /// the reason in the error.
    pub fn give_up(self, reason: &str) -> Result<()> {
        extensions::give_up(|| {
            let chain = Extensions::new(self.number, Some(reason), extensions::NONE)?;
            let ext = Extensions::first_of(&chain, extensions::NONE);
            self.hand_over(Place::NOWHERE, Place::NOWHERE, ext, None, ptr::null_mut())
        })
    }

    /// `places` says where input and output of the memory are, once the memory has the place that it keeps.
    pub(crate) fn launch<B: Send + 'static>(
        self,
        memory: B,
        streams: Option<&sys::bps_streams>,
        places: impl FnOnce(&mut B) -> Result<(Place, Place)>,
    ) -> std::result::Result<Request<B>, Failed<B>> {
        Request::launch(memory, |memory, done, user| {
            let (input, output) = places(memory)?;
            self.submit(input, output, streams, Some(done), user)
        })
    }

    /// Does it on memory that is borrowed for the length of this call.
    pub(crate) fn run(self, input: Place, output: Place, streams: Option<&sys::bps_streams>) -> Result<()> {
        if callback::is_inside() {
            let message = format!("tensor \"{}\": nothing may block on a thread of the library", self.tensor.name());
            return Err(Error::new(Code::FailedPrecondition, message));
        }
        let request = self.submit(input, output, streams, None, ptr::null_mut())?;
        // It returns when the operation has ended, and not before.
        unsafe {
            let outcome = wait::until_ended(request);
            sys::bps_request_free(request);
            outcome
        }
    }

    /// Whether the input of this rank is read.
    fn reads(&self) -> Result<bool> {
        match self.kind {
            Kind::PushPull(_) => Ok(true),
            Kind::Broadcast(root) => {
                let mut info = sys::bps_info::default();
                unsafe { check(sys::bps_session_info(self.tensor.raw_session(), &mut info))? };
                Ok(usize::try_from(info.rank) == Ok(root))
            }
        }
    }

    fn check_length(&self, what: &str, place: Place) -> Result<()> {
        let (name, shape, len) = (self.tensor.name(), self.tensor.shape(), self.tensor.len());
        if place.len == len {
            return Ok(());
        }
        let message =
            format!("tensor \"{}\" of shape {:?}: the {} has {} elements, not {}", name, shape, what, place.len, len);
        Err(Error::new(Code::InvalidArgument, message))
    }

    /// Hands the operation over. From here on the memory belongs to the library, until the operation has ended. `streams`: of
    /// memory of GPUs.
    fn submit(
        &self,
        input: Place,
        output: Place,
        streams: Option<&sys::bps_streams>,
        done: Option<sys::bps_done_fn>,
        user: *mut c_void,
    ) -> Result<*mut sys::bps_request> {
        // An input that is not read may have any length, and be anywhere.
        let input = if self.reads()? {
            self.check_length("input", input)?;
            input
        } else {
            Place::NOWHERE
        };
        self.check_length("output", output)?;
        let last = streams.map_or(extensions::NONE, |streams| &streams.ext as *const sys::bps_ext);
        let chain = Extensions::new(self.number, None, last)?;
        self.hand_over(input, output, Extensions::first_of(&chain, last), done, user)
    }

    fn hand_over(
        &self,
        input: Place,
        output: Place,
        ext: *const sys::bps_ext,
        done: Option<sys::bps_done_fn>,
        user: *mut c_void,
    ) -> Result<*mut sys::bps_request> {
        let timeout_ms = milliseconds(self.timeout)?;
        let (session, tensor) = (self.tensor.raw_session(), self.tensor.raw());
        let priority = self.priority;
        let mut request = ptr::null_mut();
        let status = match self.kind {
            Kind::PushPull(op) => {
                let args = sys::bps_push_pull_args {
                    ext,
                    tensor,
                    input: input.first,
                    output: output.first,
                    priority,
                    op: op as i32,
                    input_device: input.device,
                    input_device_id: input.gpu,
                    output_device: output.device,
                    output_device_id: output.gpu,
                    timeout_ms,
                    done,
                    user,
                    ..Default::default()
                };
                unsafe { sys::bps_push_pull(session, &args, &mut request) }
            }
            Kind::Broadcast(root) => {
                let args = sys::bps_broadcast_args {
                    ext,
                    tensor,
                    input: input.first,
                    output: output.first,
                    priority,
                    root: i32::try_from(root).unwrap_or(i32::MAX),
                    input_device: input.device,
                    input_device_id: input.gpu,
                    output_device: output.device,
                    output_device_id: output.gpu,
                    timeout_ms,
                    done,
                    user,
                    ..Default::default()
                };
                unsafe { sys::bps_broadcast(session, &args, &mut request) }
            }
        };
        unsafe { check(status)? };
        Ok(request)
    }
}
