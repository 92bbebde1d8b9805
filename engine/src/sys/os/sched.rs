//! Scheduler hints for a thread: the length of its time slices and the precision of its sleeps. They need no
//! privilege.

use std::mem::size_of;

/// Longer than any turn of a lane, and than the few milliseconds of the default.
const SLICE_NS: u64 = 20_000_000;
const THIS_THREAD: libc::pid_t = 0;

/// `struct sched_attr` of the kernel, in its first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Gives the calling thread long time slices. Its share of the CPU stays the same, but a thread that wakes up with the
/// default slice runs first instead of waiting for this thread's slice to end. Kernels before 6.12 ignore the hint,
/// and a sandbox may refuse it. Neither does harm.
pub fn take_long_slices() {
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: fills `attr`, whose size is given.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attr, size, 0u32) };
    // Another policy was chosen on purpose, and has no such slices.
    if known != 0 || attr.policy != libc::SCHED_OTHER as u32 {
        return;
    }
    (attr.size, attr.runtime_ns) = (size, SLICE_NS);
    // SAFETY: reads `attr`, which says its own size. The policy and the nice value are those it had.
    unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attr, 0u32) };
}

/// Makes sleeps of the calling thread end in time, rather than up to 50 us late.
pub fn sleep_exactly() {
    // SAFETY: no memory is involved. It can't fail with a slack of 1 ns.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_and_nice_stay_as_they_were() {
        // SAFETY: no memory is involved.
        let look = || unsafe {
            (libc::sched_getscheduler(THIS_THREAD), libc::getpriority(libc::PRIO_PROCESS, THIS_THREAD as u32))
        };
        let before = look();
        take_long_slices();
        take_long_slices();
        assert_eq!(look(), before);
    }
}
