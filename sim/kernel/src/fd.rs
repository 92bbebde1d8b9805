//! Descriptors. A process has a table of numbers, the lowest free one is given next, and each number names a file:
//! a listener, a stream, a poller, an eventfd, a process, memory, what a NIC announces. A file lives until its
//! last descriptor is closed.

use crate::eventfd::Counter;
use crate::memory;
use crate::net::StreamEnd;
use crate::nic::{ChannelState, EventQueue};
use crate::poller::{Ready, Watch};
use crate::process::ProcessId;
use crate::unix::{Door, LocalEnd};
use crate::world::{is_running, point, try_with, with, World};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};

/// The numbers below belong to the standard streams.
const NUMBER_MIN: usize = 3;

/// Returns the error of a system call.
pub(crate) fn errno<T>(number: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(number))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    index: u32,
    generation: u32,
}

pub(crate) struct File {
    generation: u32,
    references: u32,
    /// The pollers that watch it, once for each registration.
    pub watchers: Vec<FileId>,
    pub kind: Kind,
}

pub(crate) enum Kind {
    Closed,
    Listener(crate::net::Queue),
    Stream(StreamEnd),
    Door(Door),
    Local(LocalEnd),
    Poller(Watch),
    Event(Counter),
    Process(ProcessId),
    /// Memory of the arena, by address and length.
    Memory(u64, usize),
    /// A completion channel of a NIC.
    Completions(ChannelState),
    DeviceEvents(EventQueue),
}

#[derive(Default)]
pub(crate) struct Files {
    files: Vec<File>,
    free: Vec<u32>,
}

impl World {
    pub(crate) fn file(&mut self, id: FileId) -> &mut File {
        &mut self.files.files[id.index as usize]
    }

    pub(crate) fn kind(&self, id: FileId) -> &Kind {
        &self.files.files[id.index as usize].kind
    }

    pub(crate) fn is_open(&self, id: FileId) -> bool {
        self.files.files[id.index as usize].generation == id.generation
    }

    /// Adds a file that one reference holds.
    pub(crate) fn add_file(&mut self, kind: Kind) -> FileId {
        let index = self.files.free.pop().unwrap_or(self.files.files.len() as u32);
        match self.files.files.get_mut(index as usize) {
            Some(file) => (file.references, file.kind) = (1, kind),
            None => self.files.files.push(File { generation: 0, references: 1, watchers: Vec::new(), kind }),
        }
        FileId { index, generation: self.files.files[index as usize].generation }
    }

    pub(crate) fn hold(&mut self, id: FileId) {
        self.file(id).references += 1;
    }

    /// Lets go of a reference; closes the file with the last one.
    pub(crate) fn release(&mut self, id: FileId) {
        self.file(id).references -= 1;
        if self.file(id).references > 0 {
            return;
        }
        let kind = std::mem::replace(&mut self.file(id).kind, Kind::Closed);
        for watcher in std::mem::take(&mut self.file(id).watchers) {
            self.forget_registrations(watcher, id);
        }
        self.file(id).generation += 1;
        self.files.free.push(id.index);
        match kind {
            Kind::Listener(queue) => self.close_listener(id, queue),
            Kind::Stream(end) => self.close_stream(end),
            Kind::Door(door) => self.close_door(id, door),
            Kind::Local(end) => self.close_local(end),
            Kind::Poller(watch) => self.close_poller(id, watch),
            Kind::Closed | Kind::Event(_) | Kind::Process(_) | Kind::Memory(..) => (),
            // A NIC looks whether the file is open.
            Kind::Completions(_) | Kind::DeviceEvents(_) => (),
        }
    }

    /// Fails with EMFILE if the process may have no more descriptors.
    pub(crate) fn check_room(&mut self, process: ProcessId, count: usize) -> io::Result<()> {
        let ppm = self.net.faults.no_descriptor_ppm;
        let unlucky = self.fate.chance(ppm);
        let process = self.process(process);
        if !process.alive {
            return errno(libc::ESRCH);
        }
        let taken = process.descriptors.iter().flatten().count() + NUMBER_MIN;
        if taken + count > process.descriptors_max || unlucky {
            self.note("no descriptor", &[], |_| "gets no descriptor: EMFILE".into());
            return errno(libc::EMFILE);
        }
        Ok(())
    }

    /// Gives the file, with its reference, the lowest free number. `check_room` came before.
    pub(crate) fn install(&mut self, process: ProcessId, id: FileId) -> OwnedFd {
        let serial = self.serial;
        let table = &mut self.process(process).descriptors;
        let free = table.iter().position(Option::is_none).unwrap_or_else(|| {
            table.push(None);
            table.len() - 1
        });
        table[free] = Some(id);
        OwnedFd { number: (free + NUMBER_MIN) as RawFd, process, world: serial }
    }

    pub(crate) fn open(&mut self, process: ProcessId, kind: Kind) -> io::Result<OwnedFd> {
        self.check_room(process, 1)?;
        let id = self.add_file(kind);
        Ok(self.install(process, id))
    }

    /// Returns the file of a descriptor; EBADF if there is none.
    pub(crate) fn find(&self, process: ProcessId, number: RawFd) -> io::Result<FileId> {
        let table = &self.processes[process.0 as usize].descriptors;
        let place = usize::try_from(number).ok().and_then(|number| number.checked_sub(NUMBER_MIN));
        let id = place.and_then(|place| table.get(place).copied().flatten());
        id.map_or_else(|| errno(libc::EBADF), Ok)
    }

    fn close(&mut self, process: ProcessId, number: RawFd) {
        if let Ok(id) = self.find(process, number) {
            self.process(process).descriptors[number as usize - NUMBER_MIN] = None;
            self.release(id);
        }
    }

    /// Closes all descriptors of a process that was killed, or that runs another program.
    pub(crate) fn close_all(&mut self, process: ProcessId) {
        for id in std::mem::take(&mut self.process(process).descriptors).into_iter().flatten() {
            self.release(id);
        }
    }

    /// Tells those that watch a process that it has ended.
    pub(crate) fn tell_watchers(&mut self, process: ProcessId) {
        let all = self.files.files.iter().enumerate();
        let watched = all.filter(|(_, file)| matches!(file.kind, Kind::Process(it) if it == process));
        let watched: Vec<FileId> =
            watched.map(|(at, file)| FileId { index: at as u32, generation: file.generation }).collect();
        watched.into_iter().for_each(|id| self.changed(id));
    }

    /// Returns what a poller would say of the file if it wanted everything. `token` is 0.
    pub(crate) fn readiness(&self, id: FileId) -> Ready {
        let (readable, writable, hangup) = match self.kind(id) {
            Kind::Listener(queue) => (queue.is_waited_for(), false, false),
            Kind::Stream(end) => return self.stream_readiness(*end),
            Kind::Door(door) => (door.is_waited_for(), false, false),
            Kind::Local(end) => return self.local_readiness(*end),
            Kind::Event(counter) => (counter.0 > 0, true, false),
            Kind::Process(process) => (!self.processes[process.0 as usize].alive, false, false),
            Kind::Completions(channel) => (channel.is_waited_for(), false, false),
            Kind::DeviceEvents(events) => (events.is_waited_for(), false, false),
            Kind::Closed | Kind::Poller(_) | Kind::Memory(..) => (false, false, false),
        };
        Ready { token: 0, readable, writable, hangup, end: false }
    }
}

/// Runs a system call of the running task on one of its descriptors.
pub(crate) fn call<R>(number: RawFd, act: impl FnOnce(&mut World, FileId) -> io::Result<R>) -> io::Result<R> {
    point();
    with(|world| {
        let id = world.find(world.here(), number)?;
        act(world, id)
    })
}

/// A descriptor that is closed when this is dropped, also by a task of another process. Outside of its world, and when
/// its process was killed, it is nothing.
#[derive(Debug)]
pub struct OwnedFd {
    number: RawFd,
    process: ProcessId,
    world: u64,
}

impl OwnedFd {
    /// Duplicates the descriptor.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        point();
        with(|world| {
            let id = world.find(self.process, self.number)?;
            world.check_room(self.process, 1)?;
            world.hold(id);
            Ok(world.install(self.process, id))
        })
    }

    pub(crate) fn process(&self) -> ProcessId {
        self.process
    }
}

/// The number is one of the running task's process.
impl FromRawFd for OwnedFd {
    unsafe fn from_raw_fd(number: RawFd) -> OwnedFd {
        with(|world| OwnedFd { number, process: world.here(), world: world.serial })
    }
}

impl IntoRawFd for OwnedFd {
    fn into_raw_fd(self) -> RawFd {
        std::mem::ManuallyDrop::new(self).number
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        point();
        try_with(|world| {
            if world.serial == self.world {
                world.close(self.process, self.number);
            }
        });
        if is_running() {
            memory::tell();
        }
    }
}

impl AsRawFd for OwnedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.number
    }
}

/// A descriptor that something else keeps open. std's `BorrowedFd` can't stand for it: that is a number of the
/// operating system.
#[derive(Clone, Copy, Debug)]
pub struct BorrowedFd<'a> {
    number: RawFd,
    process: ProcessId,
    owner: PhantomData<&'a OwnedFd>,
}

impl BorrowedFd<'_> {
    pub(crate) fn file(&self, world: &World) -> io::Result<FileId> {
        world.find(self.process, self.number)
    }
}

impl AsRawFd for BorrowedFd<'_> {
    fn as_raw_fd(&self) -> RawFd {
        self.number
    }
}

/// std's `AsFd` for simulated descriptors.
pub trait AsFd {
    fn as_fd(&self) -> BorrowedFd<'_>;
}

impl AsFd for OwnedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        BorrowedFd { number: self.number, process: self.process, owner: PhantomData }
    }
}

impl AsFd for BorrowedFd<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        *self
    }
}

impl<T: AsFd> AsFd for &T {
    fn as_fd(&self) -> BorrowedFd<'_> {
        T::as_fd(self)
    }
}
