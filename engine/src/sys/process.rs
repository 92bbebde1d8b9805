//! The identity of a process among all processes of all boots. `host` reads it.

/// A process, with the namespaces that its pid and start time belong to. The inode of a namespace is reused only after
/// the namespace and all its processes are gone. Equal inodes therefore mean either the same namespace, or that the
/// other process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The boot id, drawn by the kernel at boot.
    pub boot: [u8; 16],
    /// The inode of the pid namespace.
    pub pids: u64,
    /// The inode of the time namespace, which shifts start times; 0 if the kernel has none.
    pub times: u64,
    pub pid: u32,
    /// In clock ticks since boot. Together with the pid this identifies the process.
    pub started: u64,
}

impl Process {
    /// True if pids and start times of the other process have the same meaning here.
    pub fn counts_like(&self, other: &Process) -> bool {
        (self.boot, self.pids, self.times) == (other.boot, other.pids, other.times)
    }
}
