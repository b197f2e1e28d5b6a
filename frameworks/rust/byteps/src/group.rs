//! Several collectives as one.

use crate::collective::{Arguments, Collective, Description};
use crate::element::Element;
use crate::error::{check, Code, Error, Failed, Result};
use crate::output::Output;
use crate::request::{Handle, Request};
use crate::session::{Inner, Session};
use byteps_sys as sys;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Lends memory of some type.
trait Lend: Send {
    fn lend(&self) -> (*const c_void, usize);
}

struct Lent<T, I> {
    input: I,
    of: PhantomData<fn() -> T>,
}

impl<T: Element, I: AsRef<[T]> + Send> Lend for Lent<T, I> {
    fn lend(&self) -> (*const c_void, usize) {
        let slice = self.input.as_ref();
        (slice.as_ptr() as *const c_void, slice.len())
    }
}

type Inputs = Vec<Box<dyn Lend>>;

/// Several collectives that are started as one, all or nothing; made by [`Session::group`].
///
/// ```no_run
/// # fn main() -> byteps::Result<()> {
/// # use byteps::ReduceOp::{Average, Sum};
/// # let session = byteps::Session::open()?;
/// let mut group = session.group();
/// let loss = group.add(&session.all_reduce::<f32>("loss", &[], Average), [0.5]);
/// let rows = group.add(&session.reduce_scatter::<f32>("gradient", &[64, 2], Sum), vec![1.0; 128]);
/// let mut outputs = group.start()?.wait()?;
/// let (loss, rows) = (outputs.take::<f32>(loss)?, outputs.take::<f32>(rows)?);
/// # drop((loss, rows));
/// # Ok(()) }
/// ```
#[must_use = "a group begins with start"]
pub struct Group {
    session: Arc<Inner>,
    descriptions: Vec<Description>,
    inputs: Inputs,
}

impl Session {
    /// A group without members.
    pub fn group(&self) -> Group {
        Group { session: self.inner.clone(), descriptions: Vec::new(), inputs: Vec::new() }
    }
}

impl Group {
    /// Adds a collective of this session, whose input the request is to own; returns the number of its output.
    pub fn add<T: Element, I>(&mut self, collective: &Collective<T>, input: I) -> usize
    where
        I: AsRef<[T]> + Send + 'static,
    {
        self.descriptions.push(collective.description.clone());
        self.inputs.push(Box::new(Lent { input, of: PhantomData }));
        self.inputs.len() - 1
    }

    /// Starts all. If one is refused none is started.
    pub fn start(self) -> Result<GroupRequest> {
        let Group { session, descriptions, inputs } = self;
        let request = Request::launch(inputs, |inputs, done, user| {
            let mut all: Vec<Arguments> = Vec::with_capacity(descriptions.len());
            for (description, input) in descriptions.iter().zip(inputs.iter()) {
                if !Arc::ptr_eq(&description.session, &session) {
                    return Err(description.invalid("it is one of another session than the group"));
                }
                let (input, len) = input.lend();
                all.push(description.arguments(input, len)?);
            }
            let operations: Vec<*const sys::bps_collective_args> =
                all.iter().map(|one| &one.args as *const _).collect();
            let args = sys::bps_group_args {
                operations: operations.as_ptr(),
                num_operations: i32::try_from(operations.len()).unwrap_or(i32::MAX),
                done: Some(done),
                user,
                ..Default::default()
            };
            let mut request = ptr::null_mut();
            unsafe { check(sys::bps_group(session.raw(), &args, &mut request))? };
            Ok(request)
        })?;
        Ok(GroupRequest { request, dtypes: descriptions.iter().map(|one| one.dtype).collect() })
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.descriptions.iter().map(|one| one.name.as_str()).collect();
        f.debug_tuple("Group").field(&names).finish()
    }
}

/// A group in flight that owns its inputs. It ends when all its operations have; dropped, they go on by themselves.
#[must_use = "dropping a request lets its operations go on, and drops the results"]
pub struct GroupRequest {
    request: Request<Inputs>,
    dtypes: Vec<u32>,
}

impl GroupRequest {
    /// Blocks until all have ended; gives what they have brought, or the first error.
    pub fn wait(self) -> Result<Outputs> {
        let (_, handle) = self.request.wait_and_keep()?;
        Ok(Outputs::new(handle, self.dtypes))
    }

    /// Whether all have ended. Never blocks.
    pub fn is_ended(&self) -> bool {
        self.request.is_ended()
    }

    /// Asks to give up all.
    pub fn cancel(&self) -> Result<()> {
        self.request.cancel()
    }
}

impl Future for GroupRequest {
    type Output = Result<Outputs>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.request.poll_and_keep(context).map(|landed: std::result::Result<_, Failed<Inputs>>| {
            let (_, handle) = landed?;
            Ok(Outputs::new(handle, self.dtypes.clone()))
        })
    }
}

impl fmt::Debug for GroupRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupRequest").field("ended", &self.is_ended()).finish_non_exhaustive()
    }
}

/// What the collectives of a group have brought, by the numbers that [`Group::add`] gave them.
pub struct Outputs {
    handle: Arc<Handle>,
    // None: taken.
    dtypes: Vec<Option<u32>>,
}

impl Outputs {
    fn new(handle: Handle, dtypes: Vec<u32>) -> Outputs {
        Outputs { handle: Arc::new(handle), dtypes: dtypes.into_iter().map(Some).collect() }
    }

    /// Takes one. InvalidArgument: there is none of this number and type, or it was taken before.
    pub fn take<T: Element>(&mut self, index: usize) -> Result<Output<T>> {
        match self.dtypes.get_mut(index) {
            Some(dtype) if *dtype == Some(T::DTYPE) => {
                // The type is right, and no other value has this one.
                let output = unsafe { Output::new(&self.handle, index)? };
                *dtype = None;
                Ok(output)
            }
            _ => {
                let message = format!("output {} of the group is not there, of another type, or was taken", index);
                Err(Error::new(Code::InvalidArgument, message))
            }
        }
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outputs").field("len", &self.dtypes.len()).finish_non_exhaustive()
    }
}
