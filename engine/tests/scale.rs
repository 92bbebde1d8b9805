//! A thousand peers of one engine: all connect at once, each is reached, and a connection costs little. The peers live
//! in child processes, which run this test again with a hub to connect to.

mod common;

use common::data::pattern;
use common::process::{cpu_time_idle, raise_descriptor_limit, status, thread_cpu_time};
use common::{engine, eventually, wait_for_region, PATIENCE};
use ferry::notify::{EventBody, WHAT_PEERS};
use ferry::types::{Op, Request};
use ferry::{Engine, Memory, RegionOptions, State, Status, TransferOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PEERS: usize = 1000;
const CHILDREN: usize = 4;
const BYTES: usize = 4096;
/// Tells a child where the hub is.
const HUB: &str = "FERRY_TEST_HUB";
const IDLE: Duration = Duration::from_secs(2);
/// The default of keepalive_ms.
const KEEPALIVE_MS: u64 = 60_000;
/// Questions that an engine asks in one turn in this test.
const AT_ONCE: usize = 6;
/// Two is usual: twice as many questions, or twice the work for each, are too much.
const QUESTIONS_OVER_BARE: u32 = 4;

struct Brood(Vec<Child>);

impl Brood {
    fn start(hub: &str, keepalive_ms: u64) -> Brood {
        let start = |_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child", "--nocapture"])
                .env(HUB, hub)
                .env("FERRY_KEEPALIVE_MS", keepalive_ms.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        Brood((0..CHILDREN).map(start).collect())
    }

    /// Makes every child do the next step, and waits until all have done it.
    fn step(&mut self, word: &str) {
        for child in &mut self.0 {
            writeln!(child.stdin.as_mut().unwrap(), "{word}").unwrap();
        }
        for child in &mut self.0 {
            let mut lines = BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).lines();
            let answer = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(word)));
            assert!(answer.is_some(), "a child ended before {word:?}");
        }
    }
}

impl Drop for Brood {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A child ends when its standard input does.
            drop(child.stdin.take());
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs in a child: opens engines that connect to the hub, all at once, and stay.
#[test]
fn child() {
    let Ok(hub) = std::env::var(HUB) else { return };
    raise_descriptor_limit();
    let mut words = std::io::stdin().lines().map_while(Result::ok);
    let settings = [("workers", "1"), ("listen_address", ""), ("tcp_poller", "epoll")];
    let engines: Vec<Engine> = (0..PEERS / CHILDREN).map(|_| engine(&settings)).collect();
    let options = RegionOptions { name: "mine".into(), ..RegionOptions::default() };
    let memories: Vec<Memory> = engines.iter().map(|engine| engine.alloc(BYTES, &options).unwrap()).collect();
    assert_eq!(words.next().as_deref(), Some("ready"));
    println!("ready");
    assert_eq!(words.next().as_deref(), Some("connect"));
    let queues: Vec<_> = engines.iter().map(|engine| engine.queue(WHAT_PEERS, 4).unwrap()).collect();
    for (engine, queue) in engines.iter().zip(&queues) {
        engine.connect_async(&hub, Some(PATIENCE), queue, 0).unwrap();
    }
    for queue in queues {
        let mut events = Vec::new();
        eventually("the hub answers", || {
            queue.drain(&mut events, 4);
            events.iter().any(|event| match &event.body {
                EventBody::PeerConnect { status, .. } => {
                    assert_eq!(*status, Status::Ok);
                    true
                }
                _ => false,
            })
        });
    }
    println!("connect");
    // Until the hub closes the input.
    let _ = std::io::stdin().read(&mut [0]);
    drop(memories);
}

#[test]
fn a_thousand_peers() {
    let descriptors = raise_descriptor_limit();
    if descriptors < 8 * PEERS as u64 {
        println!("SKIPPED: {PEERS} peers need {} descriptors, the limit is {descriptors}", 8 * PEERS);
        return;
    }
    let hub = engine(&[]);
    let mut brood = Brood::start(hub.address(), KEEPALIVE_MS);
    brood.step("ready");
    let (threads, memory_kib) = (status("Threads"), status("VmRSS"));
    let before = Instant::now();
    brood.step("connect");
    let connecting = before.elapsed();
    assert_eq!(hub.peers().unwrap().len(), PEERS);
    eventually("all are up here too", || hub.stats().unwrap().peers_up == PEERS as u64);
    let more_kib = status("VmRSS").saturating_sub(memory_kib);
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    println!("{PEERS} peers connected in {connecting:?}; {descriptors} descriptors");
    println!("threads: {} before, {} after; memory: {more_kib} KiB more", threads, status("Threads"));
    // The first peer brings the threads that peers need: of lanes, and of device memory.
    let workers = 2 * std::thread::available_parallelism().unwrap().get().min(4) as u64;
    assert_eq!(status("Threads"), threads + workers + 1, "further peers bring no threads");
    assert!(more_kib < 64 * PEERS as u64, "{more_kib} KiB for {PEERS} idle peers");
    assert!(connecting < Duration::from_secs(30), "{connecting:?}");

    let idle = cpu_time_idle(IDLE).min(cpu_time_idle(IDLE));
    println!("idle: {idle:?} of CPU in {IDLE:?}");
    assert!(idle < IDLE / 1000, "{idle:?} of {IDLE:?}");

    reach_all(&hub);
    println!("after a transfer to each: {} KiB more", status("VmRSS").saturating_sub(memory_kib));
    drop((brood, hub));
    keep_alive();
}

/// Measures at a higher rate than the default's how much CPU the questions to silent peers take: each peer is asked
/// once in the period. What the kernel takes of it differs by machine, so the bound is a ratio to bare sockets.
fn keep_alive() {
    const FASTER: u64 = 10;
    let often = KEEPALIVE_MS / FASTER;
    let hub = engine(&[("keepalive_ms", &often.to_string())]);
    let mut brood = Brood::start(hub.address(), often);
    brood.step("ready");
    brood.step("connect");
    eventually("all are up", || hub.stats().unwrap().peers_up == PEERS as u64);
    let lost = || hub.stats().unwrap().counts.sessions_lost;
    let period = Duration::from_millis(often * 2 / 3);
    let took = cpu_time_idle(period).min(cpu_time_idle(period));
    println!("keepalive_ms={often}: {took:?} of CPU in {period:?}");
    assert_eq!((lost(), hub.stats().unwrap().peers_up), (0, PEERS as u64), "all of them answer");
    let bare = bare_questions().min(bare_questions());
    println!("as many questions and answers over bare sockets: {bare:?}, {:.2}", took.div_duration_f64(bare));
    assert!(
        took > Duration::ZERO && took < QUESTIONS_OVER_BARE * bare,
        "{took:?}, bare sockets take {bare:?}"
    );
}

/// Returns the CPU time that a thread takes to ask each of a thousand sockets a few bytes and read the answer, some at
/// a time and with caches as cold as those of an engine that rests in between: what the kernel alone costs on this
/// machine.
fn bare_questions() -> Duration {
    const BYTES: usize = 64;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut asking: Vec<TcpStream> = Vec::new();
    let mut answering: Vec<TcpStream> = Vec::new();
    for _ in 0..PEERS {
        asking.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        answering.push(listener.accept().unwrap().0);
        asking.last().unwrap().set_nodelay(true).unwrap();
        answering.last().unwrap().set_nodelay(true).unwrap();
    }
    let answers = std::thread::spawn(move || {
        let mut question = [0; BYTES];
        for stream in &mut answering {
            stream.read_exact(&mut question).unwrap();
            stream.write_all(&question).unwrap();
        }
    });
    let before = thread_cpu_time();
    for some in asking.chunks_mut(AT_ONCE) {
        some.iter_mut().for_each(|stream| stream.write_all(&[1; BYTES]).unwrap());
        some.iter_mut().for_each(|stream| stream.read_exact(&mut [0; BYTES]).unwrap());
        // The caches cool down, as between the questions of an engine.
        std::thread::sleep(Duration::from_millis(10));
    }
    let took = thread_cpu_time() - before;
    answers.join().unwrap();
    took
}

/// WRITEs a different pattern to every peer, all in flight together, and READs them back.
fn reach_all(hub: &Engine) {
    let peers = hub.peers().unwrap();
    let options = RegionOptions::default();
    let (out, back) =
        (hub.alloc(PEERS * BYTES, &options).unwrap(), hub.alloc(PEERS * BYTES, &options).unwrap());
    let image = pattern(1, PEERS * BYTES);
    out.write(0, &image);
    let remotes: Vec<_> = peers
        .iter()
        .map(|peer| {
            let regions = hub.peer_regions(*peer).unwrap();
            assert_eq!((regions.len(), regions[0].name.as_str()), (1, "mine"));
            wait_for_region(hub, *peer, regions[0].region);
            regions[0].clone()
        })
        .collect();
    let before = Instant::now();
    for (op, memory) in [(Op::Write, &out), (Op::Read, &back)] {
        let transfers: Vec<_> = (0..PEERS)
            .map(|number| {
                let remote = &remotes[number];
                let one = Request {
                    local: memory.address() + (number * BYTES) as u64,
                    remote: remote.address,
                    length: BYTES as u64,
                    remote_region: remote.region,
                };
                hub.submit(peers[number], op, &[one], &TransferOptions::default()).unwrap()
            })
            .collect();
        for transfer in transfers {
            assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
        }
    }
    println!("a WRITE to each and a READ from each: {:?}", before.elapsed());
    common::data::check("back from all", &common::data::contents(&back), &image);
}
