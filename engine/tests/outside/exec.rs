//! Programs that take another program's place in its process, by exec: the pid lives on, the memory does not. And
//! programs whose memory is dumped for a long time after their death.

use crate::common::role::{program as this_program, Role};
use ferry::notify::{EventBody, WHAT_PEERS};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Config, Deadline, Engine, Memory, RegionOptions, State, TransferOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ROLE: &str = "OUTSIDE_EXEC";
/// Nothing here takes this long unless it hangs.
pub const BOUND: Duration = Duration::from_secs(30);
const BYTES: usize = 8 << 20;
/// Where the programs have their memory, whatever they are.
const AT: u64 = 0x1000_0000_0000;
/// The byte that each program fills its memory with.
const OLD: u64 = 1 << 40;
const NEW: u64 = 2 << 40;
const INITIATOR: u64 = 3 << 40;
/// What the other process does not see in the first round it may see in the next.
const ROUNDS: usize = 3;

pub fn engine(extra: &[(&str, &str)]) -> Engine {
    let mut config = Config::default();
    let quick = [
        ("transports", "local"),
        ("lease_ms", "400"),
        ("progress_timeout_ms", "500"),
        ("reconnect_timeout_ms", "1000"),
        ("keepalive_ms", "2000"),
    ];
    for (key, value) in quick.iter().chain(extra) {
        config.set(key, value).unwrap();
    }
    Engine::open(config).unwrap()
}

fn words(seed: u64) -> impl Iterator<Item = u64> {
    (0..BYTES as u64 / 8).map(move |word| seed | word)
}

/// Maps memory at `AT` and fills it.
fn map(seed: u64) -> *mut u64 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping, which replaces none, of as many words as are written.
    unsafe {
        let memory = libc::mmap(AT as *mut _, BYTES, rights, flags, -1, 0).cast::<u64>();
        assert_eq!(memory as u64, AT, "{}", std::io::Error::last_os_error());
        words(seed).enumerate().for_each(|(at, word)| memory.add(at).write(word));
        memory
    }
}

pub fn start() -> Role {
    Role::start("exec::program", |command| {
        command.env(ROLE, "1");
    })
}

/// Returns the first word of the memory at `AT` that is not of this seed.
fn strange(child: &Role, seed: u64) -> Option<u64> {
    let mut found = vec![0_u64; BYTES / 8];
    let local = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: BYTES };
    let remote = libc::iovec { iov_base: AT as *mut _, iov_len: BYTES };
    // SAFETY: `found` has as many bytes; the kernel checks the other process's.
    let count = unsafe { libc::process_vm_readv(child.pid(), &local, 1, &remote, 1, 0) };
    assert_eq!(count, BYTES as isize, "{}", std::io::Error::last_os_error());
    found.into_iter().zip(words(seed)).find(|(found, expected)| found != expected).map(|(found, _)| found)
}

fn status(child: &Role, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", child.pid())).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {BOUND:?}");
        std::thread::yield_now();
    }
}

/// Blocks of 4 KiB, none next to the one before it, so that a piece is many slices.
fn requests(local: u64, remote: u64, region: RegionId) -> Vec<Request> {
    let block = 4096;
    let blocks = (BYTES / 4096) as u64;
    let places = (0..blocks).step_by(2).chain((1..blocks).step_by(2));
    let request = |at: u64| Request {
        local: local + at * block,
        remote: remote + at * block,
        length: block,
        remote_region: region,
    };
    places.map(request).collect()
}

/// Not a test: the other program of a test. At the end of its input it ends without an orderly end.
#[test]
#[ignore = "the other program of a test"]
fn program() {
    match std::env::var(ROLE) {
        Ok(what) if what == "successor" => {
            map(NEW);
            answer("ready".into());
            std::io::stdin().lines().map_while(Result::ok).for_each(drop);
        }
        Ok(_) => obey(),
        Err(_) => return,
    }
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(0) };
}

fn answer(text: String) {
    println!("@@ {text}");
    std::io::stdout().flush().unwrap();
}

/// How many transfers of the flood were OK, and how many of the words that READs brought were not the old program's.
static DONE: AtomicU64 = AtomicU64::new(0);
static STRANGE: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

fn obey() {
    let mut engine_here = None;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let engine_of = |engine: &Option<Engine>| engine.clone().unwrap();
        match words[0] {
            "open" => {
                let opened = engine(&[]);
                answer(opened.address().to_owned());
                engine_here = Some(opened);
            }
            // own SEED: the region of the memory at AT.
            "own" => {
                let memory = map(number(1));
                let options = RegionOptions::default();
                // SAFETY: mapped until the program ends; nothing here refers to it.
                let region =
                    unsafe { engine_of(&engine_here).register(memory.cast(), BYTES, &options) }.unwrap();
                answer(region.to_string());
            }
            "connect" => {
                let peer = engine_of(&engine_here).connect(words[1], Some(Duration::from_secs(5)));
                answer(peer.unwrap().to_string());
            }
            // flood write|read PEER REGION ADDRESS: until one fails.
            "flood" => {
                let op = if words[1] == "write" { Op::Write } else { Op::Read };
                let (peer, region) = (PeerId::from_raw(number(2)), RegionId::from_raw(number(3)));
                let (engine, all) = (engine_of(&engine_here), requests(AT, number(4), region));
                std::thread::spawn(move || flood(&engine, op, peer, &all));
                answer("OK".into());
            }
            "done" => answer(DONE.load(Ordering::SeqCst).to_string()),
            "ended" => answer(ENDED.load(Ordering::SeqCst).to_string()),
            "strange" => answer(STRANGE.load(Ordering::SeqCst).to_string()),
            "hide" => answer(crate::unseen::hide().map_or_else(|why| why, |()| "OK".into())),
            // In a folder of its own, with so many untouched pages that the dump takes long.
            "be-large" => answer(be_large(words[1]).map_or_else(|error| error.to_string(), |()| "OK".into())),
            "exec" => {
                let mut command = Command::new(this_program());
                command.args(["--exact", "exec::program", "--ignored", "--nocapture", "--test-threads=1"]);
                let error = command.env(ROLE, "successor").exec();
                answer(error.to_string());
            }
            other => panic!("{other}"),
        }
    }
}

fn flood(engine: &Engine, op: Op, peer: PeerId, all: &[Request]) {
    let options = TransferOptions {
        no_coalesce: true,
        deadline: Deadline::After(Duration::from_secs(20)),
        ..TransferOptions::default()
    };
    while let Ok(transfer) = engine.submit(peer, op, all, &options) {
        if transfer.wait(None).unwrap().state != State::Done {
            break;
        }
        DONE.fetch_add(1, Ordering::SeqCst);
        if op == Op::Read {
            // SAFETY: mapped by `own`, and nothing moves.
            let found = unsafe { std::slice::from_raw_parts(AT as *const u64, BYTES / 8) };
            let strange = found.iter().zip(words(OLD)).filter(|(found, old)| **found != *old).count();
            STRANGE.fetch_add(strange as u64, Ordering::SeqCst);
        }
    }
    ENDED.store(1, Ordering::SeqCst);
}

fn be_large(folder: &str) -> std::io::Result<()> {
    std::env::set_current_dir(folder)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a fresh mapping, of which one byte is touched; the limit lives for its call.
    unsafe {
        if libc::setrlimit(libc::RLIMIT_CORE, &limit) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let large = libc::mmap(std::ptr::null_mut(), 4 << 40, rights, flags, -1, 0).cast::<u8>();
        if large as isize == -1 {
            return Err(std::io::Error::last_os_error());
        }
        large.write(1);
    }
    Ok(())
}

/// Another program is in the target's process while the initiator was stopped in a transfer, and has memory at the same
/// addresses. No byte of the new program is written, and no READ that is OK has one.
#[test]
fn a_program_in_place_of_the_target_is_neither_written_nor_read() {
    for op in ["write", "read"] {
        for round in 0..ROUNDS {
            let (mut target, mut initiator) = (start(), start());
            let address = target.ask("open");
            let region = target.ask(&format!("own {OLD}"));
            initiator.ask("open");
            initiator.ask(&format!("own {INITIATOR}"));
            let peer = initiator.ask(&format!("connect {address}"));
            assert_eq!(initiator.ask(&format!("flood {op} {peer} {region} {AT}")), "OK");
            wait_until("it copies", || initiator.ask("done") != "0");
            initiator.stop();
            assert_eq!(target.ask("exec"), "ready");
            initiator.resume();
            wait_until("the flood ends", || initiator.ask("ended") == "1");
            assert_eq!(
                strange(&target, NEW),
                None,
                "{op}, round {round}: a word of the new program was overwritten"
            );
            assert_eq!(
                initiator.ask("strange"),
                "0",
                "{op}, round {round}: words of the new program in a READ"
            );
        }
    }
}

fn memory(engine: &Engine) -> Memory {
    engine.alloc(BYTES, &RegionOptions::default()).unwrap()
}

/// Starts an initiator that writes to memory of `engine` all the time.
fn flooded(engine: &Engine, memory: &Memory) -> (Role, PeerId) {
    let mut child = start();
    child.ask("open");
    child.ask(&format!("own {INITIATOR}"));
    let peer = child.ask(&format!("connect {}", engine.address()));
    let flood = format!("flood write {peer} {} {}", memory.region(), memory.address());
    assert_eq!(child.ask(&flood), "OK");
    wait_until("it copies", || child.ask("done") != "0");
    let here = engine.peers().unwrap().into_iter().next_back().unwrap();
    (child, here)
}

/// Threads that the exec ended in a copy do not leave: the memory is free all the same, and the loss is told.
#[test]
fn an_initiator_that_execs_in_a_copy_holds_nothing() {
    let engine = engine(&[]);
    let queue = engine.queue(WHAT_PEERS, 64).unwrap();
    for round in 1..=ROUNDS {
        let memory = memory(&engine);
        let (mut child, peer) = flooded(&engine, &memory);
        assert_eq!(child.ask("exec"), "ready");
        memory.free(Some(BOUND)).map_err(|(_, error)| error).unwrap();
        engine.fence(peer, Some(BOUND)).unwrap();
        let (mut lost, mut events) = (false, Vec::new());
        wait_until("PEER_LOST is told", || {
            queue.drain(&mut events, 64);
            lost |= events.drain(..).any(|event| matches!(event.body, EventBody::PeerLost { .. }));
            lost
        });
        assert!(status(&child, "State:").is_some_and(|it| !it.starts_with('Z')), "round {round}: it lives");
    }
    engine.close(Some(BOUND)).unwrap();
}

/// A core dump may take minutes, and its process ends only afterwards. Its threads touch no memory meanwhile.
#[test]
fn an_initiator_whose_memory_is_dumped_holds_nothing() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.is_empty() || pattern.contains(['|', '/', '@']) {
        println!("SKIPPED an_initiator_whose_memory_is_dumped_holds_nothing: core_pattern is {pattern:?}");
        return;
    }
    let engine = engine(&[]);
    for round in 1..=ROUNDS {
        let folder = std::env::temp_dir().join(format!("ferry-core-{}-{round}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let memory = memory(&engine);
        let (mut child, peer) = flooded(&engine, &memory);
        let large = child.ask(&format!("be-large {}", folder.display()));
        if large != "OK" {
            println!("SKIPPED an_initiator_whose_memory_is_dumped_holds_nothing: {large}");
            return;
        }
        child.signal(libc::SIGABRT);
        wait_until("it is dumped", || status(&child, "CoreDumping:").is_some_and(|it| it == "1"));
        engine.fence(peer, Some(BOUND)).unwrap();
        memory.free(Some(BOUND)).map_err(|(_, error)| error).unwrap();
        assert_eq!(
            status(&child, "CoreDumping:").as_deref(),
            Some("1"),
            "round {round}: the dump was too short"
        );
        drop(child);
        std::fs::remove_dir_all(&folder).unwrap();
    }
    engine.close(Some(BOUND)).unwrap();
}
