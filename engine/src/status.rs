//! Status codes, and the error that carries them. The numbers are the C ABI's and are never reused. They are grouped by
//! the object that is harmed: the request, the transfer, the peer, this engine.

use crate::types::Transport;
use std::fmt;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// The outcome of a call or a transfer. Negative numbers are failures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum Status { $($(#[$doc])* $name = $number,)* }

        impl Status {
            pub const ALL: &'static [Status] = &[$(Status::$name),*];
            /// Returns the constant's name without prefix, as in the C header.
            pub fn name(self) -> &'static str { match self { $(Status::$name => $text),* } }
            /// Returns the status with this number, if one exists.
            pub fn from_number(number: i32) -> Option<Status> { match number { $($number => Some(Status::$name),)* _ => None } }
        }
    };
}

statuses! {
    Ok = 0, "OK";
    /// Not final yet.
    Pending = 1, "PENDING";
    /// Struck by failure, cancel or deadline; the memory is not yet the caller's.
    Draining = 2, "DRAINING";
    /// An argument is wrong; the message names it. Nothing was done. The same holds for all of -1xx, except as `Busy`
    /// says.
    Invalid = -100, "INVALID";
    NotRegistered = -101, "NOT_REGISTERED";
    Overlap = -102, "OVERLAP";
    Access = -103, "ACCESS";
    /// A handle or region that was replaced or unregistered, or belonged to an engine that has restarted since.
    Stale = -104, "STALE";
    /// In use, in progress, or called in a callback. After the timeout of an unregister or a close, the region, peer,
    /// engine or KV cache stays closed for new work; a region is unchanged if the timeout was 0.
    Busy = -105, "BUSY";
    Limit = -106, "LIMIT";
    Unsupported = -107, "UNSUPPORTED";
    Closed = -108, "CLOSED";
    /// This transfer passed its deadline (or this call its timeout).
    Timeout = -200, "TIMEOUT";
    Cancelled = -201, "CANCELLED";
    Corrupt = -202, "CORRUPT";
    /// Some requests failed, others did not; the per-request results say which.
    Partial = -203, "PARTIAL";
    Unreachable = -300, "UNREACHABLE";
    PeerLost = -301, "PEER_LOST";
    Refused = -302, "REFUSED";
    Version = -303, "VERSION";
    NotFerry = -304, "NOT_FERRY";
    NoMemory = -400, "NO_MEMORY";
    /// The operating system refused; the error carries errno.
    System = -401, "SYSTEM";
    Unavailable = -402, "UNAVAILABLE";
    Panic = -403, "PANIC";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failure with its cause: the status that a caller acts on, the code of the operating system or the device, the
/// request concerned, and a sentence for a reader.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{status}: {message}")]
pub struct Error {
    pub status: Status,
    /// errno, or 0.
    pub os_error: i32,
    /// A device library's own code (work-completion status, ACL code), or 0.
    pub vendor_error: i32,
    /// Index of the request in the caller's list.
    pub request_index: Option<u64>,
    pub transport: Transport,
    pub message: String,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error {
            status,
            os_error: 0,
            vendor_error: 0,
            request_index: None,
            transport: Transport::None,
            message: message.into(),
        }
    }

    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(Status::Invalid, message)
    }

    /// Returns the error for `what`, which failed with an operating-system error. The errno is kept; exhausted memory
    /// becomes `NoMemory`, anything else `System`.
    pub fn system(what: impl Into<String>, error: &std::io::Error) -> Error {
        let os_error = error.raw_os_error().unwrap_or(0);
        let status = if os_error == libc::ENOMEM { Status::NoMemory } else { Status::System };
        Error { os_error, ..Error::new(status, format!("{}: {}", what.into(), reason(error))) }
    }

    /// Returns the error for an address that cannot be reached. If a limit of this machine is the cause, the error is
    /// that of `system`.
    pub fn unreachable(address: impl Into<String>, error: &std::io::Error) -> Error {
        let system = Error::system(address, error);
        match system.os_error {
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS => system,
            _ => Error { status: Status::Unreachable, ..system },
        }
    }

    pub fn at_request(mut self, index: u64) -> Error {
        self.request_index = Some(index);
        self
    }

    pub fn over(mut self, transport: Transport) -> Error {
        self.transport = transport;
        self
    }
}

/// Returns the reason of an operating-system error as the system words it: "Connection refused". Rust's own text
/// repeats the number, which `Error::os_error` has.
pub fn reason(error: &std::io::Error) -> String {
    let mut text = error.to_string();
    if let Some(number) = error.raw_os_error() {
        text.truncate(text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text).len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_round_trip() {
        for &status in Status::ALL {
            assert_eq!(Status::from_number(status as i32), Some(status));
        }
        assert_eq!(Status::from_number(-999), None);
    }

    #[test]
    fn errno_is_kept_and_memory_has_its_own_status() {
        let full = Error::system("socket", &std::io::Error::from_raw_os_error(libc::EMFILE));
        assert_eq!((full.status, full.os_error), (Status::System, libc::EMFILE));
        let memory = Error::system("map", &std::io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!(memory.status, Status::NoMemory);
        let refused = Error::unreachable("there:1", &std::io::Error::from_raw_os_error(libc::ECONNREFUSED));
        assert_eq!((refused.status, refused.os_error), (Status::Unreachable, libc::ECONNREFUSED));
        assert_eq!(refused.message, "there:1: Connection refused");
        let full = Error::unreachable("there:1", &std::io::Error::from_raw_os_error(libc::ENFILE));
        assert_eq!(full.status, Status::System);
        assert_eq!(reason(&std::io::Error::other("no (os error 5)")), "no (os error 5)");
    }
}
