//! A TCP proxy between two engines that delays, swallows, alters or cuts what passes.

use ferry::session::handshake::{peek_kind, Peek};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Which way bytes go: from the dialer to the acceptor, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Forth,
    Back,
}

/// What passes by: of a lane or of the control connection, from byte `at` of its direction.
pub struct Passing<'a> {
    pub is_lane: bool,
    /// In order of acceptance, from 0.
    pub connection: usize,
    pub way: Way,
    pub at: u64,
    pub bytes: &'a mut Vec<u8>,
}

pub enum Verdict {
    Pass,
    /// Forward what is in `bytes`, then close both sides.
    Cut,
    /// Taken from the sender, never delivered.
    Swallow,
}

type Judge = Box<dyn FnMut(&mut Passing) -> Verdict + Send>;

struct Connection {
    dialer: TcpStream,
    acceptor: TcpStream,
    is_lane: bool,
}

impl Connection {
    fn cut(&self) {
        let _ = self.dialer.shutdown(Shutdown::Both);
        let _ = self.acceptor.shutdown(Shutdown::Both);
    }
}

struct Shared {
    target: String,
    judge: Mutex<Judge>,
    connections: Mutex<Vec<Arc<Connection>>>,
    refuses: AtomicBool,
    refused: AtomicU64,
}

pub struct Proxy {
    pub address: String,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Forwards to `target`; everything passes until `judge` says otherwise.
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

    /// Cuts all lanes; with `control`, everything.
    pub fn cut(&self, control: bool) {
        let all = self.shared.connections.lock().unwrap();
        all.iter().filter(|connection| control || connection.is_lane).for_each(|it| it.cut());
    }

    /// Connections closed at once so far.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// New connections are closed at once.
    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::SeqCst);
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
        let mut first = vec![0u8; 7];
        if dialer.read_exact(&mut first).is_err() {
            return;
        }
        let is_lane = matches!(peek_kind(&first), Peek::Lane);
        let Ok(acceptor) = TcpStream::connect(&self.target) else { return };
        let _ = dialer.set_nodelay(true);
        let _ = acceptor.set_nodelay(true);
        let connection = Arc::new(Connection { dialer, acceptor, is_lane });
        let number = {
            let mut all = self.connections.lock().unwrap();
            all.push(connection.clone());
            all.len() - 1
        };
        let (shared, back) = (self.clone(), connection.clone());
        std::thread::spawn(move || shared.pump(&back, number, Way::Back, Vec::new()));
        self.pump(&connection, number, Way::Forth, first);
    }

    fn pump(&self, connection: &Connection, number: usize, way: Way, mut bytes: Vec<u8>) {
        let (mut from, mut to) = match way {
            Way::Forth => (&connection.dialer, &connection.acceptor),
            Way::Back => (&connection.acceptor, &connection.dialer),
        };
        let mut buffer = vec![0u8; 64 << 10];
        let mut at = 0;
        loop {
            let length = bytes.len() as u64;
            let mut passing =
                Passing { is_lane: connection.is_lane, connection: number, way, at, bytes: &mut bytes };
            let verdict = (self.judge.lock().unwrap())(&mut passing);
            at += length;
            match verdict {
                Verdict::Swallow => {}
                Verdict::Pass => {
                    if to.write_all(&bytes).is_err() {
                        break;
                    }
                }
                Verdict::Cut => {
                    let _ = to.write_all(&bytes);
                    break;
                }
            }
            match from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    bytes.clear();
                    bytes.extend_from_slice(&buffer[..count]);
                }
            }
        }
        connection.cut();
    }
}
