//! Measures a pool of two processes on this host: exists, get and put beside the engine's own transfers of the same bytes.
//!
//! ```text
//! cargo run --release -p ferry-pool --example pool_speed [TRANSPORTS]
//! ```
//! One process lends memory, the other is a client. The rows alternate with the engine's own, and each value is checked.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferry::{Access, Config, Engine, Memory, RegionOptions, Request, TransferOptions};
use ferry_pool::{Digest, Identity, Keyspace, Outcome, Pool, PoolOptions, PutOptions, Value};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
const LENT: u64 = 256 << 20;

fn engine(transports: &str) -> Engine {
    let mut config = Config::default();
    config.set("allow_unauthenticated", "true").unwrap();
    if !transports.is_empty() {
        config.set("transports", transports).unwrap();
    }
    Engine::open(config).unwrap()
}

fn key(number: u64) -> Digest {
    let space = Keyspace::new("t", &Identity { model: "speed".into(), ..Identity::default() }).unwrap();
    space.own(&number.to_le_bytes()).unwrap()
}

fn serve(transports: &str) {
    let engine = engine(transports);
    let options = PoolOptions { memory_bytes: LENT, ..PoolOptions::default() };
    let pool = Pool::open(&engine, options).unwrap();
    let named = RegionOptions { access: Access::BOTH, name: "raw".into(), ..RegionOptions::default() };
    let _raw = engine.alloc(64 << 20, &named).unwrap();
    println!("{}", engine.address());
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    pool.close(PATIENCE).unwrap();
}

struct Client {
    engine: Engine,
    pool: Pool,
    memory: Memory,
    next: u64,
}

impl Client {
    fn values(&self, bytes: usize, first: u64, count: usize) -> Vec<Value> {
        let at = |nth: usize| self.memory.address() + (nth * bytes) as u64;
        (0..count)
            .map(|nth| Value { key: key(first + nth as u64), memory: vec![(at(nth), bytes as u64)] })
            .collect()
    }

    fn mark(&self, bytes: usize, first: u64, count: usize) {
        for nth in 0..count {
            self.memory.write(nth * bytes, &(first + nth as u64).to_le_bytes());
            self.memory.write((nth + 1) * bytes - 8, &(!(first + nth as u64)).to_le_bytes());
        }
    }

    fn check(&self, bytes: usize, first: u64, count: usize) {
        for nth in 0..count {
            let mut word = [0; 8];
            self.memory.read(nth * bytes, &mut word);
            assert_eq!(u64::from_le_bytes(word), first + nth as u64);
            self.memory.read((nth + 1) * bytes - 8, &mut word);
            assert_eq!(u64::from_le_bytes(word), !(first + nth as u64));
        }
    }
}

fn row(name: &str, mut times: Vec<f64>, beside: Option<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let ratio = beside
        .map(|other| format!("  {:.2} of the engine's {other:.1}", other / at(0.5)))
        .unwrap_or_default();
    println!("{name:32} p50 {:9.1} us  p99 {:9.1} us{ratio}", at(0.5), at(0.99));
    at(0.5)
}

fn timed(rounds: usize, mut what: impl FnMut(usize)) -> Vec<f64> {
    (0..rounds)
        .map(|round| {
            let began = Instant::now();
            what(round);
            began.elapsed().as_secs_f64() * 1e6
        })
        .collect()
}

fn measure(mut client: Client, peer: ferry::PeerId) {
    let raw = client.engine.peer_region(peer, "raw").unwrap();
    let keys: Vec<Digest> = (0..1000).map(|nth| key(1 << 40 | nth)).collect();
    for count in [1, 1000] {
        let times = timed(3000 / count.min(10), |_| {
            drop(client.pool.exists(&keys[..count], false, PATIENCE).unwrap())
        });
        row(&format!("exists of {count}"), times, None);
    }
    for (bytes, count, rounds) in [
        (4096, 1, 2000),
        (65_536, 1, 2000),
        (1 << 20, 1, 300),
        (16 << 20, 1, 40),
        (65_536, 64, 200),
        (1 << 20, 32, 30),
    ] {
        let request = |nth: usize| Request {
            local: client.memory.address() + (nth * bytes) as u64,
            remote: raw.address + (nth * bytes) as u64,
            length: bytes as u64,
            ..Request::default()
        };
        let requests: Vec<Request> = (0..count).map(request).collect();
        let options = TransferOptions::default();
        let name = format!("{count} x {} KiB", bytes >> 10);
        let mut own = timed(rounds, |_| assert!(client.engine.write(peer, &requests, &options).is_ok()));
        own.sort_by(f64::total_cmp);
        let first = client.next;
        let times = timed(rounds, |round| {
            let first = first + (round * count) as u64;
            client.mark(bytes, first, count);
            let ends = client
                .pool
                .put(&client.values(bytes, first, count), &PutOptions::default(), PATIENCE)
                .unwrap();
            assert!(ends.iter().all(|end| end.outcome == Outcome::Ok), "{ends:?}");
        });
        row(&format!("put {name}"), times, Some(own[own.len() / 2]));
        let mut own = timed(rounds, |_| assert!(client.engine.read(peer, &requests, &options).is_ok()));
        own.sort_by(f64::total_cmp);
        let kept = ((LENT * 3 / 4) as usize / bytes / count).min(rounds);
        let times = timed(kept, |round| {
            let first = first + ((rounds - kept + round) * count) as u64;
            let ends = client.pool.get(&client.values(bytes, first, count), PATIENCE).unwrap();
            assert!(ends.iter().all(|end| end.outcome == Outcome::Ok), "{ends:?}");
            client.check(bytes, first, count);
        });
        row(&format!("get {name}"), times, Some(own[own.len() / 2]));
        client.next += (rounds * count) as u64;
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let transports = args.get(1).map(String::as_str).unwrap_or("").to_owned();
    if args.get(2).is_some_and(|word| word == "serve") {
        return serve(&transports);
    }
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args([&transports, "serve"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let address = address.trim().to_owned();
    let engine = engine(&transports);
    let peer = engine.connect(&address, PATIENCE).unwrap();
    let pool = Pool::open(&engine, PoolOptions { nodes: vec![address], ..PoolOptions::default() }).unwrap();
    pool.wait_for_nodes(2, PATIENCE).unwrap();
    let memory =
        engine.alloc(64 << 20, &RegionOptions { access: Access::BOTH, ..RegionOptions::default() }).unwrap();
    measure(Client { engine: engine.clone(), pool, memory, next: 1 }, peer);
    drop(server.stdin.take());
    server.wait().unwrap();
}
