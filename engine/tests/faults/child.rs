//! Engines in other processes. A child is this test binary again, running only `child_role`, which obeys
//! one command per line and answers with one line. It ends with its input, so none outlives a test.

use crate::role;
use crate::support::{config, fill, pattern, rounds};
use ferry::internals::sys::unix;
use ferry::notify::{EventBody, WHAT_PEERS};
use ferry::types::{Op, PeerId, RegionId, Transport};
use ferry::{Deadline, Engine, Memory, RegionOptions, TransferOptions};
use std::io::{BufRead, ErrorKind, Write};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

const ROLE: &str = "FAULTS_CHILD";

/// A child in its role; the answer of an error is its status.
pub struct Child(role::Role);

impl Deref for Child {
    type Target = role::Role;

    fn deref(&self) -> &role::Role {
        &self.0
    }
}

impl DerefMut for Child {
    fn deref_mut(&mut self) -> &mut role::Role {
        &mut self.0
    }
}

impl Child {
    pub fn start() -> Child {
        Child(role::Role::start("child::child_role", |command| {
            command.env(ROLE, "1");
        }))
    }

    /// Starts a child that is the first process of its own pid namespace.
    pub fn in_pid_namespace() -> Child {
        let unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
        Child(role::Role::start_under(&unshare, "child::child_role", |command| {
            command.env(ROLE, "1");
        }))
    }

    /// Starts a child with an open engine.
    pub fn engine(settings: &str) -> (Child, String) {
        let mut child = Child::start();
        let address = child.ask(&format!("open {settings}"));
        (child, address)
    }

    /// Starts a child that always writes the `bytes` of its memory, of seed 3, to `target` of `engine`.
    pub fn flooding(settings: &str, engine: &Engine, target: &Memory, bytes: usize) -> Child {
        let (mut child, _) = Child::engine(settings);
        child.alloc(bytes, 3);
        let peer = child.number(&format!("connect {}", engine.address()));
        child.ask(&format!("flood {peer} {} {} {bytes}", target.region(), target.address()));
        child
    }

    /// Allocates memory of the child; returns (region, address).
    #[track_caller]
    pub fn alloc(&mut self, bytes: usize, seed: u64) -> (RegionId, u64) {
        self.memory(&format!("alloc {bytes} {seed}"))
    }

    /// Registers memory that ferry did not allocate; returns (region, address).
    #[track_caller]
    pub fn own(&mut self, bytes: usize) -> (RegionId, u64) {
        self.memory(&format!("own {bytes}"))
    }

    #[track_caller]
    fn memory(&mut self, command: &str) -> (RegionId, u64) {
        let answer = self.ask(command);
        let (region, address) = answer.split_once(' ').unwrap_or_else(|| panic!("{command}: {answer}"));
        (RegionId::from_raw(region.parse().unwrap()), address.parse().unwrap())
    }

    /// Reads the child's memory from outside, also while it is stopped.
    pub fn peek(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0u8; bytes];
        let mut done = 0;
        while done < bytes {
            let local = libc::iovec { iov_base: out[done..].as_mut_ptr().cast(), iov_len: bytes - done };
            let remote = libc::iovec { iov_base: (address as usize + done) as *mut _, iov_len: bytes - done };
            // SAFETY: `local` is the rest of `out`; the remote side is checked by the kernel.
            let count = unsafe { libc::process_vm_readv(self.pid(), &local, 1, &remote, 1, 0) };
            assert!(count > 0, "{}", std::io::Error::last_os_error());
            done += count as usize;
        }
        out
    }
}

impl Child {
    /// Writes zeros over the child's memory from outside, also while it is stopped.
    pub fn empty(&self, address: u64, bytes: usize) {
        let zeros = vec![0u8; bytes];
        let mut done = 0;
        while done < bytes {
            let local = libc::iovec { iov_base: zeros[done..].as_ptr() as *mut _, iov_len: bytes - done };
            let remote = libc::iovec { iov_base: (address as usize + done) as *mut _, iov_len: bytes - done };
            // SAFETY: `local` is the rest of `zeros`, and only read; the kernel checks the remote side.
            let count = unsafe { libc::process_vm_writev(self.pid(), &local, 1, &remote, 1, 0) };
            assert!(count > 0, "{}", std::io::Error::last_os_error());
            done += count as usize;
        }
    }
}

/// The child's state.
#[derive(Default)]
struct Role {
    engine: Option<Engine>,
    memories: Vec<Memory>,
    own: Vec<Box<[u64]>>,
    events: Option<Arc<ferry::notify::Queue>>,
    rounds: Arc<AtomicU64>,
    hoard: Vec<std::fs::File>,
}

fn status(result: ferry::status::Result<impl ToString>) -> String {
    result
        .map_or_else(|error| format!("{} errno {}", error.status, error.os_error), |value| value.to_string())
}

/// Not a test: the other process of a test.
#[test]
#[ignore = "the other process of a test"]
fn child_role() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut role = Role::default();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = role.obey(&words);
        println!("@@ {answer}");
        std::io::stdout().flush().unwrap();
    }
    // The parent is gone or has seen enough: no orderly end.
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(0) };
}

impl Role {
    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    fn obey(&mut self, words: &[&str]) -> String {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "open" => {
                let settings: Vec<(&str, &str)> =
                    words[1..].iter().map(|word| word.split_once('=').unwrap()).collect();
                let engine = Engine::open(config(&settings));
                let answer = status(engine.as_ref().map(|engine| engine.address()).map_err(Clone::clone));
                self.engine = engine.ok();
                self.events = self.engine.as_ref().map(|engine| engine.queue(WHAT_PEERS, 64).unwrap());
                answer
            }
            "alloc" => match self.engine().alloc(number(1) as usize, &RegionOptions::default()) {
                Err(error) => error.status.to_string(),
                Ok(memory) => {
                    if number(2) != 0 {
                        fill(&memory, number(2));
                    }
                    let answer = format!("{} {}", memory.region(), memory.address());
                    self.memories.push(memory);
                    answer
                }
            },
            // Registers memory of the child's own; otherwise like alloc.
            "own" => {
                let mut memory = vec![0u64; number(1) as usize / 8].into_boxed_slice();
                let address = memory.as_mut_ptr();
                // SAFETY: kept until the process ends; nothing here refers to its bytes again.
                let region = unsafe {
                    self.engine().register(address.cast(), number(1) as usize, &RegionOptions::default())
                };
                self.own.push(memory);
                region.map_or_else(
                    |error| error.status.to_string(),
                    |region| format!("{region} {}", address as u64),
                )
            }
            // Answers the chosen path, and the state of the same-host path.
            "path" => {
                let paths = self.engine().peer_paths(PeerId::from_raw(number(1))).unwrap();
                let chosen =
                    paths.iter().find(|path| path.chosen).map_or("none", |path| path.transport.name());
                let local = paths.iter().find(|path| path.transport == Transport::Local).unwrap();
                format!("{chosen}; {}", local.why)
            }
            "connect" => status(self.engine().connect(words[1], Some(Duration::from_secs(5)))),
            // write PEER REGION ADDRESS BYTES: the first memory, once.
            "write" => {
                let requests = rounds(
                    self.memories[0].address(),
                    number(3),
                    RegionId::from_raw(number(2)),
                    number(4) as usize,
                    1,
                );
                status(
                    self.engine()
                        .write(PeerId::from_raw(number(1)), &requests, &TransferOptions::default())
                        .map(|result| result.bytes_confirmed),
                )
            }
            // flood PEER REGION ADDRESS BYTES: the first memory, again and again, in the background.
            "flood" => {
                let (engine, counter) = (self.engine().clone(), self.rounds.clone());
                let requests = rounds(
                    self.memories[0].address(),
                    number(3),
                    RegionId::from_raw(number(2)),
                    number(4) as usize,
                    4,
                );
                let peer = number(1);
                std::thread::spawn(move || {
                    let options = TransferOptions {
                        no_coalesce: true,
                        deadline: Deadline::Never,
                        ..TransferOptions::default()
                    };
                    while let Ok(transfer) =
                        engine.submit(PeerId::from_raw(peer), Op::Write, &requests, &options)
                    {
                        let _ = transfer.wait(None);
                        counter.fetch_add(1, Ordering::SeqCst);
                    }
                });
                "OK".into()
            }
            "rounds" => self.rounds.load(Ordering::SeqCst).to_string(),
            "refill" => {
                let memory = &self.memories[0];
                memory.write(0, &pattern(number(1), 0, memory.length()));
                "OK".into()
            }
            "unregister" => {
                let timeout = Some(Duration::from_millis(number(2)));
                status(self.memories[number(1) as usize].unregister(timeout).map(|()| "OK"))
            }
            "fence" => status(
                self.engine().fence(PeerId::from_raw(number(1)), Some(Duration::from_secs(5))).map(|()| "OK"),
            ),
            "peers" => {
                let peers = self.engine().peers().unwrap();
                peers.iter().map(PeerId::to_string).collect::<Vec<_>>().join(" ")
            }
            // Waits for the next peer event.
            "event" => {
                let queue = self.events.clone().unwrap();
                let mut out = Vec::new();
                crate::support::wait_until("a peer event comes", || queue.drain(&mut out, 1) == 1);
                match &out[0].body {
                    EventBody::PeerUp { .. } => "PEER_UP".into(),
                    EventBody::PeerLost { status, .. } => format!("PEER_LOST {status}"),
                    EventBody::LateApply { .. } => "LATE_APPLY".into(),
                    other => format!("{other:?}"),
                }
            }
            "stat" => {
                let counts = self.engine().stats().unwrap().counts;
                match words[1] {
                    "lanes_lost" => counts.lanes_lost,
                    "late_applies" => counts.late_applies,
                    "bytes_applied" => counts.bytes_applied,
                    "bytes_local" => counts.bytes_local,
                    other => panic!("{other}"),
                }
                .to_string()
            }
            // Allows at most this many descriptors more than are open now.
            "nofile" => {
                let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
                let limit = libc::rlimit { rlim_cur: open + number(1), rlim_max: open + 4096 };
                // SAFETY: `limit` is read during the call.
                let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
                format!("{result}")
            }
            // Opens descriptors until there are none left.
            "hoard" => {
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    self.hoard.push(file);
                }
                self.hoard.len().to_string()
            }
            "release" => {
                let keep = self.hoard.len().saturating_sub(number(1) as usize);
                self.hoard.truncate(keep);
                "OK".into()
            }
            // A network namespace of its own, with its own loopback.
            "own_network" => own_network().to_string(),
            // crowd NAME KIND COUNT: opens so many connections to a socket in the abstract namespace, and keeps them.
            "crowd" => {
                let kind = if words[2] == "packets" { unix::PACKETS.into() } else { unix::Type::STREAM };
                for _ in 0..number(3) {
                    let mut socket = unix::connect_abstract(words[1].as_bytes(), kind);
                    // The backlog is full; the engine accepts from it all the time.
                    while socket.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                        std::thread::yield_now();
                        socket = unix::connect_abstract(words[1].as_bytes(), kind);
                    }
                    self.hoard.push(socket.unwrap().into());
                }
                self.hoard.len().to_string()
            }
            "setuid" => {
                // SAFETY: no memory is involved.
                unsafe { libc::setuid(number(1) as u32) }.to_string()
            }
            // Limits the processes and threads of this user; the limit does not bind root.
            "nproc" => {
                let limit = libc::rlimit { rlim_cur: number(1), rlim_max: 4096 };
                // SAFETY: `limit` is read during the call.
                unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &limit) }.to_string()
            }
            // Forks a child that lives until it is killed, without copies of its input and output: the test finds the
            // child's end by those.
            "fork" => {
                // SAFETY: the child closes two descriptors and sleeps; it runs nothing else.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    loop {
                        // SAFETY: no memory is involved.
                        unsafe {
                            libc::close(0);
                            libc::close(1);
                            libc::pause();
                        }
                    }
                }
                pid.to_string()
            }
            "close" => status(self.engine().close(Some(Duration::from_secs(10))).map(|()| "OK")),
            "usage" => usage(),
            other => panic!("no such command: {other}"),
        }
    }
}

/// Gives this thread and threads that it starts a network namespace. Returns the thread, or the errno as a negative
/// number.
fn own_network() -> i32 {
    // SAFETY: no memory is involved.
    let mut result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    if result == 0 {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        // SAFETY: an ifreq is names and numbers: zeros are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        // SAFETY: `request` is read during the call; the socket lives.
        result =
            unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCSIFFLAGS, &request) };
    }
    match result {
        // SAFETY: no arguments, no memory.
        0 => unsafe { libc::gettid() },
        _ => -std::io::Error::last_os_error().raw_os_error().unwrap_or(1),
    }
}

/// Returns descriptors, threads and resident bytes of this process.
pub fn usage() -> String {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    format!("{} {} {}", count("fd"), count("task"), pages * 4096)
}
