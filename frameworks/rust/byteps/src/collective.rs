//! Collectives: what is to be done, among whom, and how it begins.

use crate::callback;
use crate::element::Element;
use crate::error::{check, Code, Error, Failed, Result};
use crate::extensions::{self, Extensions};
use crate::operation::ReduceOp;
use crate::output::Output;
use crate::process_set::ProcessSet;
use crate::request::{Handle, Request};
use crate::session::{c_string, extents, Inner, Session};
use crate::timeout::milliseconds;
use crate::wait;
use byteps_sys as sys;
use std::ffi::CString;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A collective of any element type, without memory.
#[derive(Clone)]
pub(crate) struct Description {
    pub(crate) session: Arc<Inner>,
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: u32,
    pub(crate) op: i32,
    pub(crate) set: Option<ProcessSet>,
    pub(crate) priority: i64,
    pub(crate) timeout: Option<Duration>,
    pub(crate) number: u64,
    kind: i32,
    splits: Vec<usize>,
    factors: Option<(f64, f64)>,
    root: usize,
    peer: usize,
    tag: i64,
}

/// A description as the library takes it; `args` points into the rest.
pub(crate) struct Arguments {
    pub(crate) args: sys::bps_collective_args,
    _name: CString,
    _shape: Vec<i64>,
    _splits: Vec<i64>,
    _extensions: Option<Box<Extensions>>,
}

impl Description {
    pub(crate) fn new(session: &Session, kind: i32, name: &str, dtype: u32, shape: &[usize]) -> Description {
        Description {
            session: session.inner.clone(),
            name: name.into(),
            shape: shape.into(),
            dtype,
            op: sys::BPS_SUM,
            set: None,
            priority: 0,
            timeout: None,
            number: 0,
            kind,
            splits: Vec::new(),
            factors: None,
            root: 0,
            peer: 0,
            tag: 0,
        }
    }

    pub(crate) fn invalid(&self, why: &str) -> Error {
        Error::new(Code::InvalidArgument, format!("collective \"{}\" of shape {:?}: {}", self.name, self.shape, why))
    }

    /// Refuses kinds whose result does not fit into their input.
    pub(crate) fn check_in_place(&self, instead: &str) -> Result<()> {
        if [sys::BPS_ALL_REDUCE, sys::BPS_BROADCAST, sys::BPS_REDUCE].contains(&self.kind) {
            return Ok(());
        }
        Err(self.invalid(&format!("its result has another size than its input: use {}", instead)))
    }

    /// The set as the library knows it.
    pub(crate) fn raw_set(&self) -> Result<*mut sys::bps_process_set> {
        match &self.set {
            None => Ok(ptr::null_mut()),
            Some(set) if set.is_of(&self.session) => Ok(set.raw()),
            Some(_) => Err(self.invalid("the process set is one of another session")),
        }
    }

    /// Whether this rank's input is read.
    fn reads(&self) -> Result<bool> {
        match self.kind {
            sys::BPS_RECEIVE | sys::BPS_BARRIER => Ok(false),
            sys::BPS_BROADCAST | sys::BPS_SCATTER => {
                let mut info = sys::bps_info::default();
                unsafe { check(sys::bps_session_info(self.session.raw(), &mut info))? };
                Ok(usize::try_from(info.rank) == Ok(self.root))
            }
            _ => Ok(true),
        }
    }

    /// The arguments, for an input of `len` elements, which has been checked.
    pub(crate) fn arguments(&self, input: *const c_void, len: usize) -> Result<Arguments> {
        let elements: usize = self.shape.iter().product();
        if len != elements && self.reads()? {
            return Err(self.invalid(&format!("the input has {} elements, not {}", len, elements)));
        }
        self.fill(input, None)
    }

    /// `reason`: of a round that is given up.
    fn fill(&self, input: *const c_void, reason: Option<&str>) -> Result<Arguments> {
        let shape = extents(&self.name, &self.shape)?;
        let extensions = Extensions::new(self.number, reason, extensions::NONE)?;
        let name = c_string(&self.name, "the name of a collective")?;
        let number = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        let splits: Vec<i64> = self.splits.iter().map(|&rows| i64::try_from(rows).unwrap_or(i64::MAX)).collect();
        let (prescale, postscale) = self.factors.unwrap_or((0.0, 0.0));
        let args = sys::bps_collective_args {
            ext: Extensions::first_of(&extensions, extensions::NONE),
            name: name.as_ptr(),
            set: self.raw_set()?,
            input,
            shape: shape.as_ptr(),
            splits: if splits.is_empty() { ptr::null() } else { splits.as_ptr() },
            tag: self.tag,
            priority: self.priority,
            timeout_ms: milliseconds(self.timeout)?,
            prescale,
            postscale,
            kind: self.kind,
            ndim: number(shape.len()),
            dtype: self.dtype,
            op: self.op,
            num_splits: number(splits.len()),
            root: number(self.root),
            peer: number(self.peer),
            scaled: self.factors.is_some().into(),
            ..Default::default()
        };
        Ok(Arguments { args, _name: name, _shape: shape, _splits: splits, _extensions: extensions })
    }

    /// Hands the operation over. The memory belongs to the library until the operation has ended.
    ///
    /// # Safety
    /// `filled` is of this description, and its memory is valid that long.
    pub(crate) unsafe fn submit(&self, filled: &Arguments) -> Result<*mut sys::bps_request> {
        let mut request = ptr::null_mut();
        check(sys::bps_collective(self.session.raw(), &filled.args, &mut request))?;
        Ok(request)
    }
}

/// A collective that has not begun; made by [`Session::all_gather`] and its kin. How it begins says who owns the input
/// meanwhile:
///
/// | method | input | returns |
/// |---|---|---|
/// | [`run`](Collective::run), [`in_place`](Collective::in_place) | borrowed | when it has ended |
/// | [`start`](Collective::start) | owned by the [`CollectiveRequest`], which is also a future | at once |
///
/// The result is an [`Output`], which owns its memory; [`on_gpu`](Collective::on_gpu) brings it into memory of a GPU.
/// Operations of a set meet by name, in any order.
///
/// ```no_run
/// # fn main() -> byteps::Result<()> {
/// # let session = byteps::Session::open()?;
/// let evens = session.process_set(&[0, 2], "")?;
/// let request = session.all_gather::<f32>("tokens", &[4, 3]).on(&evens).start(vec![1.0; 12])?;
/// let (tokens, rows) = request.wait()?;                        // or request.await
/// assert_eq!((tokens.shape(), tokens.splits()), (&[8, 3][..], &[4, 4][..]));
/// # drop(rows);
/// # Ok(()) }
/// ```
///
/// Errors: InvalidArgument (the input has not the shape's length, this rank is not in the set, splits do not add up),
/// AlreadyExists (an operation of this set and name is in flight on this rank); and when it ends: FailedPrecondition (the
/// ranks disagree; the session stays usable), DeadlineExceeded (names who did not come), Unavailable (a member died),
/// Cancelled, Aborted (another rank gave up).
#[derive(Clone)]
#[must_use = "a collective begins with run, in_place or start"]
pub struct Collective<T: Element> {
    pub(crate) description: Description,
    of: PhantomData<fn(T) -> T>,
}

impl Session {
    fn collective<T: Element>(&self, kind: i32, name: &str, shape: &[usize]) -> Collective<T> {
        Collective { description: Description::new(self, kind, name, T::DTYPE, shape), of: PhantomData }
    }

    /// The reduction of all inputs, to all.
    pub fn all_reduce<T: Element>(&self, name: &str, shape: &[usize], op: ReduceOp) -> Collective<T> {
        self.collective(sys::BPS_ALL_REDUCE, name, shape).op(op)
    }

    /// The root's input, to all; elsewhere the input may be empty. `shape` is the same everywhere.
    pub fn broadcast<T: Element>(&self, name: &str, shape: &[usize], root: usize) -> Collective<T> {
        self.collective(sys::BPS_BROADCAST, name, shape).root(root)
    }

    /// All inputs, one behind the other by rank, to all; rows (the first extent) may differ.
    pub fn all_gather<T: Element>(&self, name: &str, shape: &[usize]) -> Collective<T> {
        self.collective(sys::BPS_ALL_GATHER, name, shape)
    }

    /// Of the reduction of all inputs to each rank its rows: [`splits`](Collective::splits), else as even as possible.
    pub fn reduce_scatter<T: Element>(&self, name: &str, shape: &[usize], op: ReduceOp) -> Collective<T> {
        self.collective(sys::BPS_REDUCE_SCATTER, name, shape).op(op)
    }

    /// From each to each rank its rows: [`splits`](Collective::splits), else equal ones.
    pub fn all_to_all<T: Element>(&self, name: &str, shape: &[usize]) -> Collective<T> {
        self.collective(sys::BPS_ALL_TO_ALL, name, shape)
    }

    /// The reduction of all inputs, to the root; the others get nothing.
    pub fn reduce<T: Element>(&self, name: &str, shape: &[usize], op: ReduceOp, root: usize) -> Collective<T> {
        self.collective(sys::BPS_REDUCE, name, shape).op(op).root(root)
    }

    /// All inputs, one behind the other by rank, to the root; rows may differ.
    pub fn gather<T: Element>(&self, name: &str, shape: &[usize], root: usize) -> Collective<T> {
        self.collective(sys::BPS_GATHER, name, shape).root(root)
    }

    /// From the root's input to each rank its rows: the root's [`splits`](Collective::splits), else as even as possible.
    /// Elsewhere the input may be empty, and the first extent does not count.
    pub fn scatter<T: Element>(&self, name: &str, shape: &[usize], root: usize) -> Collective<T> {
        self.collective(sys::BPS_SCATTER, name, shape).root(root)
    }

    /// The input, to a peer that receives with the same tag.
    pub fn send<T: Element>(&self, peer: usize, tag: i64, shape: &[usize]) -> Collective<T> {
        self.collective(sys::BPS_SEND, "", shape).with(peer, tag)
    }

    /// What a peer sends with this tag; of the shape the first extent does not count, and the input is empty.
    pub fn receive<T: Element>(&self, peer: usize, tag: i64, shape: &[usize]) -> Collective<T> {
        self.collective(sys::BPS_RECEIVE, "", shape).with(peer, tag)
    }

    /// A barrier that can be started, and be of some ranks or of a group; the input is empty.
    pub fn barrier_of_ranks(&self, name: &str) -> Collective<u8> {
        self.collective(sys::BPS_BARRIER, name, &[0])
    }
}

impl<T: Element> Collective<T> {
    fn op(mut self, op: ReduceOp) -> Self {
        self.description.op = op as i32;
        self
    }

    fn root(mut self, root: usize) -> Self {
        self.description.root = root;
        self
    }

    fn with(mut self, peer: usize, tag: i64) -> Self {
        self.description.peer = peer;
        self.description.tag = tag;
        self
    }

    /// Among the ranks of a set; else all.
    pub fn on(mut self, set: &ProcessSet) -> Self {
        self.description.set = Some(set.clone());
        self
    }

    /// Rows for each rank of the set, which add up to those of the input.
    pub fn splits(mut self, rows: &[usize]) -> Self {
        self.description.splits = rows.into();
        self
    }

    /// Of reductions: inputs are multiplied by `before` first, and the result by `after`; each rounds once.
    pub fn scaled(mut self, before: f64, after: f64) -> Self {
        self.description.factors = Some((before, after));
        self
    }

    /// Of several operations the one with the larger priority is sooner.
    pub fn priority(mut self, priority: i64) -> Self {
        self.description.priority = priority;
        self
    }

    /// Until the whole operation must have ended; else BYTEPS_OP_TIMEOUT.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.description.timeout = Some(timeout);
        self
    }

    /// A number that the ranks compare, such as a step's: where it differs the operation is FailedPrecondition on all of them,
    /// instead of a result of what does not belong together. 0 is none.
    pub fn matching(mut self, number: u64) -> Self {
        self.description.number = number;
        self
    }

    /// Does it: returns when it has ended, with what it has brought.
    pub fn run(&self, input: &[T]) -> Result<Output<T>> {
        let filled = self.description.arguments(input.as_ptr() as *const c_void, input.len())?;
        let handle = Arc::new(self.finish(&filled)?);
        // Without an output of ours the memory is the library's.
        unsafe { Output::new(&handle, 0) }
    }

    /// Does it, the result replacing what was in `data`: of all_reduce, broadcast and reduce (there on the root).
    pub fn in_place(&self, data: &mut [T]) -> Result<()> {
        self.description.check_in_place("run or start")?;
        let output = data.as_mut_ptr() as *mut c_void;
        let mut filled = self.description.arguments(output, data.len())?;
        filled.args.output = output;
        filled.args.output_bytes = std::mem::size_of_val(data) as u64;
        self.finish(&filled).map(drop)
    }

    /// Starts it, with an input that the request owns until it has ended: a `Vec`, a boxed slice, an array, an `Arc<[T]>`, a
    /// [`Buffer`](crate::Buffer).
    pub fn start<I>(&self, input: I) -> std::result::Result<CollectiveRequest<T, I>, Failed<I>>
    where
        I: AsRef<[T]> + Send + 'static,
    {
        let request = Request::launch(input, |input, done, user| {
            let slice = (*input).as_ref();
            let mut filled = self.description.arguments(slice.as_ptr() as *const c_void, slice.len())?;
            filled.args.done = Some(done);
            filled.args.user = user;
            unsafe { self.description.submit(&filled) }
        })?;
        Ok(CollectiveRequest { request, of: PhantomData })
    }

    /// Uses the next round of its name up without taking part, as where a training step ended half-way, so that later ones meet
    /// those of the other ranks again. Returns when that is done; the operation of the others is Aborted, with this rank and
    /// the reason in the error.
    pub fn give_up(&self, reason: &str) -> Result<()> {
        extensions::give_up(|| {
            let filled = self.description.fill(ptr::null(), Some(reason))?;
            unsafe { self.description.submit(&filled) }
        })
    }

    /// Submits, and waits until it has ended: memory may be borrowed for the length of this call.
    fn finish(&self, filled: &Arguments) -> Result<Handle> {
        if callback::is_inside() {
            return Err(Error::new(Code::FailedPrecondition, "nothing may block on a thread of the library"));
        }
        unsafe {
            let handle = Handle(self.description.submit(filled)?);
            wait::until_ended(handle.0)?;
            Ok(handle)
        }
    }
}

impl<T: Element> fmt::Debug for Collective<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Description { name, shape, set, .. } = &self.description;
        f.debug_struct("Collective").field("name", name).field("shape", shape).field("set", set).finish_non_exhaustive()
    }
}

/// A collective in flight that owns its input. To drop it is to let the operation go on by itself: the input is dropped when
/// that has ended.
#[must_use = "dropping a request lets its operation go on, and drops the result"]
pub struct CollectiveRequest<T: Element, I: Send + 'static> {
    request: Request<I>,
    of: PhantomData<fn() -> T>,
}

impl<T: Element, I: Send + 'static> CollectiveRequest<T, I> {
    /// Blocks until it has ended; gives what it has brought, and the input back.
    pub fn wait(self) -> std::result::Result<(Output<T>, I), Failed<I>> {
        self.request.wait_and_keep().and_then(land)
    }

    /// Blocks until it has ended, at most `timeout`; says whether it has. `wait` then does not block.
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        self.request.wait_for(timeout)
    }

    /// Whether it has ended. Never blocks.
    pub fn is_ended(&self) -> bool {
        self.request.is_ended()
    }

    /// Asks to give up. It then ends with Cancelled here and with Aborted elsewhere, unless it was complete.
    pub fn cancel(&self) -> Result<()> {
        self.request.cancel()
    }
}

fn land<T: Element, I>((input, handle): (I, Handle)) -> std::result::Result<(Output<T>, I), Failed<I>> {
    // Without an output of ours the memory is the library's; no other value makes this output.
    match unsafe { Output::new(&Arc::new(handle), 0) } {
        Ok(output) => Ok((output, input)),
        Err(error) => Err(Failed { error, memory: Some(input) }),
    }
}

impl<T: Element, I: Send + 'static> Future for CollectiveRequest<T, I> {
    type Output = std::result::Result<(Output<T>, I), Failed<I>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.request.poll_and_keep(context).map(|landed| landed.and_then(land))
    }
}

impl<T: Element, I: Send + 'static> fmt::Debug for CollectiveRequest<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectiveRequest").field("ended", &self.is_ended()).finish_non_exhaustive()
    }
}
