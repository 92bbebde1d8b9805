//! The kernel's figures of this process: CPU time, memory, threads; and its descriptor limit.

use std::time::Duration;

/// Returns the CPU time of all threads so far, user and system.
pub fn cpu_time() -> Duration {
    // SAFETY: getrusage fills the struct that it is given; zeroes are a valid one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage
    };
    let part = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    part(usage.ru_utime) + part(usage.ru_stime)
}

/// Returns the CPU time of the calling thread.
pub fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills one timespec.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the CPU time that this process takes while the calling thread sleeps for `period`.
pub fn cpu_time_idle(period: Duration) -> Duration {
    let before = cpu_time();
    // A measurement, not a wait for anything.
    std::thread::sleep(period);
    cpu_time() - before
}

/// Returns a line of /proc/self/status as a number: VmRSS in KiB, Threads.
pub fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Raises the limit of open descriptors to its maximum, and returns the maximum.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls take one live rlimit.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    limit.rlim_cur
}
