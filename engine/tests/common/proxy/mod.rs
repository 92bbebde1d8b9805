//! A TCP proxy between two engines that delays, holds, swallows, alters or cuts the bytes that pass. A judge decides
//! about each piece of each direction; the test releases held bytes and lists the connections.
#![allow(dead_code)]

mod connection;

pub use connection::Seen;

use connection::Connection;
use ferry::internals::session::greeting::{Greeting, GREETING_BYTES, PREAMBLE_BYTES};
use ferry::internals::session::handshake::{peek_kind, Peek};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The direction of bytes: from the dialer to the acceptor, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Forth,
    Back,
}

/// A piece of a lane or of the control connection, from byte `at` of its direction.
pub struct Passing<'a> {
    pub is_lane: bool,
    /// Session, number and slot of a lane. The first piece of `Forth` contains all of it.
    pub greeting: Option<Greeting>,
    /// In order of acceptance, from 0.
    pub connection: usize,
    pub way: Way,
    pub at: u64,
    pub bytes: &'a mut Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    /// Forwards `bytes`, then closes both sides.
    Cut,
    /// Taken from the sender, never delivered.
    Swallow,
    /// Takes this piece and all later ones of this direction from the sender, unseen by the judge, until
    /// `Proxy::release`. While bytes are held, an end of the connection is not passed on either.
    Hold,
    /// Forwards after this time; later bytes of this direction wait behind.
    Delay(Duration),
}

/// Nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

type Judge = Box<dyn FnMut(&mut Passing) -> Verdict + Send>;

struct Shared {
    target: String,
    judge: Mutex<Judge>,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// Signals a new connection, or bytes that passed or were held.
    changed: Condvar,
    refuses: AtomicBool,
    refused: AtomicU64,
}

pub struct Proxy {
    pub address: String,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Forwards to `target`; everything passes until `judge` decides otherwise.
    pub fn new(target: &str) -> Proxy {
        Proxy::with_judge(target, |_| Verdict::Pass)
    }

    pub fn with_judge(target: &str, judge: impl FnMut(&mut Passing) -> Verdict + Send + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            judge: Mutex::new(Box::new(judge)),
            connections: Mutex::default(),
            changed: Condvar::new(),
            refuses: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for dialer in listener.incoming().map_while(Result::ok) {
                if Arc::strong_count(&accepting) == 1 {
                    return;
                }
                if accepting.refuses.load(Ordering::SeqCst) {
                    accepting.refused.fetch_add(1, Ordering::SeqCst);
                } else {
                    let shared = accepting.clone();
                    std::thread::spawn(move || shared.serve(dialer));
                }
            }
        });
        Proxy { address, shared }
    }

    pub fn judge(&self, judge: impl FnMut(&mut Passing) -> Verdict + Send + 'static) {
        *self.shared.judge.lock().unwrap() = Box::new(judge);
    }

    /// Cuts all lanes; with `control`, control connections too. Held bytes are lost.
    pub fn cut(&self, control: bool) {
        let all = self.all();
        all.iter().filter(|connection| control || connection.is_lane()).for_each(|it| it.cut());
    }

    /// Forwards the held bytes of one direction, and later bytes as the judge decides.
    pub fn release(&self, connection: usize, way: Way) {
        self.all()[connection].release(way);
    }

    /// Forwards all held bytes. First change the judge so that it holds nothing more.
    pub fn release_all(&self) {
        for connection in self.all() {
            [Way::Forth, Way::Back].into_iter().for_each(|way| connection.release(way));
        }
    }

    /// Returns the connections so far, in order of acceptance, without those that were refused.
    pub fn connections(&self) -> Vec<Seen> {
        self.all().iter().enumerate().map(|(number, it)| it.seen(number)).collect()
    }

    /// Waits until `pick` takes one of the connections.
    #[track_caller]
    pub fn wait_for(&self, what: &str, pick: impl Fn(&Seen) -> bool) -> Seen {
        let mut all = self.shared.connections.lock().unwrap();
        loop {
            let mut seen = all.iter().enumerate().map(|(number, it)| it.seen(number));
            if let Some(found) = seen.find(&pick) {
                return found;
            }
            let (next, waited) = self.shared.changed.wait_timeout(all, PATIENCE).unwrap();
            assert!(!waited.timed_out(), "waited in vain: {what}");
            all = next;
        }
    }

    /// Returns the number of connections that were closed at once.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// Closes new connections at once while `refuses` is true.
    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::SeqCst);
    }

    fn all(&self) -> Vec<Arc<Connection>> {
        self.shared.connections.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut(true);
        self.shared.refuses.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn serve(self: Arc<Shared>, mut dialer: TcpStream) {
        let mut first = vec![0u8; PREAMBLE_BYTES];
        if dialer.read_exact(&mut first).is_err() {
            return;
        }
        let mut greeting = None;
        if matches!(peek_kind(&first), Peek::Lane) {
            first.resize(GREETING_BYTES, 0);
            if dialer.read_exact(&mut first[PREAMBLE_BYTES..]).is_err() {
                return;
            }
            greeting = first[..].try_into().ok().map(|bytes| Greeting::decode(bytes).0);
        }
        let Ok(acceptor) = TcpStream::connect(&self.target) else { return };
        let connection = Arc::new(Connection::new(dialer, acceptor, greeting));
        let mut all = self.connections.lock().unwrap();
        let number = all.len();
        all.push(connection.clone());
        drop(all);
        let (shared, back) = (self.clone(), connection.clone());
        std::thread::spawn(move || shared.pump(&back, number, Way::Back, Vec::new()));
        self.pump(&connection, number, Way::Forth, first);
    }

    fn pump(&self, connection: &Connection, number: usize, way: Way, mut bytes: Vec<u8>) {
        let mut from = connection.to(if way == Way::Forth { Way::Back } else { Way::Forth });
        let mut buffer = vec![0u8; 64 << 10];
        // The judge sees no empty piece: a direction that is held before a byte came would not pass on its end.
        while bytes.is_empty() || self.pass(connection, number, way, &mut bytes) {
            self.tell();
            match from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    bytes.clear();
                    bytes.extend_from_slice(&buffer[..count]);
                }
            }
        }
        connection.end();
        self.tell();
    }

    /// Wakes waiting threads, which look again.
    fn tell(&self) {
        // A thread that is about to wait holds this lock until it waits.
        drop(self.connections.lock().unwrap());
        self.changed.notify_all();
    }

    /// Applies the judge's verdict to a piece. Returns false if the connection must end.
    fn pass(&self, connection: &Connection, number: usize, way: Way, bytes: &mut Vec<u8>) -> bool {
        let mut directions = connection.directions.lock().unwrap();
        let direction = &mut directions[way as usize];
        let at = direction.came;
        direction.came += bytes.len() as u64;
        if let Some(held) = &mut direction.held {
            held.extend_from_slice(bytes);
            return true;
        }
        drop(directions);
        let (is_lane, greeting) = (connection.is_lane(), connection.greeting);
        let mut passing = Passing { is_lane, greeting, connection: number, way, at, bytes };
        let verdict = (self.judge.lock().unwrap())(&mut passing);
        match verdict {
            Verdict::Swallow => return true,
            Verdict::Hold => {
                let mut directions = connection.directions.lock().unwrap();
                let is_cut = connection.is_cut.load(Ordering::SeqCst);
                directions[way as usize].held = (!is_cut).then(|| std::mem::take(bytes));
                return !is_cut;
            }
            Verdict::Delay(time) => std::thread::sleep(time),
            Verdict::Pass | Verdict::Cut => {}
        }
        connection.to(way).write_all(bytes).is_ok() && verdict != Verdict::Cut
    }
}
