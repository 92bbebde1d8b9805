//! The NUMA node of memory, and the limit of pinned memory.

use std::io;

/// Returns the NUMA node of the page at `address`, if the page is present and the kernel knows its node.
pub fn node_of(address: u64) -> Option<u32> {
    const MPOL_F_NODE: libc::c_ulong = 1;
    const MPOL_F_ADDR: libc::c_ulong = 2;
    let mut node: libc::c_int = -1;
    // SAFETY: `node` lives on this stack; the kernel checks the address and touches nothing there.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            std::ptr::null_mut::<libc::c_ulong>(),
            0 as libc::c_ulong,
            address as libc::c_ulong,
            MPOL_F_NODE | MPOL_F_ADDR,
        )
    };
    (result == 0).then(|| u32::try_from(node).ok()).flatten()
}

/// Returns the size of a page.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf takes an integer; this one is always known.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Returns how many bytes this process may pin (`ulimit -l`); None means no limit.
pub fn lock_limit() -> io::Result<Option<u64>> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives on this stack for the duration of the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_page_that_is_not_there_has_no_node() {
        assert_eq!(super::node_of(8), None);
        let here = 0u64;
        // Kernels without NUMA return nothing, others a small number.
        assert!(super::node_of(&raw const here as u64).is_none_or(|node| node < 4096));
    }
}
