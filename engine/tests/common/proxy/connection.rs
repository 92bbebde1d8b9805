//! One connection through the proxy: its two sockets, and what is held of each direction.

use super::Way;
use ferry::control::greeting::Greeting;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

/// A connection as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub connection: usize,
    pub is_lane: bool,
    pub greeting: Option<Greeting>,
    /// Bytes that came from the dialer, and from the acceptor.
    pub came: [u64; 2],
    /// Bytes of each direction that are held; None where nothing holds it.
    pub held: [Option<usize>; 2],
    pub is_open: bool,
}

impl Seen {
    /// Whether bytes of this direction wait for `Proxy::release`.
    pub fn holds(&self, way: Way) -> bool {
        self.held[way as usize].is_some_and(|bytes| bytes > 0)
    }
}

/// One direction: what is held of it, and how much came.
#[derive(Default)]
pub struct Direction {
    pub held: Option<Vec<u8>>,
    pub came: u64,
}

pub struct Connection {
    dialer: TcpStream,
    acceptor: TcpStream,
    /// A lane's.
    pub greeting: Option<Greeting>,
    pub directions: Mutex<[Direction; 2]>,
    /// A direction is held no more, or the connection is cut.
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
        // First, because who releases may be writing, under the lock.
        let _ = self.dialer.shutdown(Shutdown::Both);
        let _ = self.acceptor.shutdown(Shutdown::Both);
        let mut directions = self.directions.lock().unwrap();
        self.is_cut.store(true, Ordering::SeqCst);
        directions.iter_mut().for_each(|direction| direction.held = None);
        self.freed.notify_all();
    }

    /// One side is at its end: so is the other, once nothing is held any more.
    pub fn end(&self) {
        let directions = self.directions.lock().unwrap();
        let held = |directions: &mut [Direction; 2]| directions.iter().any(|it| it.held.is_some());
        drop(self.freed.wait_while(directions, held).unwrap());
        self.cut();
    }

    /// The socket that a direction's bytes go to.
    pub fn to(&self, way: Way) -> &TcpStream {
        match way {
            Way::Forth => &self.acceptor,
            Way::Back => &self.dialer,
        }
    }

    pub fn release(&self, way: Way) {
        // Under the lock, so that what comes now goes behind it.
        let mut directions = self.directions.lock().unwrap();
        if let Some(bytes) = directions[way as usize].held.take() {
            let _ = self.to(way).write_all(&bytes);
            self.freed.notify_all();
        }
    }
}
