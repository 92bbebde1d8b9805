//! One connection through the proxy: its two sockets, and the held bytes of each direction.

use super::Way;
use ferry::internals::session::greeting::Greeting;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

/// A snapshot of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub connection: usize,
    pub is_lane: bool,
    pub greeting: Option<Greeting>,
    /// Bytes that came from the dialer, and from the acceptor.
    pub came: [u64; 2],
    /// Bytes of each direction that are held; None while the direction is not held.
    pub held: [Option<usize>; 2],
    pub is_open: bool,
}

impl Seen {
    /// Whether bytes of this direction wait for `Proxy::release`.
    pub fn holds(&self, way: Way) -> bool {
        self.held[way as usize].is_some_and(|bytes| bytes > 0)
    }
}

/// One direction: its held bytes, and the count of bytes received.
#[derive(Default)]
pub struct Direction {
    pub held: Option<Vec<u8>>,
    pub came: u64,
}

pub struct Connection {
    dialer: TcpStream,
    acceptor: TcpStream,
    /// The lane's greeting; None for a control connection.
    pub greeting: Option<Greeting>,
    pub directions: Mutex<[Direction; 2]>,
    /// Signals that a direction is no longer held, or that the connection is cut.
    freed: Condvar,
    pub is_cut: AtomicBool,
}

impl Connection {
    pub fn new(dialer: TcpStream, acceptor: TcpStream, greeting: Option<Greeting>) -> Connection {
        let _ = (dialer.set_nodelay(true), acceptor.set_nodelay(true));
        Connection {
            dialer,
            acceptor,
            greeting,
            directions: Mutex::default(),
            freed: Condvar::new(),
            is_cut: AtomicBool::new(false),
        }
    }

    pub fn is_lane(&self) -> bool {
        self.greeting.is_some()
    }

    pub fn seen(&self, connection: usize) -> Seen {
        let directions = self.directions.lock().unwrap();
        Seen {
            connection,
            is_lane: self.is_lane(),
            greeting: self.greeting,
            came: [0, 1].map(|way| directions[way].came),
            held: [0, 1].map(|way| directions[way].held.as_ref().map(Vec::len)),
            is_open: !self.is_cut.load(Ordering::SeqCst),
        }
    }

    pub fn cut(&self) {
        // Shut the sockets first: a thread in `release` may be writing under the lock.
        let _ = self.dialer.shutdown(Shutdown::Both);
        let _ = self.acceptor.shutdown(Shutdown::Both);
        let mut directions = self.directions.lock().unwrap();
        self.is_cut.store(true, Ordering::SeqCst);
        directions.iter_mut().for_each(|direction| direction.held = None);
        self.freed.notify_all();
    }

    /// One side has ended: ends the other side too, once nothing is held any more.
    pub fn end(&self) {
        let directions = self.directions.lock().unwrap();
        let held = |directions: &mut [Direction; 2]| directions.iter().any(|it| it.held.is_some());
        drop(self.freed.wait_while(directions, held).unwrap());
        self.cut();
    }

    /// Returns the socket that a direction's bytes go to.
    pub fn to(&self, way: Way) -> &TcpStream {
        match way {
            Way::Forth => &self.acceptor,
            Way::Back => &self.dialer,
        }
    }

    pub fn release(&self, way: Way) {
        // Under the lock, so that bytes which arrive now are queued behind.
        let mut directions = self.directions.lock().unwrap();
        if let Some(bytes) = directions[way as usize].held.take() {
            let _ = self.to(way).write_all(&bytes);
            self.freed.notify_all();
        }
    }
}
