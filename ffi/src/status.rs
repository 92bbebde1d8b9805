//! Status codes, their names, and which library this is. The numbers are the engine's; they are spelled
//! out here because they are the ABI, and a test holds the two together.

use engine::Status;
use std::ffi::c_char;

/// What became of a call: 0 it did what it was asked; positive, a transfer is not final yet; negative,
/// a failure, grouped by what is harmed. The numbers are fixed and never reused. A program should treat
/// a negative number that it doesn't know like any failure of its group.
pub type ferry_status = i32;

/// Success.
pub const FERRY_OK: ferry_status = 0;
/// The transfer is not final yet.
pub const FERRY_PENDING: ferry_status = 1;
/// The transfer was struck by failure, cancel or deadline, and is not final yet: its memory is not yet
/// the caller's.
pub const FERRY_DRAINING: ferry_status = 2;

/// An argument is wrong; the message names it. This and all of -1xx: the caller's mistake, or not now;
/// nothing was done.
pub const FERRY_ERR_INVALID: ferry_status = -100;
/// Memory outside every registered region, or a region that never was.
pub const FERRY_ERR_NOT_REGISTERED: ferry_status = -101;
/// The memory overlaps a region that is registered.
pub const FERRY_ERR_OVERLAP: ferry_status = -102;
/// The region does not grant this operation.
pub const FERRY_ERR_ACCESS: ferry_status = -103;
/// A handle whose object is gone (unregistered, released, destroyed), or of another engine, or of an
/// engine since restarted.
pub const FERRY_ERR_STALE: ferry_status = -104;
/// In use, still going on, or not allowed inside a callback. Try again later.
pub const FERRY_ERR_BUSY: ferry_status = -105;
/// A bound is reached: room in a queue or table, a size, the caller's buffer.
pub const FERRY_ERR_LIMIT: ferry_status = -106;
/// Not part of this version or build.
pub const FERRY_ERR_UNSUPPORTED: ferry_status = -107;
/// The engine is closed or closing, or this process inherited it by fork.
pub const FERRY_ERR_CLOSED: ferry_status = -108;

/// The deadline of a transfer, or the timeout of a call, has passed. -2xx: this transfer or call.
pub const FERRY_ERR_TIMEOUT: ferry_status = -200;
/// Cancelled on request, or because an earlier ORDERED transfer failed.
pub const FERRY_ERR_CANCELLED: ferry_status = -201;
/// A checksum doesn't match.
pub const FERRY_ERR_CORRUPT: ferry_status = -202;
/// Some requests failed and others did not; ferry_transfer_results says which.
pub const FERRY_ERR_PARTIAL: ferry_status = -203;

/// Nothing answers at the address. -3xx: the peer, or every path to it.
pub const FERRY_ERR_UNREACHABLE: ferry_status = -300;
/// The peer was reached and then lost.
pub const FERRY_ERR_PEER_LOST: ferry_status = -301;
/// The peer refused: authentication, or its limits.
pub const FERRY_ERR_REFUSED: ferry_status = -302;
/// The other side speaks another version of the wire format, or of descriptors.
pub const FERRY_ERR_VERSION: ferry_status = -303;
/// What answers is not a ferry engine.
pub const FERRY_ERR_NOT_FERRY: ferry_status = -304;

/// No memory. -4xx: this engine or machine.
pub const FERRY_ERR_NO_MEMORY: ferry_status = -400;
/// The operating system refused; ferry_error.os_error is the errno.
pub const FERRY_ERR_SYSTEM: ferry_status = -401;
/// A library, device or transport that is needed is not there.
pub const FERRY_ERR_UNAVAILABLE: ferry_status = -402;
/// A bug in ferry, caught at its border; the message says where.
pub const FERRY_ERR_PANIC: ferry_status = -403;

/// Version of the library that this header belongs to: the first number.
pub const FERRY_VERSION_MAJOR: u32 = 0;
/// Its second number.
pub const FERRY_VERSION_MINOR: u32 = 1;
/// And its third.
pub const FERRY_VERSION_PATCH: u32 = 0;
/// Rises when a program must be compiled anew; the number in the SONAME libferry.so.N.
pub const FERRY_ABI_MAJOR: u32 = 0;

/// The name of a status as its constant spells it, without FERRY_ and FERRY_ERR_: "OK", "INVALID".
/// "UNKNOWN" for any other number. The text is static. Never fails; any thread.
#[no_mangle]
pub extern "C" fn ferry_status_name(status: ferry_status) -> *const c_char {
    let name = match Status::from_number(status) {
        Some(status) => c_name(status),
        None => c"UNKNOWN",
    };
    name.as_ptr()
}

/// The version of the library that is loaded, as "0.1.0". The text is static. Never fails; any thread.
#[no_mangle]
pub extern "C" fn ferry_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// `Status::name` for C, which wants a terminating zero.
fn c_name(status: Status) -> &'static std::ffi::CStr {
    match status {
        Status::Ok => c"OK",
        Status::Pending => c"PENDING",
        Status::Draining => c"DRAINING",
        Status::Invalid => c"INVALID",
        Status::NotRegistered => c"NOT_REGISTERED",
        Status::Overlap => c"OVERLAP",
        Status::Access => c"ACCESS",
        Status::Stale => c"STALE",
        Status::Busy => c"BUSY",
        Status::Limit => c"LIMIT",
        Status::Unsupported => c"UNSUPPORTED",
        Status::Closed => c"CLOSED",
        Status::Timeout => c"TIMEOUT",
        Status::Cancelled => c"CANCELLED",
        Status::Corrupt => c"CORRUPT",
        Status::Partial => c"PARTIAL",
        Status::Unreachable => c"UNREACHABLE",
        Status::PeerLost => c"PEER_LOST",
        Status::Refused => c"REFUSED",
        Status::Version => c"VERSION",
        Status::NotFerry => c"NOT_FERRY",
        Status::NoMemory => c"NO_MEMORY",
        Status::System => c"SYSTEM",
        Status::Unavailable => c"UNAVAILABLE",
        Status::Panic => c"PANIC",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The constants above, by name, out of this very file.
    fn constants() -> Vec<(String, i32)> {
        let source = include_str!("status.rs");
        let lines = source.lines().filter_map(|line| line.strip_prefix("pub const FERRY_"));
        let parts = lines.filter_map(|line| line.split_once(": ferry_status = "));
        let name = |name: &str| name.strip_prefix("ERR_").unwrap_or(name).to_owned();
        parts.map(|(n, value)| (name(n), value.trim_end_matches(';').parse().unwrap())).collect()
    }

    #[test]
    fn every_status_of_the_engine_has_its_constant_and_no_other_exists() {
        let known: Vec<_> = Status::ALL.iter().map(|s| (s.name().to_owned(), *s as i32)).collect();
        assert_eq!(constants(), known);
        for status in Status::ALL {
            assert_eq!(c_name(*status).to_str().unwrap(), status.name());
        }
    }

    #[test]
    fn the_version_constants_are_the_package_s() {
        let text = format!("{FERRY_VERSION_MAJOR}.{FERRY_VERSION_MINOR}.{FERRY_VERSION_PATCH}");
        assert_eq!(text, env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn the_soname_carries_the_abi_s_major() {
        let soname = format!("-soname,libferry.so.{FERRY_ABI_MAJOR}\"");
        assert!(include_str!("../build.rs").contains(&soname), "{soname}");
    }
}
