//! What the kernel says of this host and its processes: enough to tell, of a process that an engine elsewhere
//! remembers, that it has ended. `session::handshake` carries it to the peers, the control loop asks by it.

use super::unix;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A process, and what its number and its time of start are counted in. The inode of a namespace may come again
/// when the namespace is gone, and then every process in it is gone too: so equal ones mean that the other one's
/// numbers are ours, or that it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Drawn by the kernel at boot.
    pub boot: [u8; 16],
    /// The pid namespace.
    pub pids: u64,
    /// The time namespace, which shifts times of start; 0 where the kernel has none.
    pub times: u64,
    pub pid: u32,
    /// In clock ticks since boot: with the number, which process this is.
    pub started: u64,
}

impl Process {
    /// This process; None where the kernel does not say all of it, or /proc counts otherwise than this process.
    pub fn own() -> Option<Process> {
        let pid = std::process::id();
        // One number: /proc is that of our own pid namespace and not of one around it.
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

    /// Whether the other one's number and time of start say here what they say there.
    pub fn counts_like(&self, other: &Process) -> bool {
        (self.boot, self.pids, self.times) == (other.boot, other.pids, other.times)
    }
}

/// Whether the process that had this number and time of start is known to have ended, all its threads and its
/// memory with it. False where that cannot be told.
pub fn has_ended(pid: u32, started_then: u64) -> bool {
    let Some(number) = i32::try_from(pid).ok().filter(|number| *number > 0) else { return false };
    // By a pidfd and not by /proc, which may be told to hide the processes of others.
    let process = match unix::pidfd_of(number) {
        Ok(process) => process,
        Err(error) => return error.raw_os_error() == Some(libc::ESRCH),
    };
    match started(&pid.to_string()) {
        // The number is another's.
        Some(now) if now != started_then => true,
        // Readable when the last thread is gone, also before the parent has asked.
        Some(_) => unix::has_exited(&process),
        None => false,
    }
}

/// Whether this process runs with rights that whoever started it may not have: set-user-id, set-group-id, or
/// capabilities of the file. What its environment says is then not to be relied on.
pub fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: getauxval takes a number and looks it up in what the kernel gave this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The user by whose rights this process acts.
pub fn effective_user() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The kernel's number for this boot.
pub fn boot_id() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(number.to_be_bytes())
}

/// Field 22 of /proc/PID/stat. The second one, in parentheses, may hold anything.
fn started(pid: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let behind_name = &stat[stat.rfind(')')? + 1..];
    behind_name.split_whitespace().nth(22 - 3)?.parse().ok()
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
        // Numbers that no process has say nothing.
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
