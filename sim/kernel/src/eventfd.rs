//! Eventfds, and descriptors of processes: what a poller watches besides sockets.

use crate::fd::{call, errno, AsFd, BorrowedFd, Kind, OwnedFd};
use crate::process::ProcessId;
use crate::world::{point, with, World};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

pub(crate) struct Counter(pub u64);

/// A counter that a task raises and a poller sees as readable.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    pub fn new() -> io::Result<EventFd> {
        point();
        with(|world| world.open(world.here(), Kind::Event(Counter(0)))).map(EventFd)
    }

    /// Makes the descriptor readable.
    pub fn raise(&self) {
        self.update(|counter| counter.0 = counter.0.saturating_add(1));
    }

    /// Makes the descriptor unreadable again.
    pub fn clear(&self) {
        self.update(|counter| counter.0 = 0);
    }

    fn update(&self, act: impl FnOnce(&mut Counter)) {
        point();
        with(|world| {
            let Ok(id) = self.0.as_fd().file(world) else { return };
            if let Kind::Event(counter) = &mut world.file(id).kind {
                act(counter);
                world.changed(id);
            }
        });
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl World {
    pub(crate) fn open_process(&mut self, of: ProcessId) -> io::Result<OwnedFd> {
        self.open(self.here(), Kind::Process(of))
    }
}

/// Returns a descriptor that becomes readable when the process of this host with this pid ends. ESRCH if there is none.
pub fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    point();
    with(|world| {
        let host = world.processes[world.here().0 as usize].host;
        let all = world.processes.iter().position(|it| it.alive && it.host == host && it.pid as i32 == pid);
        match all {
            Some(at) => world.open_process(ProcessId(at as u32)),
            None => errno(libc::ESRCH),
        }
    })
}

/// True if the process of a pidfd has ended.
pub fn has_exited(process: &OwnedFd) -> bool {
    point();
    with(|world| match process.as_fd().file(world).map(|id| world.kind(id)) {
        Ok(Kind::Process(id)) => !world.processes[id.0 as usize].alive,
        _ => false,
    })
}

/// Duplicates a descriptor of the process of a pidfd, by its number there. ESRCH if the process has ended.
pub fn descriptor_of(process: BorrowedFd<'_>, number: RawFd) -> io::Result<OwnedFd> {
    call(process.as_raw_fd(), |world, id| {
        let Kind::Process(of) = *world.kind(id) else { return errno(libc::EBADF) };
        if !world.process(of).alive {
            return errno(libc::ESRCH);
        }
        let file = world.find(of, number)?;
        let here = world.here();
        world.check_room(here, 1)?;
        world.hold(file);
        Ok(world.install(here, file))
    })
}
