//! The process of a node in Rust: an engine over the node's arena. It obeys one command per line, and tells what
//! happens to it in lines; tests/chaos/host.h documents both. It ends with its input.

use crate::arena::{self, Arena};
use crate::support::config;
use ferry::notify::{EventBody, Queue, WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_TRANSFERS};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Deadline, Engine, RegionOptions, Transfer, TransferOptions};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Names the descriptor of the arena.
pub const ARENA: &str = "CHAOS_ARENA";

fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}

struct Node {
    engine: Engine,
    region: RegionId,
    queue: Arc<Queue>,
    /// Locked while a transfer is submitted, so that its end finds it here.
    transfers: Arc<Mutex<HashMap<u64, Transfer>>>,
    closing: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

pub fn run(descriptor: &str) {
    // SAFETY: the parent hands the descriptor to this process alone.
    let file = unsafe { File::from_raw_fd(descriptor.parse().unwrap()) };
    let arena = Arc::new(Arena::map(&file, true));
    let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
    let settings = lines.next().unwrap();
    let settings: Vec<(&str, &str)> =
        settings.split_whitespace().map(|word| word.split_once('=').unwrap()).collect();
    // Descriptors that the process opens once and keeps do not count as leaked.
    let apart: Vec<_> = settings.iter().copied().chain([("listen_address", "127.0.0.1:0")]).collect();
    let first = Engine::open(config(&apart)).unwrap();
    first.close(None).unwrap();
    drop(first);
    let before = settled(|(_, threads)| threads == 1);
    let opened = Engine::open(config(&settings));
    let Ok(engine) = opened else { return tell(&format!("unopened {}", opened.err().unwrap())) };
    // SAFETY: the arena stays mapped until the process ends.
    let region = unsafe { engine.register(arena::AT as *mut _, arena::BYTES, &RegionOptions::default()) };
    let region = region.unwrap();
    tell(&format!("opened {region} {}", engine.address()));
    let queue = engine.queue(WHAT_PEERS | WHAT_NOTIFICATIONS | WHAT_TRANSFERS, 16_384).unwrap();
    let mut node = Node {
        engine,
        region,
        queue,
        transfers: Arc::default(),
        closing: Arc::default(),
        threads: Vec::new(),
    };
    node.listen(arena);
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0] == "close" {
            return node.close(before);
        }
        node.obey(&words);
    }
    // The parent is gone.
    std::process::exit(0);
}

impl Node {
    /// Starts the thread that tells of events.
    fn listen(&mut self, arena: Arc<Arena>) {
        let (queue, transfers, closing) = (self.queue.clone(), self.transfers.clone(), self.closing.clone());
        let engine = self.engine.clone();
        self.threads.push(std::thread::spawn(move || {
            let mut events = Vec::new();
            while !closing.load(Ordering::Relaxed) {
                let mut poll = libc::pollfd { fd: queue.eventfd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: `poll` lives during the call.
                unsafe { libc::poll(&mut poll, 1, 50) };
                queue.drain(&mut events, 256);
                for event in events.drain(..) {
                    match &event.body {
                        EventBody::Transfer { user_data, .. } => final_state(&transfers, *user_data),
                        EventBody::Notification { bytes, .. } => notified(&arena, bytes),
                        EventBody::LateApply { address, length, .. } => {
                            tell(&format!("late {} {length}", address - arena::AT));
                        }
                        EventBody::PeerLost { status, why, .. } => {
                            tell(&format!("lost {} {status} {why}", event.peer))
                        }
                        EventBody::PeerUp { .. } => {
                            let address = engine.peer_info(event.peer).map(|info| info.address);
                            tell(&format!("up {} {}", event.peer, address.unwrap_or_default()));
                        }
                        EventBody::PeerDown { .. } | EventBody::PeerConnect { .. } => {}
                    }
                }
            }
        }));
    }

    fn obey(&mut self, words: &[&str]) {
        match words[0] {
            // connect NODE EPOCH ADDRESS
            "connect" => {
                let (engine, address) = (self.engine.clone(), words[3].to_owned());
                let (node, epoch) = (words[1].to_owned(), words[2].to_owned());
                self.threads.retain(|thread| !thread.is_finished());
                self.threads.push(std::thread::spawn(move || {
                    match engine.connect(&address, Some(Duration::from_secs(2))) {
                        Ok(peer) => tell(&format!("connected {node} {epoch} {peer}")),
                        Err(error) => tell(&format!("unconnected {node} {epoch} {error}")),
                    }
                }));
            }
            "op" => self.submit(words),
            // notify ID PEER DEADLINE
            "notify" => {
                let deadline = Deadline::After(Duration::from_millis(words[3].parse().unwrap()));
                let (engine, peer, id) = (self.engine.clone(), peer(words[2]), words[1].to_owned());
                // The call waits for the peer, and this thread must not.
                self.threads.push(std::thread::spawn(move || {
                    match engine.notify(peer, format!("{id} ").as_bytes(), deadline) {
                        Ok(()) => tell(&format!("noted {id} OK")),
                        Err(error) => tell(&format!("noted {id} {}", error.status)),
                    }
                }));
            }
            "cancel" => {
                let id: u64 = words[1].parse().unwrap();
                if let Some(transfer) = self.transfers.lock().unwrap().get(&id) {
                    let _ = transfer.cancel();
                }
            }
            "fence" => {
                let (engine, peer) = (self.engine.clone(), peer(words[1]));
                self.threads.push(std::thread::spawn(move || {
                    let done = engine.fence(peer, Some(Duration::from_secs(5)));
                    tell(&format!(
                        "fenced {peer} {}",
                        done.map_or_else(|error| error.status.to_string(), |()| "OK".into())
                    ));
                }));
            }
            "limit" => limit(words[1], Some(words[2].parse().unwrap())),
            "unlimit" => limit(words[1], None),
            other => panic!("no such command: {other}"),
        }
    }

    /// op ID r|w PEER REGION DEADLINE FLAGS LOCAL:REMOTE:LENGTH...
    fn submit(&self, words: &[&str]) {
        let id: u64 = words[1].parse().unwrap();
        let remote_region = RegionId::from_raw(words[4].parse().unwrap());
        let mut note = format!("{id} ");
        let mut requests = Vec::new();
        for piece in &words[7..] {
            let numbers: Vec<u64> = piece.split(':').map(|number| number.parse().unwrap()).collect();
            let (local, remote, length) = (arena::AT + numbers[0], arena::AT + numbers[1], numbers[2]);
            requests.push(Request { local, remote, length, remote_region });
            note += &format!("{}:{} ", numbers[1], numbers[2]);
        }
        let has = |flag: char| words[6].contains(flag);
        let options = TransferOptions {
            ordered: has('o'),
            checksum: has('c'),
            no_coalesce: has('s'),
            deadline: Deadline::After(Duration::from_millis(words[5].parse().unwrap())),
            user_data: id,
            queue: Some(self.queue.clone()),
            notify: has('n').then_some(note.as_bytes()),
            ..TransferOptions::default()
        };
        let op = if words[2] == "w" { Op::Write } else { Op::Read };
        let mut transfers = self.transfers.lock().unwrap();
        match self.engine.submit(peer(words[3]), op, &requests, &options) {
            Ok(transfer) => _ = transfers.insert(id, transfer),
            Err(error) => tell(&format!("refused {id} {} {error}", error.status)),
        }
    }

    fn close(mut self, before: (usize, usize)) {
        let started = Instant::now();
        let unregistered = self.engine.unregister(self.region, Some(Duration::from_secs(5)));
        let text = unregistered.map_or_else(|error| error.to_string(), |()| "OK".into());
        tell(&format!("unregistered {} {text}", started.elapsed().as_millis()));
        let started = Instant::now();
        let closed = self.engine.close(Some(Duration::from_secs(10)));
        let took = started.elapsed().as_millis();
        self.closing.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        let text = closed.map_or_else(|error| error.to_string(), |()| "OK".into());
        tell(&format!("closed {took} {text}"));
        drop(self);
        let after = settled(|now| now == before);
        tell(&format!("usage {} {} {} {}", before.0, after.0, before.1, after.1));
    }
}

fn peer(word: &str) -> PeerId {
    PeerId::from_raw(word.parse().unwrap())
}

fn final_state(transfers: &Mutex<HashMap<u64, Transfer>>, id: u64) {
    let transfer = transfers.lock().unwrap().remove(&id);
    let Some(result) = transfer.and_then(|transfer| transfer.result()) else {
        return tell(&format!("again {id}"));
    };
    let (state, fence, note) = (result.state, result.fence, result.notification);
    tell(&format!("final {id} {state:?} {} {fence:?} {note:?} {}", result.status, result.transport.name()));
}

/// Checks that the data of a notification is there, and then writes over it, as an application may.
fn notified(arena: &Arena, bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap_or("0");
    let (id, pieces) = text.split_once(' ').unwrap_or((text, ""));
    let id: u64 = id.parse().unwrap_or(0);
    let pieces: Vec<(usize, usize)> = pieces
        .split_whitespace()
        .map(|piece| piece.split_once(':').unwrap())
        .map(|(at, length)| (at.parse().unwrap(), length.parse().unwrap()))
        .collect();
    let wrong = pieces.iter().find_map(|(at, length)| arena.stranger(*at, *length, &[arena::data(id)], *at));
    if wrong.is_none() {
        pieces.iter().for_each(|(at, length)| arena.fill(*at, *length, arena::scrubbed(id), *at));
    }
    tell(&format!("note {id} {}", wrong.map_or("whole".into(), |at| format!("broken at {at:#x}"))));
}

/// Limits descriptors or memory to what is in use and a little more, or lifts the limit.
fn limit(what: &str, more: Option<u64>) {
    let kind = if what == "descriptors" { libc::RLIMIT_NOFILE } else { libc::RLIMIT_AS };
    // SAFETY: an rlimit is two numbers.
    let mut limits: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: `limits` is written during the call.
    unsafe { libc::getrlimit(kind, &mut limits) };
    let used = if what == "descriptors" { usage().0 as u64 } else { mapped() };
    limits.rlim_cur = more.map_or(limits.rlim_max, |more| (used + more).min(limits.rlim_max));
    // SAFETY: `limits` is read during the call.
    unsafe { libc::setrlimit(kind, &limits) };
}

fn mapped() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().next().map_or(0, |pages| pages.parse::<u64>().unwrap_or(0) * 4096)
}

/// Returns the usage once it is as expected, or after two seconds: the kernel takes a moment to forget a thread that
/// was joined.
fn settled(is_expected: impl Fn((usize, usize)) -> bool) -> (usize, usize) {
    let started = Instant::now();
    while !is_expected(usage()) && started.elapsed() < Duration::from_secs(2) {
        std::thread::yield_now();
    }
    usage()
}

/// Returns the descriptors and threads of this process.
fn usage() -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).map_or(0, |list| list.count());
    (count("fd"), count("task"))
}
