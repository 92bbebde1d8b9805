//! Status codes, their names, and the version of the library. The numbers are the engine's. They are repeated
//! here because they are part of the ABI; a test compares the two lists.

use engine::Status;
use std::ffi::c_char;

/// The outcome of a call. 0 means success. A positive number means that a transfer is not final yet. A
/// negative number is a failure; failures are grouped by the object that is harmed. The numbers are fixed and
/// never reused. A program should treat an unknown negative number like any failure of its group.
pub type ferry_status = i32;

/// Success.
pub const FERRY_OK: ferry_status = 0;
/// The transfer is not final yet.
pub const FERRY_PENDING: ferry_status = 1;
/// A failure, a cancel or the deadline has stopped the transfer. The transfer is not final yet, and its
/// memory is not yet the caller's.
pub const FERRY_DRAINING: ferry_status = 2;

/// An argument is wrong; the message names the argument. All of -1xx: the caller made a mistake, or the call
/// is not possible now. The call did nothing; FERRY_ERR_BUSY names the one exception.
pub const FERRY_ERR_INVALID: ferry_status = -100;
/// The memory is outside every registered region, or the region never existed.
pub const FERRY_ERR_NOT_REGISTERED: ferry_status = -101;
/// The memory overlaps a region that is registered.
pub const FERRY_ERR_OVERLAP: ferry_status = -102;
/// The region does not grant this operation.
pub const FERRY_ERR_ACCESS: ferry_status = -103;
/// The object of the handle is gone (unregistered, released, destroyed), or the handle belongs to another
/// engine or to an earlier incarnation of this engine.
pub const FERRY_ERR_STALE: ferry_status = -104;
/// The object is in use, an operation is still in progress, or a callback made the call. Try again later. The call
/// did nothing, unless its timeout has passed while it unregistered a region or closed a peer, an engine or a KV cache
/// (that object then stays closed for new work), or retracted tokens of an offer (they stay taken back, but no block is
/// free yet). A region is unchanged if the timeout was 0.
pub const FERRY_ERR_BUSY: ferry_status = -105;
/// A limit is reached: room in a queue or table, a size, the caller's buffer.
pub const FERRY_ERR_LIMIT: ferry_status = -106;
/// This version or build does not support the operation.
pub const FERRY_ERR_UNSUPPORTED: ferry_status = -107;
/// The engine is closed or closing, or this process inherited it by fork.
pub const FERRY_ERR_CLOSED: ferry_status = -108;

/// The deadline of a transfer, or the timeout of a call, has passed. All of -2xx: this transfer or call
/// failed.
pub const FERRY_ERR_TIMEOUT: ferry_status = -200;
/// The transfer was cancelled by request, or because an earlier ORDERED transfer failed.
pub const FERRY_ERR_CANCELLED: ferry_status = -201;
/// A checksum doesn't match.
pub const FERRY_ERR_CORRUPT: ferry_status = -202;
/// Some requests failed and others did not; ferry_transfer_results lists them.
pub const FERRY_ERR_PARTIAL: ferry_status = -203;

/// Nothing answers at the address. All of -3xx: the peer failed, or every path to the peer.
pub const FERRY_ERR_UNREACHABLE: ferry_status = -300;
/// The peer was reached before and is lost now.
pub const FERRY_ERR_PEER_LOST: ferry_status = -301;
/// The peer refused the session: authentication failed, or the peer is at a limit.
pub const FERRY_ERR_REFUSED: ferry_status = -302;
/// The other side uses another version of the wire format or of descriptors.
pub const FERRY_ERR_VERSION: ferry_status = -303;
/// The process that answers at the address is not a ferry engine.
pub const FERRY_ERR_NOT_FERRY: ferry_status = -304;

/// Memory is exhausted. All of -4xx: this engine or machine failed.
pub const FERRY_ERR_NO_MEMORY: ferry_status = -400;
/// The operating system refused; ferry_error.os_error is the errno.
pub const FERRY_ERR_SYSTEM: ferry_status = -401;
/// A required library, device or transport is missing.
pub const FERRY_ERR_UNAVAILABLE: ferry_status = -402;
/// ferry has a bug and caught a panic; the message says where.
pub const FERRY_ERR_PANIC: ferry_status = -403;

/// First number of the version of the library that this header belongs to.
pub const FERRY_VERSION_MAJOR: u32 = 0;
/// Second number of the version.
pub const FERRY_VERSION_MINOR: u32 = 1;
/// Third number of the version.
pub const FERRY_VERSION_PATCH: u32 = 0;
/// Major number of the ABI, also in the SONAME libferry.so.N. It rises when programs must be compiled again.
pub const FERRY_ABI_MAJOR: u32 = 0;

/// Returns the name of a status: its constant without FERRY_ and FERRY_ERR_, for example "OK" or "INVALID".
/// Returns "UNKNOWN" for any other number. The text is static. Never fails; any thread.
#[no_mangle]
pub extern "C" fn ferry_status_name(status: ferry_status) -> *const c_char {
    let name = match Status::from_number(status) {
        Some(status) => c_name(status),
        None => c"UNKNOWN",
    };
    name.as_ptr()
}

/// Returns the version of the loaded library, for example "0.1.0". The text is static. Never fails; any
/// thread.
#[no_mangle]
pub extern "C" fn ferry_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Returns `Status::name` with the terminating zero that C needs.
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

    /// Reads the constants above, by name, from this file.
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
