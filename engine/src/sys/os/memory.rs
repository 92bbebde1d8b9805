//! The NUMA node of memory, the limit of pinned memory, and how much memory is left.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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

/// How much memory this process can still take before the kernel kills processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub bytes: u64,
    /// The limit that bounds the memory.
    pub of: String,
}

/// Returns the least of what the machine and the process's control groups have left; None if the kernel does not say.
pub fn left() -> Option<Left> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let kib = numbered(&text, "MemAvailable:")?;
        Some(Left { bytes: kib * 1024, of: "the machine, MemAvailable".into() })
    });
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = groups.lines().filter_map(|line| left_of_groups(Path::new("/sys/fs/cgroup"), line));
    machine.into_iter().chain(groups).min_by_key(|left| left.bytes)
}

/// Returns the number after a name at the beginning of a line.
fn numbered(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The files of a control group: its limit, its use, and the line of `memory.stat` with the cache that can be dropped.
struct Files {
    limit: &'static str,
    used: &'static str,
    cache: &'static str,
}

const UNIFIED: Files = Files { limit: "memory.max", used: "memory.current", cache: "inactive_file " };
const LEGACY: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", cache: "total_inactive_file " };

/// Returns the least that the group of a line of /proc/self/cgroup and the groups above have left. In a container the
/// line may name a path of the host; the groups that are visible bound the memory then.
fn left_of_groups(mount: &Path, line: &str) -> Option<Left> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (root, files) = match controllers {
        "" if mount.join("cgroup.controllers").exists() => (mount.to_owned(), UNIFIED),
        "" => (mount.join("unified"), UNIFIED),
        _ if controllers.split(',').any(|name| name == "memory") => (mount.join("memory"), LEGACY),
        _ => return None,
    };
    let group: PathBuf = root.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(&root));
    groups.filter_map(|group| left_of_group(group, &files)).min_by_key(|left| left.bytes)
}

fn left_of_group(group: &Path, files: &Files) -> Option<Left> {
    let read = |name| fs::read_to_string(group.join(name)).ok();
    let number = |name| read(name)?.trim().parse::<u64>().ok();
    let (limit, used) = (number(files.limit)?, number(files.used)?);
    let cache = read("memory.stat").and_then(|text| numbered(&text, files.cache)).unwrap_or(0);
    let bytes = limit.saturating_sub(used.saturating_sub(cache));
    Some(Left { bytes, of: format!("the control group {}", group.display()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_is_left() {
        let left = left().unwrap();
        let all = fs::read_to_string("/proc/meminfo").unwrap();
        assert!(left.bytes > 0 && left.bytes < numbered(&all, "MemTotal:").unwrap() * 1024, "{left:?}");
        assert_eq!(numbered("a: 1 kB\nMemAvailable:     77 kB\n", "MemAvailable:"), Some(77));
        assert_eq!(numbered("a: 1 kB\n", "MemAvailable:"), None);
    }

    /// Makes the files of a group below a folder of the test's own.
    fn group(at: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(at).unwrap();
        for (name, text) in files {
            fs::write(at.join(name), text).unwrap();
        }
    }

    #[test]
    fn the_tightest_of_the_control_groups_counts() {
        let mount = std::env::temp_dir().join(format!("ferry-groups-{}", std::process::id()));
        let unified = [("memory.max", "max\n"), ("memory.current", "5\n")];
        group(&mount, &[("cgroup.controllers", "memory\n")]);
        group(&mount.join("a"), &[("memory.max", "1000\n"), ("memory.current", "900\n")]);
        group(&mount.join("a/b"), &unified);
        let left = |line| left_of_groups(&mount, line).map(|left| left.bytes);
        assert_eq!(left("0::/a/b"), Some(100), "the group above bounds it");
        group(&mount.join("a"), &[("memory.stat", "anon 7\ninactive_file 300\n")]);
        assert_eq!(left("0::/a/b"), Some(400), "cache is dropped first");
        assert_eq!(left("0::/elsewhere/c"), None, "nothing bounds it");
        assert_eq!(left("4:cpu,cpuacct:/a"), None);
        let legacy = [("memory.limit_in_bytes", "50\n"), ("memory.usage_in_bytes", "60\n")];
        group(&mount.join("memory"), &legacy);
        assert_eq!(left("9:memory:/a/path/of/the/host"), Some(0), "more is used than allowed");
        fs::remove_dir_all(&mount).unwrap();
    }

    #[test]
    fn a_page_that_is_not_there_has_no_node() {
        assert_eq!(node_of(8), None);
        let here = 0u64;
        // Kernels without NUMA return nothing, others a small number.
        assert!(node_of(&raw const here as u64).is_none_or(|node| node < 4096));
    }
}
