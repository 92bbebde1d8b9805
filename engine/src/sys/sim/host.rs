//! The simulated side of `sys::host`. All processes of a simulated host share its namespaces.

use crate::sys::fd::BorrowedFd;
use ferry_sim_kernel::process;

pub use crate::sys::process::Process;

/// The namespaces of every host.
const NAMESPACE: u64 = 1;

impl Process {
    pub fn own() -> Option<Process> {
        let own = process::current();
        let (pids, times, pid) = (NAMESPACE, NAMESPACE, own.pid());
        Some(Process { boot: own.host().boot(), pids, times, pid, started: own.started_ns() })
    }
}

pub fn has_ended(pid: u32, started_then: u64) -> bool {
    if i32::try_from(pid).map_or(true, |pid| pid <= 0) {
        return false;
    }
    process::with_pid(pid).is_none_or(|known| !known.is_alive() || known.started_ns() != started_then)
}

/// No simulated process is dumped.
pub fn is_being_dumped(_process: BorrowedFd<'_>) -> bool {
    false
}

pub fn has_more_rights_than_its_caller() -> bool {
    false
}

pub fn effective_user() -> u32 {
    process::current().user()
}

pub fn boot_id() -> Option<[u8; 16]> {
    Some(process::current().host().boot())
}

pub fn pid() -> i32 {
    process::current().pid() as i32
}

pub fn pid_namespace() -> u64 {
    NAMESPACE
}

pub fn machine_id() -> Vec<u8> {
    process::current().host().number().to_le_bytes().to_vec()
}

pub fn ptrace_scope() -> String {
    String::new()
}

pub fn descriptors_max() -> usize {
    usize::MAX
}
