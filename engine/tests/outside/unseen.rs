//! A page of a peer's process that never comes, and that this process looks at to learn whether the memory is the
//! peer's.

use crate::exec::{engine, start, wait_until, BOUND};
use ferry::types::Transport;
use ferry::RegionOptions;

/// The page that an engine has for its peers: alone between these addresses.
const ZONE: std::ops::Range<u64> = 0x4000_0000_0000..0x5000_0000_0000;

/// Takes the page of this process's engine away, so that whoever reads it waits for ever.
pub fn hide() -> Result<(), String> {
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ranges = maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-'));
    let mut ranges = ranges.map(|(from, to)| [from, to].map(|it| u64::from_str_radix(it, 16).unwrap()));
    let [from, to] = ranges.find(|range| ZONE.contains(&range[0])).ok_or("no page in the zone")?;
    // SAFETY: the structs are as large as the numbers of the calls say; the page is an engine's, which only other
    // processes read.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as libc::c_int;
        let mut api = [0xaa_u64, 0, 0];
        let mut register = [from, to - from, 1, 0];
        if fd < 0
            || libc::ioctl(fd, UFFDIO_API, api.as_mut_ptr()) != 0
            || libc::ioctl(fd, UFFDIO_REGISTER, register.as_mut_ptr()) != 0
            || libc::madvise(from as *mut _, (to - from) as usize, libc::MADV_DONTNEED) != 0
        {
            return Err(format!("userfaultfd: {}", std::io::Error::last_os_error()));
        }
    }
    Ok(())
}

#[test]
fn a_peer_whose_memory_cannot_be_looked_at_holds_up_nobody() {
    let auto = [("transports", "auto")];
    let (ours, other) = (engine(&auto), engine(&auto));
    let mut child = start();
    child.ask("open");
    let hidden = child.ask("hide");
    if hidden != "OK" {
        println!("SKIPPED a_peer_whose_memory_cannot_be_looked_at_holds_up_nobody: {hidden}");
        return;
    }
    child.ask(&format!("connect {}", ours.address()));
    let strange = ours.peers().unwrap()[0];
    let local = |engine: &ferry::Engine, peer| {
        let paths = engine.peer_paths(peer).unwrap();
        paths.into_iter().find(|path| path.transport == Transport::Local).unwrap()
    };
    let peer = other.connect(ours.address(), Some(BOUND / 6)).unwrap();
    assert!(local(&other, peer).chosen, "{:?}", local(&other, peer));
    let memory = other.alloc(4096, &RegionOptions::default()).unwrap();
    memory.free(Some(BOUND)).map_err(|(_, error)| error).unwrap();
    wait_until("its path stands without calls", || {
        local(&ours, strange).why.contains("did not come in time")
    });
    ours.close(Some(BOUND)).unwrap();
}
