//! Transfers of an engine to itself beside a `memcpy` of two threads over the same memory: large batches, of memory
//! that ferry allocated and of the program's own, which the kernel copies because it may fault; and one small transfer.
//! Sides take turns, and the bytes of each are checked. `--rounds N` (11).

use ferry::types::{PeerId, Request};
use ferry::{Config, Engine, RegionOptions, TransferOptions};
use std::time::{Duration, Instant};

const BYTES: usize = 256 << 20;
const BLOCK: usize = 64 << 10;
const BLOCKS: usize = BYTES / BLOCK;
const SMALL_TIMES: u32 = 2_000;

struct Bench {
    engine: Engine,
    own: PeerId,
    rounds: usize,
}

/// Where the bytes are and where they go.
#[derive(Clone, Copy)]
struct Ends {
    from: u64,
    to: u64,
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let rounds =
        words.iter().position(|word| word == "--rounds").and_then(|at| words.get(at + 1)?.parse().ok());
    let mut config = Config::default();
    config.set("listen_address", "").unwrap();
    let engine = Engine::open(config).unwrap();
    let own = engine.own_peer().unwrap();
    let bench = Bench { engine, own, rounds: rounds.unwrap_or(11) };
    let options = RegionOptions::default();
    let ours = [(); 2].map(|()| bench.engine.alloc(BYTES, &options).unwrap());
    bench.all("ferry's memory", Ends { from: ours[0].address(), to: ours[1].address() });
    drop(ours);
    let theirs = [(); 2].map(|()| {
        let memory = vec![1u8; BYTES].leak();
        // SAFETY: the memory is never freed, and no reference to it is used from here on.
        unsafe { bench.engine.register(memory.as_mut_ptr(), BYTES, &options) }.unwrap();
        memory.as_mut_ptr() as u64
    });
    bench.all("the program's memory", Ends { from: theirs[0], to: theirs[1] });
}

impl Bench {
    fn all(&self, what: &str, ends: Ends) {
        let whole = [request(ends, 0, 0, BYTES)];
        // Every block once, none beside its neighbour.
        let scattered: Vec<Request> =
            (0..BLOCKS).map(|at| request(ends, at, at * 389 % BLOCKS, BLOCK)).collect();
        for (shape, requests) in [("one range", &whole[..]), ("blocks of 64 KiB", &scattered)] {
            let mut sides: [Vec<Duration>; 2] = Default::default();
            for round in 0..self.rounds {
                fill(ends.from, round as u8);
                sides[0].push(timed(|| by_memcpy(requests)));
                check(requests);
                fill(ends.from, !round as u8);
                sides[1].push(timed(|| self.write(requests)));
                check(requests);
            }
            let [memcpy, ferry] = sides.map(|times| BYTES as f64 / median(times).as_secs_f64() / 1e9);
            let ratio = ferry / memcpy;
            println!("{what}, {shape}: memcpy {memcpy:.1} GB/s, ferry {ferry:.1} GB/s, ratio {ratio:.2}");
        }
        let small = [request(ends, 0, 0, BLOCK)];
        let took = timed(|| (0..SMALL_TIMES).for_each(|_| self.write(&small)));
        println!("{what}, 64 KiB: {:.1} us", (took / SMALL_TIMES).as_secs_f64() * 1e6);
    }

    fn write(&self, requests: &[Request]) {
        self.engine.write(self.own, requests, &TransferOptions::default()).unwrap();
    }
}

fn request(ends: Ends, from: usize, to: usize, length: usize) -> Request {
    let at = |base: u64, block: usize| base + (block * BLOCK) as u64;
    let (local, remote) = (at(ends.from, from), at(ends.to, to));
    Request { local, remote, length: length as u64, ..Request::default() }
}

fn timed(work: impl FnOnce()) -> Duration {
    let since = Instant::now();
    work();
    since.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Copies half of the bytes on each of two threads.
fn by_memcpy(requests: &[Request]) {
    let half = |one: &Request, nth: u64| {
        let (from, length) = (one.length / 2 * nth, one.length / 2);
        // SAFETY: both ranges are this program's, and nobody has a reference to them.
        unsafe {
            let (from, to) = ((one.local + from) as *const u8, (one.remote + from) as *mut u8);
            std::ptr::copy_nonoverlapping(from, to, length as usize);
        }
    };
    std::thread::scope(|scope| {
        for nth in 0..2 {
            scope.spawn(move || requests.iter().for_each(|one| half(one, nth)));
        }
    });
}

fn words(at: u64, length: u64) -> impl Iterator<Item = *mut u64> {
    (0..length / 8).map(move |nth| (at + 8 * nth) as *mut u64)
}

/// Each word encodes its place and the tag.
fn fill(at: u64, tag: u8) {
    let words = words(at, BYTES as u64).enumerate();
    // SAFETY: the bench's memory, which nobody else accesses now.
    words.for_each(|(nth, word)| unsafe { word.write((nth as u64) << 8 | u64::from(tag)) });
}

fn check(requests: &[Request]) {
    for one in requests {
        // SAFETY: as in `fill`.
        let is_same = |(from, to): (*mut u64, *mut u64)| unsafe { from.read() == to.read() };
        let pairs = words(one.local, one.length).zip(words(one.remote, one.length));
        assert!(pairs.into_iter().all(is_same), "wrong bytes");
    }
}
