//! Results of the driver's calls as errors: what each means for who asked, with the driver's own number,
//! name and sentence.

use super::{result, Api};
use crate::status::{Error, Status};

/// A call that failed. Becomes an `Error` by `?`, and only then is its text made.
#[derive(Clone, Copy)]
pub struct Failure {
    pub(super) api: &'static Api,
    pub function: &'static str,
    pub code: i32,
}

impl Failure {
    /// Whether the context has failed with it. It runs nothing any more, what it ran has ended, and every
    /// later call in it fails the same way, until the process ends or resets the context.
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
            // The results of capture: the call would have become part of a graph, or destroyed it.
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
        let message = format!("{function}: {name} ({code}): {text}");
        Error { vendor_error: code, ..Error::new(failure.status(), message) }
    }
}
