//! What copies cost that ferry makes on a CUDA device, beside what a program could do instead: 1,024 scattered
//! blocks of 64 KiB by one `Queue::copy`, against the same bytes as one contiguous copy from and to pinned
//! memory, and against one call for each block. And how long after a stream has got somewhere a transfer
//! that waits for it begins.
//!
//! Sides take turns, and the data of each is checked. `--rounds N` (101); FERRY_CUDA_LIBRARY names another
//! driver library: on the stand-in the figures mean nothing.

use ferry::internals::device::{Direction, Limits, Piece, Queue, Worker};
use ferry::internals::sys::cuda::{Api, Context, DeviceMemory, PinnedMemory, Stream};
use ferry::types::{Location, MemoryKind};
use ferry::Start;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const BLOCK: usize = 64 << 10;
const BLOCKS: usize = 1024;
const BYTES: usize = BLOCK * BLOCKS;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let rounds =
        words.iter().position(|word| word == "--rounds").and_then(|at| words.get(at + 1)?.parse().ok());
    let path = std::env::var("FERRY_CUDA_LIBRARY").unwrap_or_default();
    let driver = match (ferry::internals::transport::cuda::library(&path).open)() {
        Ok(driver) => driver,
        Err(error) => return println!("SKIPPED cuda bench: {error}"),
    };
    let rounds: usize = rounds.unwrap_or(101);
    let api = ferry::internals::sys::cuda::load(&path).unwrap();
    println!("CUDA {}.{} ({})", api.version / 1000, api.version % 1000 / 10, api.name);
    let context = Context::retain(api, 0).unwrap();
    let bench = Bench {
        api,
        device: DeviceMemory::new(&context, BYTES).unwrap(),
        host: PinnedMemory::new(&context, BYTES).unwrap(),
        stream: Stream::new(&context).unwrap(),
        order: scattered(),
    };
    {
        let mut queue = driver.open(0, BYTES, 2).unwrap();
        let _entered = context.enter().unwrap();
        for direction in [Direction::DeviceToHost, Direction::HostToDevice] {
            bench.copies(&mut *queue, direction, rounds);
        }
    }
    let limits = Limits { batch_bytes: BYTES, depth: 2, timeout: Duration::from_secs(10) };
    let worker =
        Worker::start(driver.clone(), Location { kind: MemoryKind::Cuda, device: 0 }, limits).unwrap();
    bench.events(&*driver, &worker, &context, rounds);
    worker.stop();
}

/// Where each block of the host's lies on the device: every block once, none beside its neighbour.
fn scattered() -> Vec<usize> {
    (0..BLOCKS).map(|at| at * 389 % BLOCKS).collect()
}

struct Bench {
    api: &'static Api,
    device: DeviceMemory,
    host: PinnedMemory,
    stream: Stream,
    order: Vec<usize>,
}

impl Bench {
    fn copies(&self, queue: &mut dyn Queue, direction: Direction, rounds: usize) {
        let (device, host) = (self.device.address, self.host.address);
        let pair = |device: u64, host: u64, length: usize| {
            let (from, to) =
                if direction == Direction::DeviceToHost { (device, host) } else { (host, device) };
            Piece { from, to, length: length as u64 }
        };
        let blocks: Vec<Piece> = (0..BLOCKS)
            .map(|at| pair(device + (self.order[at] * BLOCK) as u64, host + (at * BLOCK) as u64, BLOCK))
            .collect();
        let whole = [pair(device, host, BYTES)];
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..rounds as u64 {
            self.fill(direction, round);
            times[0].push(self.check(direction, round, true, || {
                let batch = queue.copy(direction, &blocks).unwrap();
                while !queue.poll_done(batch).unwrap() {
                    std::hint::spin_loop();
                }
            }));
            times[1].push(self.check(direction, round, false, || self.by_calls(direction, &whole)));
            times[2].push(self.check(direction, round, true, || self.by_calls(direction, &blocks)));
        }
        let rate = |times: &[f64]| BYTES as f64 / median(times.to_vec()) / 1e9;
        println!("{direction:?}, GB/s: {BLOCKS} scattered blocks of 64 KiB by ferry {:.1}; one contiguous copy {:.1}; a call for each block {:.1}", rate(&times[0]), rate(&times[1]), rate(&times[2]));
        for (side, name) in [(1, "contiguous"), (2, "block by block")] {
            let mut ratios: Vec<f64> =
                times[side].iter().zip(&times[0]).map(|(other, ours)| other / ours).collect();
            ratios.sort_by(f64::total_cmp);
            let at = |part: f64| ratios[((ratios.len() - 1) as f64 * part) as usize];
            println!(
                "  ferry / {name}: {:.3} of its rate (quartiles {:.3} to {:.3})",
                at(0.5),
                at(0.25),
                at(0.75)
            );
        }
    }

    fn by_calls(&self, direction: Direction, pieces: &[Piece]) {
        for piece in pieces {
            let length = piece.length as usize;
            // SAFETY: memory of the bench's own, which outlives the stream's work.
            unsafe {
                match direction {
                    Direction::DeviceToHost => self.api.memcpy_device_to_host(
                        piece.to as usize as *mut _,
                        piece.from,
                        length,
                        self.stream.raw,
                    ),
                    _ => self.api.memcpy_host_to_device(
                        piece.to,
                        piece.from as usize as *const _,
                        length,
                        self.stream.raw,
                    ),
                }
            }
            .unwrap();
        }
        while !self.stream.is_idle().unwrap() {
            std::hint::spin_loop();
        }
    }

    fn words(&self) -> &'static mut [u64] {
        // SAFETY: BYTES of pinned memory that the bench never frees; it is looked at only while no copy is under way.
        unsafe { std::slice::from_raw_parts_mut(self.host.pointer(), BYTES / 8) }
    }

    /// Each 8 bytes of the side that is read say their round and place.
    fn fill(&self, direction: Direction, round: u64) {
        for (at, word) in self.words().iter_mut().enumerate() {
            *word = round << 32 | at as u64;
        }
        if direction == Direction::DeviceToHost {
            let all = [Piece { from: self.host.address, to: self.device.address, length: BYTES as u64 }];
            self.by_calls(Direction::HostToDevice, &all);
        }
    }

    /// Runs one side with nothing where it writes, and looks at all that it wrote.
    fn check(&self, direction: Direction, round: u64, scattered: bool, side: impl FnOnce()) -> f64 {
        let there = [Piece { from: self.host.address, to: self.device.address, length: BYTES as u64 }];
        let back = [Piece { from: self.device.address, to: self.host.address, length: BYTES as u64 }];
        let kept = (direction == Direction::HostToDevice).then(|| self.words().to_vec());
        self.words().fill(u64::MAX);
        if let Some(kept) = &kept {
            self.by_calls(Direction::HostToDevice, &there);
            self.words().copy_from_slice(kept);
        }
        let since = Instant::now();
        side();
        let seconds = since.elapsed().as_secs_f64();
        if kept.is_some() {
            self.words().fill(0);
            self.by_calls(Direction::DeviceToHost, &back);
        }
        let per_block = BLOCK / 8;
        for (at, word) in self.words().iter().enumerate() {
            // The block of the other side that belongs here.
            let block = match (scattered, direction) {
                (false, _) => at / per_block,
                (true, Direction::DeviceToHost) => self.order[at / per_block],
                // 389 × 845 is 1 modulo 1,024.
                (true, _) => at / per_block * 845 % BLOCKS,
            };
            assert_eq!(
                *word,
                round << 32 | (block * per_block + at % per_block) as u64,
                "{direction:?}, word {at}"
            );
        }
        if let Some(kept) = kept {
            self.words().copy_from_slice(&kept);
        }
        seconds
    }

    /// From the moment at which a stream may go on until a transfer that waits for it would begin.
    fn events(
        &self,
        driver: &dyn ferry::internals::device::Driver,
        worker: &Worker,
        context: &std::sync::Arc<Context>,
        rounds: usize,
    ) {
        let flag = PinnedMemory::new(context, 4096).unwrap();
        // SAFETY: the beginning of a page, which outlives the word; the device only reads it.
        let word = unsafe { &*flag.pointer::<AtomicU32>() };
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for round in 0..2 * rounds {
            word.store(0, Ordering::Release);
            let _entered = context.enter().unwrap();
            // SAFETY: the stream lives, and the word until what waits for it has ended.
            unsafe { self.api.stream_wait_value_32(self.stream.raw, flag.address, 1, 0) }.unwrap();
            // SAFETY: the stream lives.
            let point = driver.point(unsafe { Start::stream(self.stream.raw as u64) }).unwrap();
            let (done, reached) = mpsc::channel();
            if round % 2 == 0 {
                worker.wait_for(point, Box::new(move |result| drop(done.send((result, Instant::now())))));
                // Long enough for the device's thread to have gone over to pausing between looks.
                std::thread::sleep(Duration::from_micros(200));
                let since = Instant::now();
                word.store(1, Ordering::Release);
                let (result, at) = reached.recv().unwrap();
                result.unwrap();
                ours.push(at.duration_since(since).as_secs_f64() * 1e6);
            } else {
                std::thread::sleep(Duration::from_micros(200));
                let since = Instant::now();
                word.store(1, Ordering::Release);
                while !point.is_reached().unwrap() {
                    std::hint::spin_loop();
                }
                bare.push(since.elapsed().as_secs_f64() * 1e6);
            }
        }
        let tail = |times: &[f64]| {
            let mut times = times.to_vec();
            times.sort_by(f64::total_cmp);
            times[(times.len() - 1) * 99 / 100]
        };
        println!(
            "from a stream's going on to a waiting transfer's beginning, us: p50 {:.1}, p99 {:.1}; spinning on the event p50 {:.1}, p99 {:.1}",
            median(ours.clone()),
            tail(&ours),
            median(bare.clone()),
            tail(&bare)
        );
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
