//! Names of the numbers of ferry_kv.h.

use super::directory::*;
use super::events::*;
use super::state::*;
use crate::names::{name_in, Names};
use std::ffi::c_char;

const EVENTS: Names = &[
    (FERRY_KV_EVENT_LAYERS, c"LAYERS"),
    (FERRY_KV_EVENT_SENT, c"SENT"),
    (FERRY_KV_EVENT_RECEIVED, c"RECEIVED"),
    (FERRY_KV_EVENT_FAILED, c"FAILED"),
    (FERRY_KV_EVENT_CANCELLED, c"CANCELLED"),
    (FERRY_KV_EVENT_EXPIRED, c"EXPIRED"),
    (FERRY_KV_EVENT_PEER_LOST, c"PEER_LOST"),
];

const STATES: Names = &[
    (FERRY_KV_STATE_UNKNOWN, c"UNKNOWN"),
    (FERRY_KV_STATE_OFFERED, c"OFFERED"),
    (FERRY_KV_STATE_TAKING, c"TAKING"),
    (FERRY_KV_STATE_ENDING, c"ENDING"),
    (FERRY_KV_STATE_ENDED, c"ENDED"),
];

const CHANGES: Names = &[
    (FERRY_DIRECTORY_ADDED, c"ADDED"),
    (FERRY_DIRECTORY_CHANGED, c"CHANGED"),
    (FERRY_DIRECTORY_REMOVED, c"REMOVED"),
    (FERRY_DIRECTORY_LIST_ANEW, c"LIST_ANEW"),
];

/// Returns the name of a kind of event: its constant without FERRY_KV_EVENT_, for example "RECEIVED". Returns "UNKNOWN"
/// for any other number, as all functions here do. The text is static. Never fails; any thread.
#[no_mangle]
pub extern "C" fn ferry_kv_event_name(kind: u32) -> *const c_char {
    name_in(EVENTS, kind)
}

/// Returns the name of a FERRY_KV_STATE_*, for example "OFFERED".
#[no_mangle]
pub extern "C" fn ferry_kv_state_name(kind: u32) -> *const c_char {
    name_in(STATES, kind)
}

/// Returns the name of a directory's change, for example "ADDED".
#[no_mangle]
pub extern "C" fn ferry_directory_change_name(kind: u32) -> *const c_char {
    name_in(CHANGES, kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::tests::check;

    #[test]
    fn every_constant_has_its_name() {
        check(EVENTS, include_str!("events.rs"), "FERRY_KV_EVENT_");
        check(STATES, include_str!("state.rs"), "FERRY_KV_STATE_");
        check(CHANGES, include_str!("directory.rs"), "FERRY_DIRECTORY_");
    }
}
