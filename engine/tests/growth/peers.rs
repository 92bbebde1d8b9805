//! The cost of a peer: memory, CPU time of its connect, CPU time while all are idle.
//!
//! The peers are sessions without an engine: the scripted peer of the hostile tests takes each through the real
//! handshake, Start and Ready, all on one thread of a child process. Every second one opens its express lane: a peer
//! without transfers needs none, and as many descriptors are common. Ten thousand engines would have more threads than
//! the kernel's default allows; `tests/scale.rs` has a thousand real ones.

use crate::hostile::{Hostile, Who, SECRET};
use crate::process::{cpu_time, cpu_time_idle, raise_descriptor_limit, status};
use crate::{give_up, tell};
use ferry::{Config, Engine};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const HUB: &str = "FERRY_GROWTH_HUB";
const CHILDREN: usize = 4;
/// Descriptors of two peers: two control connections and an express lane.
const DESCRIPTORS_OF_TWO: usize = 3;
const IDLE: Duration = Duration::from_secs(2);
/// The engine's CPU time while idle, whatever the number of peers: a thousandth of one core.
const IDLE_MAX: f64 = 0.001;

/// A child's arguments: the engine's address, and how many sessions to open.
pub struct Hub {
    address: String,
    sessions: usize,
}

impl Hub {
    pub fn of_parent() -> Option<Hub> {
        let text = std::env::var(HUB).ok()?;
        let (address, sessions) = text.split_once(' ')?;
        Some(Hub { address: address.to_owned(), sessions: sessions.parse().ok()? })
    }
}

/// Raises the limit of descriptors beyond its maximum too, if this process has the right.
fn need_descriptors(count: usize) {
    let count = count as u64;
    if raise_descriptor_limit() >= count {
        return;
    }
    let limit = libc::rlimit { rlim_cur: count, rlim_max: count };
    // SAFETY: reads one live rlimit.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        give_up(&format!("{count} descriptors are needed; raise the limit (ulimit -n)"));
    }
}

/// Runs in a child: opens its sessions when told, and holds them until its input ends.
pub fn sessions(hub: &Hub) {
    need_descriptors(DESCRIPTORS_OF_TWO * hub.sessions.div_ceil(2) + 100);
    println!("ready");
    let mut words = std::io::stdin().lines().map_while(Result::ok);
    assert_eq!(words.next().as_deref(), Some("connect"));
    let open = |nth: usize| {
        let mut peer = Hostile::dial(&hub.address, &Who::new());
        peer.start();
        peer.ready();
        let lane = (nth % 2 == 0).then(|| peer.lane(0));
        (peer, lane)
    };
    let all: Vec<_> = (0..hub.sessions).map(open).collect();
    println!("connected");
    assert_eq!(words.next(), None);
    drop(all);
}

struct Brood(Vec<Child>);

impl Brood {
    fn start(engine: &Engine, sessions: usize) -> Brood {
        let start = |_| {
            Command::new(std::env::current_exe().unwrap())
                .env(HUB, format!("{} {}", engine.address(), sessions / CHILDREN))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        Brood((0..CHILDREN).map(start).collect())
    }

    fn hear(&mut self, word: &str) {
        for child in &mut self.0 {
            let mut lines = BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).lines();
            let answer = lines.next().and_then(Result::ok);
            assert_eq!(answer.as_deref(), Some(word), "a child ended");
        }
    }

    fn connect(&mut self) {
        for child in &mut self.0 {
            writeln!(child.stdin.as_mut().unwrap(), "connect").unwrap();
        }
        self.hear("connected");
    }
}

impl Drop for Brood {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn measure(size: usize) {
    need_descriptors(DESCRIPTORS_OF_TWO * size.div_ceil(2) + 100);
    let mut config = Config::default();
    // An address for each size: ports of the size before may still be waiting.
    let address = format!("127.0.1.{}:0", size.ilog2());
    let settings = [("transports", "tcp"), ("secret", SECRET), ("listen_address", address.as_str())];
    // The scripted peers answer no Ping after their connect.
    for (key, value) in settings.iter().chain(&[("progress_timeout_ms", "600000"), ("keepalive_ms", "0")]) {
        config.set(key, value).unwrap();
    }
    let engine = Engine::open(config).unwrap();
    let mut brood = Brood::start(&engine, size);
    brood.hear("ready");
    // The first peer brings the threads that all share.
    let first = Hostile::dial(engine.address(), &Who::new());
    let (memory_kib, spent, began) = (status("VmRSS"), cpu_time(), Instant::now());
    brood.connect();
    let is_up = || engine.stats().unwrap().peers_up >= size as u64;
    while !is_up() {
        assert!(began.elapsed() < Duration::from_secs(600), "not all are up");
        std::thread::yield_now();
    }
    let took = began.elapsed();
    let each = |total: f64| total / size as f64;
    tell(size, "memory, KiB", each(status("VmRSS").saturating_sub(memory_kib) as f64));
    tell(size, "connect, us of CPU", each((cpu_time() - spent).as_secs_f64() * 1e6));
    tell(size, "connect beside three others, us (wall)", each(took.as_secs_f64() * 1e6));
    let idle = (0..3).map(|_| cpu_time_idle(IDLE)).min().unwrap().as_secs_f64() / IDLE.as_secs_f64();
    tell(size, "all idle, millionths of a core", idle * 1e6);
    assert!(idle < IDLE_MAX, "{size} idle peers take {idle} of a core");
    drop(first);
}
