//! Where the memory of an operation lies.

use crate::device_buffer::DeviceBuffer;
use crate::element::Element;
use crate::error::{Code, Error, Result};
use byteps_sys as sys;
use std::os::raw::c_void;

/// Elements in memory of the host or of a GPU, as the library takes them.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub(crate) first: *mut c_void,
    pub(crate) len: usize,
    pub(crate) device: i32,
    pub(crate) gpu: i32,
}

impl Place {
    /// The input of a rank that gives none.
    pub(crate) const NOWHERE: Place = Place { first: std::ptr::null_mut(), len: 0, device: sys::BPS_CPU, gpu: 0 };

    pub(crate) fn host<T>(first: *const T, len: usize) -> Place {
        Place { first: first as *mut c_void, len, device: sys::BPS_CPU, gpu: 0 }
    }

    pub(crate) fn device<T>(first: *const T, len: usize, gpu: i32) -> Place {
        Place { first: first as *mut c_void, len, device: sys::BPS_CUDA, gpu }
    }

    /// Refuses an operation with streams that no GPU has a part in.
    pub(crate) fn check_streams(input: Place, output: Place) -> Result<()> {
        if input.device == sys::BPS_CUDA || output.device == sys::BPS_CUDA {
            return Ok(());
        }
        let message = "a stream is of memory of a GPU; both the input and the output are on the host";
        Err(Error::new(Code::InvalidArgument, message))
    }
}

// Public, since bounds of public functions name them; nobody can, so nobody else implements them: a wrong place would
// have the library write anywhere.
pub trait Reads<T: Element> {
    fn input(&self) -> Place;
}

pub trait Writes<T: Element> {
    fn output(&mut self) -> Place;
}

/// What an operation on memory of a GPU may read: a [`DeviceBuffer`], or elements on the host, such as a slice, a `Vec`
/// or a [`Buffer`](crate::Buffer).
pub trait DeviceInput<T: Element>: Reads<T> {}

/// What an operation on memory of a GPU may write: likewise.
pub trait DeviceOutput<T: Element>: Writes<T> {}

impl<T: Element, I: Reads<T> + ?Sized> DeviceInput<T> for I {}
impl<T: Element, O: Writes<T> + ?Sized> DeviceOutput<T> for O {}

impl<T: Element, I: AsRef<[T]> + ?Sized> Reads<T> for I {
    fn input(&self) -> Place {
        let slice = self.as_ref();
        Place::host(slice.as_ptr(), slice.len())
    }
}

impl<T: Element, O: AsMut<[T]> + ?Sized> Writes<T> for O {
    fn output(&mut self) -> Place {
        let slice = self.as_mut();
        Place::host(slice.as_mut_ptr(), slice.len())
    }
}

impl<T: Element> Reads<T> for DeviceBuffer<T> {
    fn input(&self) -> Place {
        self.place()
    }
}

impl<T: Element> Writes<T> for DeviceBuffer<T> {
    fn output(&mut self) -> Place {
        self.place()
    }
}
