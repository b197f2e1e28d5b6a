//! Gradient communication for data-parallel training: workers hand tensors to CPU servers that sum them, and get the sum
//! back.
//!
//! ```no_run
//! # fn main() -> byteps::Result<()> {
//! use byteps::{ReduceOp, Session};
//!
//! let session = Session::open()?;                                     // bpslaunch says which job
//! let weight = session.tensor::<f32>("layer1.weight", &[64, 32])?;
//!
//! let mut gradient = vec![1.0; weight.len()];
//! weight.push_pull(ReduceOp::Average).in_place(&mut gradient)?;       // blocks
//!
//! let request = weight.push_pull(ReduceOp::Average).start(gradient)?; // does not; owns the gradient meanwhile
//! let gradient = request.wait()?;                                     // or request.await
//! # assert_eq!(gradient, vec![1.0; 64 * 32]);
//!
//! session.shutdown(None)?;
//! # Ok(()) }
//! ```
//!
//! Run it as `bpslaunch --workers 2 -- program`; alone it is a job of one worker.
//!
//! * [`Session`]: the membership in a job; [`Tensor`]: what operations are about; [`Operation`]: how they begin.
//! * [`Collective`]: all-gather, all-to-all and the others, also of some ranks alone ([`ProcessSet`]) and several as one
//!   ([`Group`]).
//! * [`DeviceOperation`], [`DeviceCollective`]: the same on memory of GPUs ([`DeviceBuffer`]), in the order of a [`Stream`].
//! * Memory in flight is owned by a [`Request`] or borrowed by a [`scope`]: it can be neither freed nor moved, also when a
//!   request is dropped or forgotten.
//! * [`Error`] has the library's words, a [`Code`], and whether trying again can help. Nothing panics that is not a bug in
//!   the program, and every wait has a deadline.
//! * Any thread may use a session, and many may at once. After a fork the child has none of it: its calls fail.

#![warn(missing_docs)]
#![warn(missing_debug_implementations)]

mod buffer;
mod callback;
mod collective;
mod device_buffer;
mod device_collective;
mod device_operation;
mod device_request;
mod element;
mod error;
mod extensions;
mod group;
mod join;
mod log;
mod open_options;
mod operation;
mod output;
mod place;
mod process_set;
mod request;
mod scope;
mod session;
mod sparse;
mod stream;
mod tensor;
mod timeline;
mod timeout;
mod wait;

pub use buffer::Buffer;
pub use byteps_sys as sys;
pub use collective::{Collective, CollectiveRequest};
pub use device_buffer::DeviceBuffer;
pub use device_collective::{DeviceCollective, DeviceCollectiveRequest};
pub use device_operation::DeviceOperation;
pub use device_request::{DeviceRequest, OnDevice};
pub use element::{Bf16, Bool, Complex, Element, F16};
pub use error::{Code, Error, Failed, Result};
pub use group::{Group, GroupRequest, Outputs};
pub use join::JoinRequest;
pub use log::Level;
pub use open_options::{OpenOptions, Place};
pub use operation::{Operation, ReduceOp};
pub use output::{Filled, Output};
pub use place::{DeviceInput, DeviceOutput};
pub use process_set::ProcessSet;
pub use request::Request;
pub use scope::{scope, Scope, ScopedRequest};
pub use session::{Info, Session};
pub use sparse::{SparseOutput, SparseReduction, SparseRequest};
pub use stream::Stream;
pub use tensor::Tensor;
pub use timeline::TimelineSpan;

/// The release of the library that is loaded, such as "0.1.0".
pub fn version() -> &'static str {
    let text = unsafe { std::ffi::CStr::from_ptr(sys::bps_version_string()) };
    text.to_str().unwrap_or("unknown")
}

/// The version (major, minor) of the C interface that the library has.
pub fn abi_version() -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    unsafe { sys::bps_version(&mut major, &mut minor) };
    (major, minor)
}
