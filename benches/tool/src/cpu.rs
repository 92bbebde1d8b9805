//! The machine, and the costs of a run: CPU time of a process, affinity.

use std::fmt;
use std::io;

use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet, Pid};
use serde::Serialize;

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

/// Restricts threads to one CPU until dropped.
pub struct Pinned {
    /// Each thread, `None` the calling thread, with its former set of CPUs.
    before: Vec<(Option<Pid>, CpuSet)>,
}

impl Pinned {
    /// Pins the calling thread. The same thread must also drop this.
    pub fn to(cpu: usize) -> io::Result<Pinned> {
        let mut pinned = Pinned { before: Vec::with_capacity(1) };
        pinned.add(None, cpu)?;
        Ok(pinned)
    }

    /// Pins every thread that this process has now.
    pub fn process_to(cpu: usize) -> io::Result<Pinned> {
        let mut pinned = Pinned { before: Vec::new() };
        for entry in std::fs::read_dir("/proc/self/task")? {
            let name = entry?.file_name();
            let thread = name.to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
            match pinned.add(Some(thread.ok_or(io::ErrorKind::InvalidData)?), cpu) {
                // The thread has ended since it was listed.
                Err(Errno::SRCH) => {}
                other => other?,
            }
        }
        Ok(pinned)
    }

    fn add(&mut self, thread: Option<Pid>, cpu: usize) -> Result<(), Errno> {
        let before = sched_getaffinity(thread)?;
        if cpu >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL);
        }
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(thread, &only)?;
        self.before.push((thread, before));
        Ok(())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for (thread, before) in &self.before {
            // Refused only if the thread or those CPUs are gone.
            let _ = sched_setaffinity(*thread, before);
        }
    }
}

/// Returns the CPUs on which this thread may run, in order.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Raises the limit of descriptors to its maximum.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
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
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

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
    fn a_pinned_thread_is_released() {
        let before = allowed_cpus().expect("affinity");
        let pinned = Pinned::to(before[0]).expect("an allowed CPU");
        assert_eq!(allowed_cpus().expect("affinity"), before[..1]);
        drop(pinned);
        assert_eq!(allowed_cpus().expect("affinity"), before);
    }

    #[test]
    fn a_cpu_that_cannot_be_is_refused() {
        assert!(Pinned::to(CpuSet::MAX_CPU).is_err());
    }
}
