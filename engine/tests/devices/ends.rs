//! Two processes, and the commands that a test gives them.

use crate::common::data::{check, pattern, Random, Span};
use crate::common::role::Role;
use crate::common::standin;
use crate::role::{FOLDER, LIBRARIES};
use ferry::types::{Op, PeerId, RegionId};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;
pub const BOTH: [Op; 2] = [Op::Write, Op::Read];

/// Versions of the two libraries.
pub const NEW: (&str, &str) = ("12.8", "9.1");
pub const OLD: (&str, &str) = ("12.4", "8.1");

/// Returns the library of a place's device, or None for host memory.
pub fn library(place: &str) -> Option<&str> {
    ["cuda", "ascend"].into_iter().find(|library| place.starts_with(library))
}

/// Memory of an end, by its number there.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    index: usize,
    pub region: RegionId,
    pub address: u64,
    pub bytes: usize,
}

impl Memory {
    pub fn index(self) -> usize {
        self.index
    }
}

/// A process with an engine; the answer of an error is its text.
pub struct End {
    role: Role,
    places: usize,
    pub address: String,
    audit: PathBuf,
}

impl End {
    pub fn new(folder: &Path, versions: (&str, &str), settings: &str) -> End {
        End::started(folder, versions, settings, false)
    }

    /// Starts an end; with `apart` as process 1 of a pid namespace of its own.
    pub fn started(folder: &Path, (cuda, ascend): (&str, &str), settings: &str, apart: bool) -> End {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let cuda = standin::folder().join(format!("cuda-{cuda}/libcuda.so.1")).display().to_string();
        let cann = standin::folder().join(format!("cann-{ascend}"));
        let ascend = cann.join("libascendcl.so").display().to_string();
        let hixl = cann.join("libcann_hixl.so").display().to_string();
        let audit = folder.join(format!("audit-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let set = |command: &mut Command| {
            command
                .env(LIBRARIES, format!("{cuda} {ascend}"))
                .env(FOLDER, folder)
                .env("FERRY_STANDIN_DIR", folder)
                .env("FERRY_STANDIN_AUDIT", &audit);
        };
        let role = if apart {
            Role::start_under(&UNSHARE, "role::role", set)
        } else {
            Role::start("role::role", set)
        };
        let mut end = End { role, places: 0, address: String::new(), audit };
        let libraries = format!("cuda_library={cuda} ascend_library={ascend} hixl_library={hixl}");
        end.address = end.ask(&format!("open {libraries} {settings}"));
        assert!(end.address.contains(':'), "open: {}", end.address);
        end
    }

    #[track_caller]
    pub fn ok(&mut self, command: &str) {
        assert_eq!(self.ask(command), "OK", "{command}");
    }

    /// Allocates memory of the host or a device, or returns why that failed.
    pub fn try_place(&mut self, place: &str, bytes: usize) -> Result<Memory, String> {
        let answer = self.ask(&format!("place {place} {bytes}"));
        let Some((region, address)) =
            answer.split_once(' ').filter(|(region, _)| region.parse::<u64>().is_ok())
        else {
            return Err(answer);
        };
        let index = self.places;
        self.places += 1;
        Ok(Memory {
            index,
            region: RegionId::from_raw(region.parse().unwrap()),
            address: address.parse().unwrap(),
            bytes,
        })
    }

    #[track_caller]
    pub fn place(&mut self, place: &str, bytes: usize) -> Memory {
        self.try_place(place, bytes).unwrap_or_else(|error| panic!("{place}: {error}"))
    }

    pub fn fill(&mut self, memory: Memory, tag: u32) {
        self.ok(&format!("fill {} {tag} {}", memory.index, memory.bytes));
    }

    pub fn contents(&mut self, memory: Memory) -> Vec<u8> {
        let path = self.ask(&format!("dump {}", memory.index));
        take(&path)
    }

    pub fn free(&mut self, memory: Memory) {
        self.ok(&format!("free {}", memory.index));
    }

    /// Returns the next notification's text, and the memory's content when the notification arrived.
    pub fn notified(&mut self, memory: Memory) -> (String, Vec<u8>) {
        let answer = self.ask(&format!("notified {}", memory.index));
        let (text, path) = answer.split_once(' ').unwrap();
        (text.into(), take(path))
    }

    pub fn knob(&mut self, library: &str, knob: &str, value: &str) {
        self.ok(&format!("knob {library} {knob} {value}"));
    }

    pub fn calls(&mut self, library: &str, function: &str) -> u64 {
        self.number(&format!("calls {library} {function}"))
    }

    /// Makes the end close its engine and end, having given back all that its libraries gave out.
    pub fn end(mut self) {
        self.ok("close");
        self.ends_well();
        let audit = std::fs::read_to_string(&self.audit).unwrap_or_default();
        assert!(audit.is_empty(), "{audit}");
    }
}

impl Deref for End {
    type Target = Role;

    fn deref(&self) -> &Role {
        &self.role
    }
}

impl DerefMut for End {
    fn deref_mut(&mut self) -> &mut Role {
        &mut self.role
    }
}

fn take(path: &str) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    std::fs::remove_file(path).unwrap();
    bytes
}

/// A folder that is removed with its test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("devices-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Two connected processes; `a` initiates.
pub struct Ends {
    pub a: End,
    pub b: End,
    /// The handle of `b` at `a`.
    pub peer: PeerId,
    pub folder: Folder,
}

impl Ends {
    pub fn new(settings: &str) -> Ends {
        Ends::of(NEW, NEW, settings)
    }

    pub fn of(at_a: (&str, &str), at_b: (&str, &str), settings: &str) -> Ends {
        Ends::apart((at_a, at_b), |_| settings.into())
    }

    /// Starts the ends, each with settings of its own.
    pub fn apart((at_a, at_b): ((&str, &str), (&str, &str)), settings: impl Fn(usize) -> String) -> Ends {
        let folder = Folder::new();
        let (mut a, b) = (End::new(&folder.0, at_a, &settings(0)), End::new(&folder.0, at_b, &settings(1)));
        let peer = a.number(&format!("connect {}", b.address));
        Ends { a, b, peer: PeerId::from_raw(peer), folder }
    }

    /// Starts the ends in pid namespaces of their own, so that both have the same pid. None where namespaces are not
    /// allowed.
    pub fn in_namespaces(what: &str, settings: &str) -> Option<Ends> {
        if !Command::new(UNSHARE[0])
            .args(&UNSHARE[1..])
            .arg("true")
            .status()
            .is_ok_and(|status| status.success())
        {
            eprintln!("SKIPPED {what}: this process may make no pid namespaces (unshare)");
            return None;
        }
        let folder = Folder::new();
        let [mut a, b] = [0, 1].map(|_| End::started(&folder.0, NEW, settings, true));
        let peer = a.number(&format!("connect {}", b.address));
        Some(Ends { a, b, peer: PeerId::from_raw(peer), folder })
    }

    /// Allocates memory of `a`, and memory of `b` that has been announced to `a`.
    #[track_caller]
    pub fn places(&mut self, (here, there): (&str, &str), bytes: usize) -> (Memory, Memory) {
        let (local, remote) = (self.a.place(here, bytes), self.b.place(there, bytes));
        self.a.ok(&format!("knows {} {}", self.peer, remote.region));
        (local, remote)
    }

    /// Submits a transfer, and returns its number.
    #[track_caller]
    pub fn submit(&mut self, op: Op, flags: &str, requests: &str) -> u64 {
        self.a.number(&format!("submit {op:?} {} {flags} {requests}", self.peer))
    }

    /// Waits for a transfer, and returns its outcome.
    #[track_caller]
    pub fn wait(&mut self, transfer: u64) -> Ended {
        Ended::parse(&self.a.ask(&format!("wait {transfer}")))
    }

    #[track_caller]
    pub fn run(&mut self, op: Op, flags: &str, requests: &str) -> Ended {
        let transfer = self.submit(op, flags, requests);
        self.wait(transfer)
    }

    /// Moves `spans` and checks every byte of both memories.
    #[track_caller]
    pub fn case(&mut self, what: &str, op: Op, flags: &str, local: Memory, remote: Memory, spans: &[Span]) {
        let what = format!("{what} {op:?} {flags} {} requests", spans.len());
        let ended = self.attempt(op, flags, local, remote, spans);
        let bytes: usize = spans.iter().map(|span| span.2).sum();
        assert_eq!(
            (ended.state.as_str(), ended.bytes, ended.requests.as_str()),
            ("Done", bytes as u64, "OK/0"),
            "{what}"
        );
        self.assert_moved(&what, op, local, remote, spans);
    }

    /// Fills both memories anew, and moves `spans`.
    #[track_caller]
    pub fn attempt(&mut self, op: Op, flags: &str, local: Memory, remote: Memory, spans: &[Span]) -> Ended {
        self.fill(local, remote);
        self.run(op, flags, &list(local, remote, spans))
    }

    /// Fills both memories as `case` and `assert_moved` expect before a transfer.
    pub fn fill(&mut self, local: Memory, remote: Memory) {
        self.a.fill(local, 1);
        self.b.fill(remote, 2);
    }

    /// Asserts that the bytes named in `spans` have moved, and no other byte of either memory has changed.
    #[track_caller]
    pub fn assert_moved(&mut self, what: &str, op: Op, local: Memory, remote: Memory, spans: &[Span]) {
        let (mut here, mut there) = (pattern(1, local.bytes), pattern(2, remote.bytes));
        for &(at, to, length) in spans {
            match op {
                Op::Write => there[to..to + length].copy_from_slice(&here[at..at + length]),
                Op::Read => here[at..at + length].copy_from_slice(&there[to..to + length]),
            }
        }
        check(&format!("{what}, here"), &self.a.contents(local), &here);
        check(&format!("{what}, there"), &self.b.contents(remote), &there);
    }

    /// Closes both engines; memory that a device may still write to is kept.
    pub fn close(mut self) {
        self.a.ok("close");
        self.b.ok("close");
    }

    /// Ends both processes in order.
    pub fn end(self) {
        let Ends { a, b, folder, .. } = self;
        a.end();
        b.end();
        drop(folder);
    }
}

/// The outcome of a transfer.
#[derive(Debug)]
pub struct Ended {
    pub state: String,
    pub status: String,
    pub fence: String,
    pub bytes: u64,
    /// Status and library's code of the requests; neighbours with the same values are given once.
    pub requests: String,
    /// The transport that carried the last data.
    pub transport: String,
}

impl Ended {
    #[track_caller]
    fn parse(answer: &str) -> Ended {
        let words: Vec<&str> = answer.split(' ').collect();
        let [state, status, fence, bytes, requests, transport] = words[..] else { panic!("wait: {answer}") };
        let bytes = bytes.parse().unwrap_or_else(|_| panic!("wait: {answer}"));
        let text = str::to_owned;
        let [state, status, fence, requests, transport] =
            [state, status, fence, requests, transport].map(text);
        Ended { state, status, fence, bytes, requests, transport }
    }
}

/// Returns a command that runs a program as process 1 of a pid namespace, and kills the program when it is killed.
const UNSHARE: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];

/// Formats requests as a process takes them.
pub fn list(local: Memory, remote: Memory, spans: &[Span]) -> String {
    let one = |&(at, to, length): &Span| {
        let (here, there) = (local.address + at as u64, remote.address + to as u64);
        format!("{here}:{there}:{length}:{}", remote.region)
    };
    spans.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Returns one span that covers the whole memory.
pub fn whole(memory: Memory) -> Vec<Span> {
    vec![(0, 0, memory.bytes)]
}

/// Returns blocks permuted on both sides, at odd places and with gaps: no two can be merged.
pub fn scattered(random: &mut Random, count: usize, length: usize) -> Vec<Span> {
    let stride = length + 16;
    let (at, to) = (random.permutation(count), random.permutation(count));
    at.iter().zip(&to).map(|(a, b)| (a * stride, b * stride + 5, length - a % length.min(4))).collect()
}
