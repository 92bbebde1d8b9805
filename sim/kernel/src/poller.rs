//! Level-triggered pollers: tasks wait until a descriptor is ready, and every wait reports readiness while it lasts.
//! When a file changes, `changed` wakes the tasks that wait for the file; a woken task collects the readiness itself.

use crate::clock;
use crate::fd::{errno, AsFd, FileId, Kind, OwnedFd};
use crate::wait::{block_until, ticket, Ticket};
use crate::world::{point, with, World};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// The most readiness that one wait returns.
pub const READY_MAX: usize = 256;

/// The events that a registration wants to hear of. Errors and hang-ups are told in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

/// The readiness of one registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
    /// An error or a hang-up, or, with read interest, the peer's end of the stream.
    pub hangup: bool,
    /// The peer's end of the stream alone.
    pub(crate) end: bool,
}

impl Ready {
    /// Returns what a registration with this interest hears, if anything.
    fn heard(self, token: u64, interest: Interest) -> Option<Ready> {
        let ready = Ready {
            token,
            readable: self.readable && interest.read,
            writable: self.writable && interest.write,
            hangup: self.hangup || self.end && interest.read,
            end: false,
        };
        (ready.readable || ready.writable || ready.hangup).then_some(ready)
    }
}

struct Registration {
    number: RawFd,
    file: FileId,
    token: u64,
    interest: Interest,
}

/// The state of a poller's file.
#[derive(Default)]
pub(crate) struct Watch {
    registrations: Vec<Registration>,
    waiting: Vec<Ticket>,
    woken: bool,
}

impl World {
    fn watch(&mut self, id: FileId) -> io::Result<&mut Watch> {
        match &mut self.file(id).kind {
            Kind::Poller(watch) => Ok(watch),
            _ => errno(libc::EINVAL),
        }
    }

    /// Wakes the tasks that wait for something that the file now has.
    pub(crate) fn changed(&mut self, id: FileId) {
        if self.file(id).watchers.is_empty() {
            return;
        }
        let ready = self.readiness(id);
        for nth in 0..self.file(id).watchers.len() {
            let watcher = self.file(id).watchers[nth];
            let Kind::Poller(watch) = self.kind(watcher) else { continue };
            let mut own = watch.registrations.iter().filter(|it| it.file == id);
            if own.any(|it| ready.heard(0, it.interest).is_some()) {
                self.wake_poller(watcher);
            }
        }
    }

    fn wake_poller(&mut self, id: FileId) {
        let Kind::Poller(watch) = &mut self.file(id).kind else { return };
        for ticket in std::mem::take(&mut watch.waiting) {
            self.wake(ticket);
        }
    }

    pub(crate) fn forget_registrations(&mut self, watcher: FileId, file: FileId) {
        if let Kind::Poller(watch) = &mut self.file(watcher).kind {
            watch.registrations.retain(|it| it.file != file);
        }
    }

    pub(crate) fn close_poller(&mut self, id: FileId, watch: Watch) {
        for registration in watch.registrations {
            self.file(registration.file).watchers.retain(|watcher| *watcher != id);
        }
    }

    fn register(
        &mut self,
        poller: FileId,
        number: RawFd,
        file: FileId,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        if matches!(self.kind(file), Kind::Poller(_)) {
            return errno(libc::EINVAL);
        }
        let watch = self.watch(poller)?;
        if watch.registrations.iter().any(|it| it.number == number && it.file == file) {
            return errno(libc::EEXIST);
        }
        watch.registrations.push(Registration { number, file, token, interest });
        self.file(file).watchers.push(poller);
        self.changed(file);
        Ok(())
    }

    /// Adds what is ready to `out`. Returns true if the poller was woken. The seed decides where the collection begins.
    fn collect(&mut self, id: FileId, out: &mut Vec<Ready>) -> io::Result<bool> {
        let count = self.watch(id)?.registrations.len();
        let start = if count > 1 { self.rng.index(count) } else { 0 };
        let Kind::Poller(watch) = self.kind(id) else { return errno(libc::EINVAL) };
        for nth in 0..count {
            let registration = &watch.registrations[(start + nth) % count];
            let ready = self.readiness(registration.file);
            out.extend(ready.heard(registration.token, registration.interest));
            if out.len() == READY_MAX {
                break;
            }
        }
        Ok(std::mem::take(&mut self.watch(id)?.woken))
    }
}

/// Waits for descriptors of its process. As an epoll with its eventfd, it takes two numbers of the process.
#[derive(Debug)]
pub struct Poller {
    fd: OwnedFd,
    _doorbell: OwnedFd,
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        point();
        with(|world| {
            let here = world.here();
            world.check_room(here, 2)?;
            let [fd, doorbell] = [Kind::Poller(Watch::default()), Kind::Event(crate::eventfd::Counter(0))]
                .map(|kind| {
                    let id = world.add_file(kind);
                    world.install(here, id)
                });
            Ok(Poller { fd, _doorbell: doorbell })
        })
    }

    fn call<R>(&self, act: impl FnOnce(&mut World, FileId) -> io::Result<R>) -> io::Result<R> {
        point();
        with(|world| {
            let id = self.fd.as_fd().file(world)?;
            act(world, id)
        })
    }

    /// Registers a descriptor, also for a wait in progress. EEXIST if it is registered.
    pub fn add(&self, number: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.call(|world, id| {
            let file = world.find(self.fd.process(), number)?;
            world.register(id, number, file, token, interest)
        })
    }

    /// Replaces token and interest of a descriptor, also for a wait in progress. ENOENT if it is not registered.
    pub fn set(&self, number: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.call(|world, id| {
            let file = world.find(self.fd.process(), number)?;
            let mut all = world.watch(id)?.registrations.iter_mut();
            let Some(found) = all.find(|it| it.number == number && it.file == file) else {
                return errno(libc::ENOENT);
            };
            (found.token, found.interest) = (token, interest);
            world.changed(file);
            Ok(())
        })
    }

    /// Forgets a descriptor. A closed one is forgotten already.
    pub fn remove(&self, number: RawFd) {
        let _ = self.call(|world, id| {
            let file = world.find(self.fd.process(), number)?;
            let registrations = &mut world.watch(id)?.registrations;
            let before = registrations.len();
            registrations.retain(|it| it.number != number || it.file != file);
            if registrations.len() < before {
                let watchers = &mut world.file(file).watchers;
                watchers.iter().position(|it| *it == id).map(|at| watchers.swap_remove(at));
            }
            Ok(())
        });
    }

    /// Replaces the contents of `out` with what is ready. Waits until something is, or `wake` was called, or the time
    /// is over. `None` waits without limit.
    pub fn wait(&self, out: &mut Vec<Ready>, timeout_ns: Option<u64>) -> io::Result<()> {
        let id = self.call(|_, id| Ok(id))?;
        wait(id, out, timeout_ns)
    }

    /// Makes the wait in progress return, or else the next one.
    pub fn wake(&self) {
        let _ = self.call(|world, id| {
            world.watch(id)?.woken = true;
            world.wake_poller(id);
            Ok(())
        });
    }
}

fn wait(id: FileId, out: &mut Vec<Ready>, timeout_ns: Option<u64>) -> io::Result<()> {
    let deadline = timeout_ns.map(|ns| clock::deadline(Duration::from_nanos(ns)));
    let mut over = timeout_ns == Some(0);
    loop {
        out.clear();
        let woken =
            with(|world| if world.is_open(id) { world.collect(id, out) } else { errno(libc::EBADF) })?;
        if woken || over || !out.is_empty() {
            return Ok(());
        }
        let own = ticket();
        with(|world| world.watch(id).map(|watch| watch.waiting.push(own)))?;
        over = !block_until("readiness", deadline);
        if over {
            let _ = with(|world| {
                if world.is_open(id) {
                    world.watch(id).map(|watch| watch.waiting.retain(|ticket| *ticket != own))
                } else {
                    Ok(())
                }
            });
        }
    }
}

/// Waits until one of these descriptors of the running task's process is ready, or the time is over. Returns what is
/// ready, with places in the list as tokens.
pub fn poll(polled: &[(RawFd, Interest)], timeout_ns: Option<u64>) -> io::Result<Vec<Ready>> {
    point();
    let id = with(|world| {
        let id = world.add_file(Kind::Poller(Watch::default()));
        for (place, (number, interest)) in polled.iter().enumerate() {
            // A number that is not open is not waited for; two places may name one file.
            if let Ok(file) = world.find(world.here(), *number) {
                world.register(id, place as RawFd, file, place as u64, *interest)?;
            }
        }
        Ok::<FileId, io::Error>(id)
    })?;
    let mut out = Vec::new();
    let result = wait(id, &mut out, timeout_ns);
    with(|world| world.release(id));
    result.map(|()| out)
}
