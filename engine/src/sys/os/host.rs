//! The kernel's data about this host and its processes. They are enough to prove that a process that another engine
//! remembers has ended. `session::handshake` carries them to peers; the control loop checks them.

use super::unix;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

pub use crate::sys::process::Process;

impl Process {
    /// Returns this process, or None if the kernel does not give all data or /proc is of another pid namespace.
    pub fn own() -> Option<Process> {
        let pid = std::process::id();
        // A single number means that /proc belongs to our own pid namespace, not to an outer one.
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        if numbers.trim().parse() != Ok(pid) {
            return None;
        }
        Some(Process {
            boot: boot_id()?,
            pids: fs::metadata("/proc/self/ns/pid").ok()?.ino(),
            times: fs::metadata("/proc/self/ns/time").map_or(0, |namespace| namespace.ino()),
            pid,
            started: started("self")?,
        })
    }
}

/// Returns the pid of this process, in its own pid namespace.
pub fn pid() -> i32 {
    std::process::id() as i32
}

/// Returns the pid namespace of this process, or 0 if that is unknown.
pub fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// True if the process with this pid and start time is known to have ended, with all its threads and its memory. False
/// if unknown.
pub fn has_ended(pid: u32, started_then: u64) -> bool {
    let Some(number) = i32::try_from(pid).ok().filter(|number| *number > 0) else { return false };
    // A pidfd, because /proc may be mounted to hide other users' processes.
    let process = match unix::pidfd_of(number) {
        Ok(process) => process,
        Err(error) => return error.raw_os_error() == Some(libc::ESRCH),
    };
    match started(&pid.to_string()) {
        // The number belongs to another process by now.
        Some(now) if now != started_then => true,
        // The pidfd is readable once the last thread is gone, even before the parent has waited.
        Some(_) => unix::has_exited(&process),
        None => false,
    }
}

/// True if the kernel dumps the memory of this process, and each of its threads has left its last system call: none
/// touches memory again, though the process ends only after the dump. False if that is unknown. Waits for no process.
pub fn is_being_dumped(process: BorrowedFd<'_>) -> bool {
    // The kernel sets one of these flags when a thread goes from a system call to its death, never inside of one.
    const PF_EXITING: u64 = 0x4;
    const PF_SIGNALED: u64 = 0x400;
    // The pid as this /proc counts it.
    let pid = || {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
        line(&info, "Pid:").filter(|pid| *pid > 0)
    };
    let Some(found) = pid() else { return false };
    let status = |name| line(&fs::read_to_string(format!("/proc/{found}/status")).ok()?, name);
    // From here on no thread is started. So the list below has all of them if it has as many as there are.
    if status("CoreDumping:") != Some(1) {
        return false;
    }
    let (Some(threads), Ok(list)) = (status("Threads:"), fs::read_dir(format!("/proc/{found}/task"))) else {
        return false;
    };
    let is_over = |thread: fs::DirEntry| {
        let flags = fs::read_to_string(thread.path().join("stat")).ok().and_then(|stat| field(&stat, 9));
        flags.is_some_and(|flags| flags & (PF_EXITING | PF_SIGNALED) != 0)
    };
    let mut seen = 0;
    for thread in list.flatten() {
        if !is_over(thread) {
            return false;
        }
        seen += 1;
    }
    // The pid belonged to this process all the time.
    seen == threads && pid() == Some(found)
}

/// Returns the number after a name at the beginning of a line.
fn line(text: &str, name: &str) -> Option<i64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// True if this process has rights that its caller may lack: set-user-id, set-group-id, or capabilities of the file.
/// Its environment can't be trusted then.
pub fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: getauxval takes a number and looks it up in what the kernel gave this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the effective user of this process.
pub fn effective_user() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns how many descriptors this process may have (`ulimit -n`).
pub fn descriptors_max() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives on this stack for the duration of the call, which fails only for an unknown limit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Returns the kernel's id of this boot.
pub fn boot_id() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(number.to_be_bytes())
}

/// Returns the id that was given to this machine when it was set up; nothing if it has none.
pub fn machine_id() -> Vec<u8> {
    fs::read("/etc/machine-id").unwrap_or_default()
}

/// Returns Yama's rule for who may trace this process; an empty text if the kernel has no Yama.
pub fn ptrace_scope() -> String {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    scope.trim().to_owned()
}

fn started(pid: &str) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, 22)
}

/// Returns a field of /proc/PID/stat, from 3 on. Field 2, in parentheses, may contain anything, so the search starts
/// after it.
fn field(stat: &str, number: usize) -> Option<u64> {
    let behind_name = &stat[stat.rfind(')')? + 1..];
    behind_name.split_whitespace().nth(number - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_that_lives_has_not_ended_and_its_number_at_another_time_has() {
        let own = Process::own().unwrap();
        assert!(own.counts_like(&own) && own.pid == std::process::id() && own.boot != [0; 16]);
        assert!(!has_ended(own.pid, own.started));
        assert!(has_ended(own.pid, own.started - 1));
        // Numbers without a process prove nothing.
        for nobody in [0, 1 << 31, u32::MAX] {
            assert!(!has_ended(nobody, own.started), "{nobody}");
        }
        for other in [
            Process { boot: [7; 16], ..own },
            Process { pids: own.pids + 1, ..own },
            Process { times: own.times + 1, ..own },
        ] {
            assert!(!own.counts_like(&other));
        }
    }

    #[test]
    fn a_process_has_ended_when_it_is_killed_and_stays_so_when_it_is_waited_for() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let (pid, since) = (child.id(), started(&child.id().to_string()).unwrap());
        assert!(!has_ended(pid, since));
        let pidfd = unix::pidfd_of(pid as i32).unwrap();
        child.kill().unwrap();
        while !unix::has_exited(&pidfd) {
            std::thread::yield_now();
        }
        assert!(has_ended(pid, since), "not yet waited for");
        child.wait().unwrap();
        assert!(has_ended(pid, since));
    }
}
