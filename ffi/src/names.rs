//! Names of the numbers of ferry.h. A test compares each list with the constants in the sources.

use crate::events::*;
use crate::memory::*;
use crate::peer_info::*;
use crate::results::*;
use std::ffi::{c_char, CStr};

/// The numbers of one kind, with the names of their constants.
pub(crate) type Names = &'static [(u32, &'static CStr)];

/// Returns the name of a number, or "UNKNOWN".
pub(crate) fn name_in(names: Names, number: u32) -> *const c_char {
    names.iter().find(|(known, _)| *known == number).map_or(c"UNKNOWN", |(_, name)| name).as_ptr()
}

const EVENTS: Names = &[
    (FERRY_EVENT_TRANSFER, c"TRANSFER"),
    (FERRY_EVENT_NOTIFICATION, c"NOTIFICATION"),
    (FERRY_EVENT_PEER_UP, c"PEER_UP"),
    (FERRY_EVENT_PEER_LOST, c"PEER_LOST"),
    (FERRY_EVENT_LATE_APPLY, c"LATE_APPLY"),
    (FERRY_EVENT_PEER_CONNECTED, c"PEER_CONNECTED"),
    (FERRY_EVENT_PEER_DOWN, c"PEER_DOWN"),
];

const TRANSPORTS: Names = &[
    (FERRY_TRANSPORT_NONE, c"NONE"),
    (FERRY_TRANSPORT_TCP, c"TCP"),
    (FERRY_TRANSPORT_LOCAL, c"LOCAL"),
    (FERRY_TRANSPORT_RDMA, c"RDMA"),
    (FERRY_TRANSPORT_CUDA, c"CUDA"),
    (FERRY_TRANSPORT_ASCEND, c"ASCEND"),
];

const MEMORY_KINDS: Names = &[
    (FERRY_MEMORY_AUTO, c"AUTO"),
    (FERRY_MEMORY_HOST, c"HOST"),
    (FERRY_MEMORY_CUDA, c"CUDA"),
    (FERRY_MEMORY_ASCEND, c"ASCEND"),
    (FERRY_MEMORY_CUDA_MANAGED, c"CUDA_MANAGED"),
    (FERRY_MEMORY_CUDA_PINNED, c"CUDA_PINNED"),
    (FERRY_MEMORY_FILE, c"FILE"),
];

const PEER_STATES: Names = &[
    (FERRY_PEER_CONNECTING, c"CONNECTING"),
    (FERRY_PEER_UP, c"UP"),
    (FERRY_PEER_DOWN, c"DOWN"),
    (FERRY_PEER_LOST, c"LOST"),
];

const STATES: Names = &[
    (FERRY_STATE_DONE, c"DONE"),
    (FERRY_STATE_FAILED, c"FAILED"),
    (FERRY_STATE_CANCELLED, c"CANCELLED"),
    (FERRY_STATE_TIMED_OUT, c"TIMED_OUT"),
];

const FENCES: Names =
    &[(FERRY_FENCE_CONFIRMED, c"CONFIRMED"), (FERRY_FENCE_DEAD, c"DEAD"), (FERRY_FENCE_LEASE, c"LEASE")];

const NOTIFICATIONS: Names = &[
    (FERRY_NOTIFICATION_NONE, c"NONE"),
    (FERRY_NOTIFICATION_DELIVERED, c"DELIVERED"),
    (FERRY_NOTIFICATION_NOT_SENT, c"NOT_SENT"),
    (FERRY_NOTIFICATION_UNKNOWN, c"UNKNOWN"),
];

/// Returns the name of a kind of event: its constant without FERRY_EVENT_, for example "PEER_LOST". Returns "UNKNOWN"
/// for any other number, as all functions here do. The text is static. Never fails; any thread.
#[no_mangle]
pub extern "C" fn ferry_event_name(kind: u32) -> *const c_char {
    name_in(EVENTS, kind)
}

/// Returns the name of a FERRY_TRANSPORT_*, for example "TCP".
#[no_mangle]
pub extern "C" fn ferry_transport_name(transport: u32) -> *const c_char {
    name_in(TRANSPORTS, transport)
}

/// Returns the name of a FERRY_MEMORY_*, for example "CUDA".
#[no_mangle]
pub extern "C" fn ferry_memory_name(kind: u32) -> *const c_char {
    name_in(MEMORY_KINDS, kind)
}

/// Returns the name of a peer's state, a FERRY_PEER_*, for example "UP".
#[no_mangle]
pub extern "C" fn ferry_peer_state_name(state: u32) -> *const c_char {
    name_in(PEER_STATES, state)
}

/// Returns the name of a transfer's final state, a FERRY_STATE_*, for example "TIMED_OUT".
#[no_mangle]
pub extern "C" fn ferry_state_name(state: u32) -> *const c_char {
    name_in(STATES, state)
}

/// Returns the name of a FERRY_FENCE_*, for example "CONFIRMED".
#[no_mangle]
pub extern "C" fn ferry_fence_name(fence: u32) -> *const c_char {
    name_in(FENCES, fence)
}

/// Returns the name of the state of a transfer's notification, a FERRY_NOTIFICATION_*, for example "DELIVERED".
#[no_mangle]
pub extern "C" fn ferry_notification_name(notification: u32) -> *const c_char {
    name_in(NOTIFICATIONS, notification)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Compares a list with the constants of a source whose names begin with `prefix`: the same names, the same
    /// numbers, in the same order.
    pub(crate) fn check(names: Names, source: &str, prefix: &str) {
        let lines = source.lines().filter_map(|line| line.strip_prefix("pub const ")?.strip_prefix(prefix));
        let constants: Vec<(u32, String)> = lines
            .filter_map(|line| line.split_once(": u32 = "))
            .map(|(name, number)| (number.trim_end_matches(';').parse().unwrap(), name.to_owned()))
            .collect();
        let listed: Vec<_> =
            names.iter().map(|(number, name)| (*number, name.to_str().unwrap().to_owned())).collect();
        assert!(!constants.is_empty());
        assert_eq!(listed, constants, "{prefix}");
    }

    #[test]
    fn every_constant_has_its_name() {
        check(EVENTS, include_str!("events.rs"), "FERRY_EVENT_");
        check(TRANSPORTS, include_str!("peer_info.rs"), "FERRY_TRANSPORT_");
        check(MEMORY_KINDS, include_str!("memory.rs"), "FERRY_MEMORY_");
        check(PEER_STATES, include_str!("peer_info.rs"), "FERRY_PEER_");
        check(STATES, include_str!("results.rs"), "FERRY_STATE_");
        check(FENCES, include_str!("results.rs"), "FERRY_FENCE_");
        check(NOTIFICATIONS, include_str!("results.rs"), "FERRY_NOTIFICATION_");
    }
}
