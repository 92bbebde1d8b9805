//! Makes connections: listeners, dials, and the ends that both get.

use super::{Connection, Content, End, Phase, Pipe, Queue, StreamEnd};
use crate::fd::{errno, AsFd, BorrowedFd, FileId, Kind, OwnedFd};
use crate::process::{HostId, ProcessId};
use crate::world::{point, with, World};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

/// As Linux's somaxconn.
const BACKLOG_MAX: usize = 4096;
const PORT_MIN: u16 = 32_768;

/// A listening socket.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Port 0 asks for a free one. EADDRINUSE if another listener has the address.
    pub fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<Listener> {
        Listener::bind_with(address, buffer_bytes, BACKLOG_MAX)
    }

    /// Lets at most `backlog` connections wait to be accepted; the dials of others are tried again by their kernel.
    pub fn bind_with(address: SocketAddr, buffer_bytes: usize, backlog: usize) -> io::Result<Listener> {
        point();
        with(|world| {
            let process = world.here();
            let host = world.process(process).host;
            let mut address = address;
            if address.port() == 0 {
                address.set_port(world.port(host));
            }
            if !address.ip().is_unspecified() && world.host_at(host, address.ip()) != Some(host) {
                return errno(libc::EADDRNOTAVAIL);
            }
            if world.find_listener(host, address).is_some() {
                return errno(libc::EADDRINUSE);
            }
            let queue = Queue { host, process, address, waiting: VecDeque::new(), backlog, buffer_bytes };
            let fd = world.open(process, Kind::Listener(queue))?;
            let id = world.find(process, fd.as_raw_fd())?;
            world.net.listeners.push(id);
            world.note("listen", &[address.port().into()], |_| format!("listens at {address}"));
            Ok(Listener(fd))
        })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        point();
        with(|world| match world.kind(self.0.as_fd().file(world)?) {
            Kind::Listener(queue) => Ok(queue.address),
            _ => errno(libc::EINVAL),
        })
    }

    /// Accepts a connection that waits. EAGAIN if there is none; EMFILE leaves it waiting.
    pub fn accept(&self) -> io::Result<(OwnedFd, SocketAddr)> {
        point();
        with(|world| {
            let id = self.0.as_fd().file(world)?;
            let Kind::Listener(queue) = &mut world.file(id).kind else { return errno(libc::EINVAL) };
            let (process, Some(connection)) = (queue.process, queue.waiting.front().copied()) else {
                return errno(libc::EAGAIN);
            };
            world.check_room(process, 1)?;
            if let Kind::Listener(queue) = &mut world.file(id).kind {
                queue.waiting.pop_front();
            }
            let end = StreamEnd { connection, side: 1 };
            let file = world.add_file(Kind::Stream(end));
            world.end(end).file = Some(file);
            world.note_end("accept", end, 0, |_| "accepts".into());
            let remote = world.end(end.other()).address;
            Ok((world.install(process, file), remote))
        })
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Starts to connect. The socket becomes writable when the connection is there or has failed. ENETUNREACH if no host
/// has the address.
pub fn dial(remote: SocketAddr, buffer_bytes: usize) -> io::Result<OwnedFd> {
    point();
    with(|world| {
        let process = world.here();
        let own = world.process(process).host;
        world.check_room(process, 1)?;
        let Some(host) = world.host_at(own, remote.ip()) else { return errno(libc::ENETUNREACH) };
        let source = if remote.ip().is_loopback() { remote.ip() } else { own.address() };
        let local = SocketAddr::new(source, world.port(own));
        let connection = world.net.connections.len() as u32;
        let dialer = world.new_end(own, process, local, Phase::Connecting, buffer_bytes);
        // Its process is known when a listener takes the connection.
        let acceptor = world.new_end(host, process, remote, Phase::Gone, 0);
        world
            .net
            .connections
            .push(Connection { ends: [dialer, acceptor], pipes: [Pipe::default(), Pipe::default()] });
        let end = StreamEnd { connection, side: 0 };
        let file = world.add_file(Kind::Stream(end));
        world.end(end).file = Some(file);
        world.note_end("dial", end, 0, |_| "dials".into());
        world.push(end, Content::Syn(0));
        Ok(world.install(process, file))
    })
}

/// Returns a port of this host that nobody listens at.
pub fn free_port() -> u16 {
    point();
    with(|world| {
        let host = world.processes[world.here().0 as usize].host;
        world.port(host)
    })
}

impl World {
    fn new_end(
        &mut self,
        host: HostId,
        process: ProcessId,
        address: SocketAddr,
        phase: Phase,
        buffer_bytes: usize,
    ) -> End {
        let (least, most) = self.net.faults.buffer_bytes;
        let mut buffer = |bytes: usize| match bytes {
            0 => self.fate.log_uniform(least as u64, most as u64) as usize,
            // As Linux, which doubles what it is asked for.
            bytes => 2 * bytes,
        };
        End {
            host,
            process,
            address,
            file: None,
            phase,
            error: None,
            ended: false,
            shut_read: false,
            shut_write: false,
            inbox: VecDeque::new(),
            inbox_max: buffer(buffer_bytes),
            unacked: 0,
            outbox_max: buffer(buffer_bytes),
            zero_copy: false,
            released: 0,
            busy: [false; 2],
            waiting: Vec::new(),
        }
    }

    /// Returns the host that has an address, as seen from another one.
    fn host_at(&self, from: HostId, address: IpAddr) -> Option<HostId> {
        if address.is_loopback() {
            return Some(from);
        }
        (0..self.hosts.len() as u32).map(HostId).find(|host| host.address() == address)
    }

    fn port(&mut self, host: HostId) -> u16 {
        loop {
            let next = &mut self.hosts[host.0 as usize].next_port;
            *next = next.checked_add(1).unwrap_or(PORT_MIN);
            let address = SocketAddr::new(host.address(), *next);
            if self.find_listener(host, address).is_none() {
                return address.port();
            }
        }
    }

    pub(super) fn find_listener(&self, host: HostId, at: SocketAddr) -> Option<FileId> {
        let listens = |id: &&FileId| match self.kind(**id) {
            Kind::Listener(queue) if queue.host == host && queue.address.port() == at.port() => {
                let own = queue.address.ip();
                own.is_unspecified() || at.ip().is_unspecified() || own == at.ip()
            }
            _ => false,
        };
        self.net.listeners.iter().find(listens).copied()
    }

    /// Lets a connection wait to be accepted. False if too many wait.
    pub(super) fn enqueue(&mut self, listener: FileId, connection: u32) -> bool {
        let Kind::Listener(queue) = &mut self.file(listener).kind else { return false };
        if queue.waiting.len() >= queue.backlog {
            return false;
        }
        queue.waiting.push_back(connection);
        let (host, process, bytes) = (queue.host, queue.process, queue.buffer_bytes);
        let end = StreamEnd { connection, side: 1 };
        let address = self.end(end).address;
        *self.end(end) = self.new_end(host, process, address, Phase::Up, bytes);
        self.changed(listener);
        true
    }

    pub(crate) fn close_listener(&mut self, id: FileId, queue: Queue) {
        self.net.listeners.retain(|listener| *listener != id);
        for connection in queue.waiting {
            self.abort(StreamEnd { connection, side: 1 });
        }
    }

    /// The program has closed an end, or its process is dead.
    pub(crate) fn close_stream(&mut self, end: StreamEnd) {
        self.end(end).file = None;
        self.note_end("close", end, 0, |_| "closes".into());
        let own = self.end(end);
        let (phase, unread, shut, host) = (own.phase, !own.inbox.is_empty(), own.shut_write, own.host);
        let down = self.hosts[host.0 as usize].down;
        if phase == Phase::Up && down {
            // Its kernel is gone, too: what has not left never will.
            self.clear(end);
        } else if phase == Phase::Up && unread {
            return self.abort(end);
        } else if phase == Phase::Up {
            self.read_late_chunks(end);
            if !shut {
                self.push(end, Content::Fin);
            }
        }
        self.end(end).phase = Phase::Gone;
        self.end(end).inbox = VecDeque::new();
    }

    /// Ends a connection by a reset.
    fn abort(&mut self, end: StreamEnd) {
        self.clear(end);
        let (phase, host) = (self.end(end).phase, self.end(end).host);
        if phase == Phase::Up && !self.hosts[host.0 as usize].down {
            self.push(end, Content::Reset(libc::ECONNRESET));
        }
        self.end(end).phase = Phase::Gone;
        self.end(end).inbox = VecDeque::new();
    }
}
