//! The machine, and the costs of a run: CPU time of a process, one-thread memcpy, affinity.

use std::fmt;
use std::hint::black_box;
use std::io;

use serde::Serialize;

use crate::dispense::Dispenser;
use crate::memory::private;
use crate::walk::Walk;
use crate::workload::{CpuSeconds, Limit, Sample, Workload};

/// Returns the user and system time of this process, in seconds, including threads that have ended.
pub fn own_cpu_seconds() -> f64 {
    // Every process has this clock.
    clock_seconds(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// Returns the CPU time of a child that has not been waited for, in seconds.
pub fn child_cpu_seconds(pid: u32) -> io::Result<f64> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: writes one clock id, into `clock`.
    match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) } {
        0 => clock_seconds(clock),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Reads a CPU clock in nanoseconds; `/proc/PID/stat` counts hundredths of a second.
fn clock_seconds(clock: libc::clockid_t) -> io::Result<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, into `time`.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Copies the workload's blocks in their order with one thread of this process: the speed of the machine's memory, by
/// which figures of different machines can be compared.
pub fn memcpy(workload: &Workload, limit: Limit) -> io::Result<Sample> {
    let walk = Walk::new(*workload);
    let mut source = private(workload.walk_bytes)?;
    let target = private(workload.walk_bytes)?;
    walk.fill(walk.origin(), &mut source, 1);
    let cpu = own_cpu_seconds();
    let dispenser = Dispenser::new(limit);
    while let Some(number) = dispenser.take() {
        for (from, to) in walk.offsets(number) {
            // SAFETY: a validated workload's blocks lie within `walk_bytes` of both mappings, which are
            // distinct and which nothing else accesses now.
            unsafe {
                let (from, to) = (source.address().add(from), target.address().add(to));
                std::ptr::copy_nonoverlapping(from, to, workload.block_bytes);
            }
        }
        black_box(target.address());
    }
    let seconds = dispenser.start().elapsed().as_secs_f64();
    let transfers = dispenser.transfers();
    let bytes = transfers * workload.transfer_bytes() as u64;
    let cpu_seconds = CpuSeconds { initiator: own_cpu_seconds() - cpu, target: 0.0 };
    Ok(Sample { bytes, transfers, seconds, cpu_seconds })
}

/// Restricts threads to one CPU until dropped.
pub struct Pinned {
    /// Each thread by its id, with its former set of CPUs.
    before: Vec<(libc::pid_t, libc::cpu_set_t)>,
}

/// The calling thread, to the kernel.
const THIS_THREAD: libc::pid_t = 0;

impl Pinned {
    /// Pins the calling thread. The same thread must also drop this.
    pub fn to(cpu: usize) -> io::Result<Pinned> {
        let mut pinned = Pinned { before: Vec::with_capacity(1) };
        pinned.add(THIS_THREAD, cpu)?;
        Ok(pinned)
    }

    /// Pins every thread that this process has now.
    pub fn process_to(cpu: usize) -> io::Result<Pinned> {
        let mut pinned = Pinned { before: Vec::new() };
        for entry in std::fs::read_dir("/proc/self/task")? {
            let name = entry?.file_name();
            let thread =
                name.to_str().and_then(|name| name.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
            match pinned.add(thread, cpu) {
                // The thread has ended since it was listed.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                other => other?,
            }
        }
        Ok(pinned)
    }

    fn add(&mut self, thread: libc::pid_t, cpu: usize) -> io::Result<()> {
        let before = affinity(thread)?;
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: all zeroes is the empty set, and `cpu` is below its size.
        let only = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            set
        };
        set_affinity(thread, &only)?;
        self.before.push((thread, before));
        Ok(())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for (thread, before) in &self.before {
            // Refused only if the thread or those CPUs are gone.
            let _ = set_affinity(*thread, before);
        }
    }
}

fn affinity(thread: libc::pid_t) -> io::Result<libc::cpu_set_t> {
    // SAFETY: all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the size given is that of `set`, which the kernel fills.
    match unsafe { libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &mut set) } {
        0 => Ok(set),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_affinity(thread: libc::pid_t, set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the size given is that of `set`.
    match unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the CPUs on which this thread may run, in order.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = affinity(THIS_THREAD)?;
    // SAFETY: every number tested is below the set's size.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// Raises the limit of descriptors to its maximum: the usual 1,024 do not suffice for a thousand peers.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills one rlimit, ours.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads one rlimit, ours; every process may raise the soft limit to the hard one.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The machine of the figures.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cpu_model: String,
    pub cpus_allowed: usize,
    pub kernel: String,
    pub congestion_control_default: String,
    pub memory_gib: f64,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} CPUs, Linux {}", self.cpu_model, self.cpus_allowed, self.kernel)
    }
}

impl Machine {
    /// Unknown parts read "unknown": a missing `/proc` file is no reason not to measure.
    pub fn describe() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let or_unknown = |text: &str| match text.trim() {
            "" => "unknown".to_owned(),
            known => known.to_owned(),
        };
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, value)| value).trim().to_owned()
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let memory_kib: f64 = memory.trim_end_matches(" kB").parse().unwrap_or(0.0);
        Machine {
            cpu_model: or_unknown(&field(&read("/proc/cpuinfo"), "model name")),
            cpus_allowed: allowed_cpus().map_or(0, |cpus| cpus.len()),
            kernel: or_unknown(&read("/proc/sys/kernel/osrelease")),
            congestion_control_default: or_unknown(&read("/proc/sys/net/ipv4/tcp_congestion_control")),
            memory_gib: memory_kib / (1 << 20) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::layout::Layout;
    use crate::workload::Operation;

    #[test]
    fn cpu_time_grows_with_work_and_both_clocks_agree() {
        let before = own_cpu_seconds();
        let start = Instant::now();
        while start.elapsed().as_millis() < 50 {
            black_box(start.elapsed());
        }
        let spent = own_cpu_seconds() - before;
        assert!(spent > 0.005, "{spent}");
        let by_clock = child_cpu_seconds(std::process::id()).expect("own clock");
        assert!((by_clock - own_cpu_seconds()).abs() < 1.0);
    }

    #[test]
    fn memcpy_counts_what_it_copied() {
        let (operation, layout) = (Operation::Write, Layout::Scattered);
        let workload = Workload { operation, layout, block_bytes: 64, blocks: 8, walk_bytes: 4_096 };
        let sample = memcpy(&workload, Limit::Transfers(20)).expect("memory");
        assert_eq!((sample.transfers, sample.bytes), (20, 20 * 512));
    }

    #[test]
    fn a_pinned_thread_is_released() {
        let before = allowed_cpus().expect("affinity");
        let pinned = Pinned::to(before[0]).expect("an allowed CPU");
        assert_eq!(allowed_cpus().expect("affinity"), before[..1]);
        drop(pinned);
        assert_eq!(allowed_cpus().expect("affinity"), before);
    }

    #[test]
    fn a_cpu_that_cannot_be_is_refused() {
        assert!(Pinned::to(libc::CPU_SETSIZE as usize).is_err());
    }
}
