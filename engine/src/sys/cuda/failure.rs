//! Turns results of the driver's calls into errors: a status for the caller, and the driver's own number, name and
//! description.

use super::{result, Api};
use crate::status::{Error, Status};

/// A call that failed. `?` turns it into an `Error`, and only then builds its text.
#[derive(Clone, Copy)]
pub struct Failure {
    pub(super) api: &'static Api,
    pub function: &'static str,
    pub code: i32,
}

impl Failure {
    /// True if the context has failed with this error. It runs nothing more, all its work has ended, and every later
    /// call fails in the same manner until the process ends or resets the context.
    pub fn is_sticky(&self) -> bool {
        use result::*;
        matches!(
            self.code,
            DEINITIALIZED
                | DEVICE_UNAVAILABLE
                | ECC_UNCORRECTABLE
                | NVLINK_UNCORRECTABLE
                | CONTAINED
                | ILLEGAL_ADDRESS
                | LAUNCH_TIMEOUT
                | CONTEXT_IS_DESTROYED
                | ASSERT
                | HARDWARE_STACK_ERROR
                ..=LAUNCH_FAILED | TENSOR_MEMORY_LEAK | MPS_CLIENT_TERMINATED | EXTERNAL_DEVICE
        )
    }

    fn status(&self) -> Status {
        use result::*;
        match self.code {
            OUT_OF_MEMORY => Status::NoMemory,
            INVALID_VALUE | INVALID_HANDLE | INVALID_DEVICE => Status::Invalid,
            // Errors of capture: the call would have become part of a graph, or would have destroyed it.
            STREAM_CAPTURE_UNSUPPORTED..=CAPTURED_EVENT => Status::Invalid,
            _ => Status::Unavailable,
        }
    }
}

impl std::fmt::Debug for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.function, self.code)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let (name, text) = failure.api.explain(failure.code);
        let Failure { function, code, .. } = failure;
        let message = format!("{function} failed with {name} ({code}): {text}");
        Error { vendor_error: code, ..Error::new(failure.status(), message) }
    }
}
