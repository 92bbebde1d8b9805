//! Transfers between memory and a file, beside fio: random blocks of one file, READ and WRITE, past the page cache. fio
//! uses io_uring with as many blocks in flight. Sides take turns, and each block that ferry moved is checked.
//!
//! `--file PATH` (a file of its own in the folder of temporary files), `--gib N` (1), `--rounds N` (5), `--seconds N`
//! (3). Two engines of this process, on the path that FERRY_TRANSPORTS names; FERRY_FILE_IO chooses how.

use ferry::types::{Op, Request};
use ferry::{Config, Engine, FileRegion, Memory, PeerId, RegionOptions, State, Transfer, TransferOptions};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Size of a block, blocks of a transfer, and transfers in flight.
const CASES: [(usize, usize, usize); 2] = [(16 << 10, 32, 8), (1 << 20, 2, 16)];
/// One word in each of these bytes says where the bytes belong.
const MARKED: usize = 512;

struct Bench {
    path: PathBuf,
    bytes: usize,
    seconds: f64,
    a: Engine,
    _b: Engine,
    peer: PeerId,
    memory: Memory,
    region: FileRegion,
    file: File,
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let value = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let number = |name, default: f64| value(name).map_or(default, |text| text.parse().unwrap());
    let own = std::env::temp_dir().join(format!("ferry-bench-{}", std::process::id()));
    let path = value("--file").map_or(own.clone(), PathBuf::from);
    if Command::new("fio").arg("--version").output().is_err() {
        return println!("SKIPPED files bench: fio is not installed");
    }
    let bytes = (number("--gib", 1.0) * (1u64 << 30) as f64) as usize;
    let bench = Bench::new(&path, bytes, number("--seconds", 3.0));
    println!("{}, {} MiB", path.display(), bytes >> 20);
    println!("op     block  fio MB/s  ferry MB/s  ratio (least, greatest)");
    for (block, requests, transfers) in CASES {
        for op in [Op::Read, Op::Write] {
            bench.compare(op, block, requests, transfers, number("--rounds", 5.0) as usize);
        }
    }
    drop(bench);
    if path == own {
        std::fs::remove_file(path).unwrap();
    }
}

fn mark(memory: &mut [u8], place: usize) {
    for (at, bytes) in memory.chunks_mut(MARKED).enumerate() {
        bytes[..8].copy_from_slice(&((place + at * MARKED) as u64 | 1 << 60).to_le_bytes());
    }
}

fn check(memory: &[u8], place: usize) {
    for (at, bytes) in memory.chunks(MARKED).enumerate() {
        let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(word, (place + at * MARKED) as u64 | 1 << 60, "at {place:#x} + {:#x}", at * MARKED);
    }
}

impl Bench {
    fn new(path: &Path, bytes: usize, seconds: f64) -> Bench {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        let engine = || Engine::open(Config::new().unwrap()).unwrap();
        let (a, b) = (engine(), engine());
        let peer = a.connect(b.address(), Some(Duration::from_secs(10))).unwrap();
        let most =
            CASES.iter().map(|(block, requests, transfers)| block * requests * transfers).max().unwrap();
        let memory = a.alloc(most, &RegionOptions::default()).unwrap();
        let region = b.register_file(&file, 0, bytes as u64, &RegionOptions::default()).unwrap();
        while !a.peer_regions(peer).unwrap().iter().any(|known| known.region == region.region) {
            std::thread::yield_now();
        }
        Bench { path: path.to_owned(), bytes, seconds, a, _b: b, peer, memory, region, file }
    }

    fn compare(&self, op: Op, block: usize, requests: usize, transfers: usize, rounds: usize) {
        let mut pairs = Vec::new();
        for round in 0..rounds {
            if op == Op::Read && round == 0 {
                self.fill();
            }
            let fio = || self.fio(op, block, requests * transfers);
            let ferry = || self.ferry(op, block, requests, transfers);
            // Each side is the first in turn.
            let (fio, ferry) = match round % 2 {
                0 => (fio(), ferry()),
                _ => {
                    let ferry = ferry();
                    (fio(), ferry)
                }
            };
            pairs.push((ferry / fio, fio, ferry));
        }
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ratio, fio, ferry) = pairs[pairs.len() / 2];
        let (least, greatest) = (pairs[0].0, pairs[pairs.len() - 1].0);
        let name = if op == Op::Read { "READ" } else { "WRITE" };
        let kib = block >> 10;
        println!("{name:5} {kib:4}Ki {fio:9.0} {ferry:11.0}  {ratio:.2} ({least:.2}, {greatest:.2})");
    }

    fn fill(&self) {
        let mut piece = vec![0; 8 << 20];
        for place in (0..self.bytes).step_by(piece.len()) {
            mark(&mut piece, place);
            self.file.write_all_at(&piece, place as u64).unwrap();
        }
        self.file.sync_data().unwrap();
    }

    fn fio(&self, op: Op, block: usize, depth: usize) -> f64 {
        let (rw, direction) = if op == Op::Read { ("randread", "read") } else { ("randwrite", "write") };
        let output = Command::new("fio")
            .args(["--name=x", "--direct=1", "--ioengine=io_uring", "--time_based", "--output-format=terse"])
            .args(["--terse-version=3", &format!("--rw={rw}"), &format!("--bs={block}")])
            .args([&format!("--iodepth={depth}"), &format!("--runtime={}", self.seconds)])
            .args([&format!("--size={}", self.bytes), &format!("--filename={}", self.path.display())])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let fields: Vec<&str> = text.trim().split(';').collect();
        // Terse version 3: KiB per second are field 7 of reads, 48 of writes, counted from 1.
        let field = if direction == "read" { 6 } else { 47 };
        fields[field].parse::<f64>().unwrap() * 1024.0 / 1e6
    }

    /// Keeps `transfers` in flight. Returns the rate in MB/s.
    fn ferry(&self, op: Op, block: usize, requests: usize, transfers: usize) -> f64 {
        let blocks = self.bytes / block;
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut draw = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % blocks * block
        };
        let mut buffer = vec![0; block];
        let mut in_flight: VecDeque<(Transfer, usize, Vec<usize>)> = VecDeque::new();
        let (mut written, mut moved) = (vec![false; blocks], 0usize);
        let mut free: Vec<usize> = (0..transfers).collect();
        let begun = Instant::now();
        while begun.elapsed().as_secs_f64() < self.seconds || !in_flight.is_empty() {
            if begun.elapsed().as_secs_f64() < self.seconds {
                while let Some(slot) = free.pop() {
                    let mut places = Vec::with_capacity(requests);
                    while places.len() < requests {
                        let place = draw();
                        if !places.contains(&place) {
                            places.push(place);
                        }
                    }
                    let request = |(nth, place): (usize, &usize)| Request {
                        local: self.memory.address() + ((slot * requests + nth) * block) as u64,
                        remote: self.region.address + *place as u64,
                        length: block as u64,
                        remote_region: self.region.region,
                    };
                    let list: Vec<Request> = places.iter().enumerate().map(request).collect();
                    if op == Op::Write {
                        for (nth, place) in places.iter().enumerate() {
                            mark(&mut buffer, *place);
                            self.memory.write((slot * requests + nth) * block, &buffer);
                            written[place / block] = true;
                        }
                    }
                    let transfer = self.a.submit(self.peer, op, &list, &TransferOptions::default()).unwrap();
                    in_flight.push_back((transfer, slot, places));
                }
            }
            let Some((transfer, slot, places)) = in_flight.pop_front() else { break };
            assert_eq!(transfer.wait(None).unwrap().state, State::Done);
            if op == Op::Read {
                for (nth, place) in places.iter().enumerate() {
                    self.memory.read((slot * requests + nth) * block, &mut buffer);
                    check(&buffer, *place);
                }
            }
            moved += requests * block;
            free.push(slot);
        }
        let rate = moved as f64 / begun.elapsed().as_secs_f64() / 1e6;
        for (nth, _) in written.iter().enumerate().filter(|(_, written)| **written) {
            self.file.read_exact_at(&mut buffer, (nth * block) as u64).unwrap();
            check(&buffer, nth * block);
        }
        rate
    }
}
