//! The faults of a round, drawn from its dice. Each fault has an end, which is due later in the round.

use crate::network::Rule;
use crate::round::Round;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
pub enum Relief {
    Resume(usize),
    Start(usize),
    Unlimit(usize),
    Join(usize, usize),
    Plug(usize),
}

impl Round<'_> {
    pub fn draw_fault(&mut self) {
        let node = self.dice.below(self.nodes.len() as u64) as usize;
        let other = (node + 1 + self.dice.below(self.nodes.len() as u64 - 1) as usize) % self.nodes.len();
        let (host, far) = (self.nodes[node].host, self.nodes[other].host);
        let lasts = self.place.pace * Duration::from_millis(30 + self.dice.below(900));
        let kind = self.dice.below(12);
        if host == far && kind < 6 {
            return;
        }
        match kind {
            0 => self.cut("partition both ways", &[(host, far), (far, host)], lasts),
            1 => self.cut("partition one way", &[(host, far)], lasts),
            2 | 3 => {
                let rule = Rule { loss_permille: 10 + self.dice.below(300), ..Rule::default() };
                self.rules("loss", &[(host, far), (far, host)], rule, lasts);
            }
            4 => {
                let rule = Rule {
                    delay_us: self.dice.below(100_000),
                    jitter_us: self.dice.below(20_000),
                    duplicate_permille: self.dice.below(200),
                    ..Rule::default()
                };
                self.rules("delay, reorder, duplicate", &[(host, far)], rule, lasts);
            }
            5 => {
                self.tell(format!("host {host}: its link is down for {lasts:?}"));
                self.tally.fault("link down");
                self.network.link(host, false);
                self.relieve(lasts, Relief::Plug(host));
            }
            6 | 7 => self.stop(node, lasts),
            8 | 9 => self.kill(node, lasts, false),
            10 => self.kill(node, lasts, true),
            _ => self.limit(node, lasts),
        }
    }

    fn cut(&mut self, kind: &'static str, ways: &[(usize, usize)], lasts: Duration) {
        self.rules(kind, ways, Rule { cut: true, ..Rule::default() }, lasts);
    }

    fn rules(&mut self, kind: &'static str, ways: &[(usize, usize)], rule: Rule, lasts: Duration) {
        self.tally.fault(kind);
        self.tell(format!("hosts {ways:?}: {kind} for {lasts:?}"));
        for (from, to) in ways {
            self.network.rule(*from, *to, rule);
            self.relieve(lasts, Relief::Join(*from, *to));
        }
    }

    fn stop(&mut self, node: usize, lasts: Duration) {
        if self.nodes[node].process.is_none() || self.nodes[node].stopped.is_some() {
            return;
        }
        // Often longer than the lease.
        let lasts = lasts + self.place.pace * Duration::from_millis(self.dice.below(3) * 300);
        self.tally.fault("stop");
        self.tell(format!("node {node}: stopped for {lasts:?}"));
        self.nodes[node].signal(libc::SIGSTOP);
        self.nodes[node].stopped = Some(Instant::now());
        self.relieve(lasts, Relief::Resume(node));
    }

    /// Kills a node, which starts again later at its port. Meanwhile nothing is there, or a stranger.
    fn kill(&mut self, node: usize, lasts: Duration, stranger: bool) {
        if self.nodes[node].process.is_none() {
            return;
        }
        let word = if stranger { "replace by another program" } else { "kill and restart" };
        self.tally.fault(word);
        self.tell(format!("node {node}: killed, started again after {lasts:?}, stranger: {stranger}"));
        self.nodes[node].signal(libc::SIGKILL);
        self.bury(node);
        if stranger {
            let (host, port) = (self.nodes[node].host, self.nodes[node].port);
            let namespace = self.network.namespace(host);
            let seed = self.dice.next();
            let address = format!("{}:{port}", self.network.address(host));
            self.nodes[node].stranger = Some(Stranger::start(namespace, address, seed));
        }
        self.relieve(lasts, Relief::Start(node));
    }

    fn limit(&mut self, node: usize, lasts: Duration) {
        if self.nodes[node].process.is_none() || self.nodes[node].limited {
            return;
        }
        let (what, more) = match self.dice.below(2) {
            0 => ("descriptors", self.dice.below(4)),
            _ => ("memory", self.dice.below(8) << 16),
        };
        self.tally.fault(if what == "memory" { "exhaustion of memory" } else { "exhaustion of descriptors" });
        self.tell(format!("node {node}: {what} limited to {more} more for {lasts:?}"));
        self.nodes[node].limited = true;
        self.nodes[node].starved |= what == "memory";
        self.nodes[node].tell(&format!("limit {what} {more}"));
        self.relieve(lasts, Relief::Unlimit(node));
    }

    fn relieve(&mut self, after: Duration, relief: Relief) {
        self.reliefs.push((Instant::now() + after, relief));
    }

    /// Ends faults that are due, or all.
    pub fn end_faults(&mut self, all: bool) {
        let now = Instant::now();
        let (due, later) =
            std::mem::take(&mut self.reliefs).into_iter().partition(|(at, _)| all || *at <= now);
        self.reliefs = later;
        let due: Vec<(Instant, Relief)> = due;
        for (_, relief) in due {
            match relief {
                Relief::Join(from, to) => self.network.rule(from, to, Rule::default()),
                Relief::Plug(host) => self.network.link(host, true),
                Relief::Resume(node) => self.resume(node),
                Relief::Start(node) => {
                    self.nodes[node].stranger = None;
                    self.start(node);
                }
                Relief::Unlimit(node) => {
                    self.nodes[node].limited = false;
                    self.nodes[node].tell("unlimit memory");
                    self.nodes[node].tell("unlimit descriptors");
                }
            }
        }
    }
}

/// Another program at a node's port: it says things that no engine says.
pub struct Stranger {
    end: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Stranger {
    fn start(namespace: std::fs::File, address: String, seed: u64) -> Stranger {
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let thread = std::thread::spawn(move || {
            // SAFETY: no memory is involved; the namespace is this thread's alone.
            assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
            let Ok(listener) = TcpListener::bind(&address) else { return };
            listener.set_nonblocking(true).unwrap();
            let mut dice = crate::support::Dice::of(seed);
            let mut guests = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                let Ok((mut guest, _)) = listener.accept() else { continue };
                let _ = guest.set_nonblocking(true);
                let _ = guest.read(&mut [0; 512]);
                let words: Vec<u8> = (0..dice.below(200)).flat_map(|_| dice.next().to_le_bytes()).collect();
                let _ = guest.write(&words);
                // Some guests are kept waiting, others are sent away.
                if dice.below(2) == 0 {
                    guests.push(guest);
                }
            }
        });
        Stranger { end, thread: Some(thread) }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}
