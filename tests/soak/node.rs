//! A process of the soak (soak.py), in Rust; node.c documents the commands and the memory.

use ferry::notify::{EventBody, Queue, WHAT_NOTIFICATIONS};
use ferry::types::{PeerId, Request};
use ferry::{Config, Engine, Memory, RegionOptions, RemoteRegionInfo, TransferOptions};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SLOTS: usize = 16;
const SLOT_BYTES: usize = 1 << 20;
const BAD: u64 = 1 << 63;
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a command has no "OK": a failure, or bytes that are not what they should be.
enum Answer {
    Failed(String),
    Corrupt(String),
}

impl<E: std::error::Error> From<E> for Answer {
    fn from(error: E) -> Answer {
        Answer::Failed(error.to_string().replace('\n', " "))
    }
}

#[derive(Clone, Copy)]
struct Notice {
    slot: usize,
    bytes: usize,
    pieces: usize,
    serial: u64,
}

impl Notice {
    fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let words = [self.slot as u64, self.bytes as u64, self.pieces as u64, self.serial];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Notice> {
        let word = |i: usize| u64::from_ne_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap());
        if bytes.len() != 32 || word(0) >= SLOTS as u64 || word(1) > SLOT_BYTES as u64 || word(2) == 0 {
            return None;
        }
        Some(Notice {
            slot: word(0) as usize,
            bytes: word(1) as usize,
            pieces: word(2) as usize,
            serial: word(3),
        })
    }

    /// The place in the slot of the byte at `place` of the source, and the other way round.
    fn turned(&self, place: usize) -> usize {
        let piece = self.bytes / self.pieces;
        (self.pieces - 1 - place / piece) * piece + place % piece
    }

    fn is_right(&self, slot: &[u8]) -> bool {
        slot.chunks_exact(8).enumerate().all(|(k, word)| {
            u64::from_ne_bytes(word.try_into().unwrap())
                == self.serial << 32 | (self.turned(8 * k) / 8) as u64
        })
    }
}

/// Checks what the notifications name, and acknowledges it.
fn check_what_comes(soak: &Memory, queue: &Queue, ending: &AtomicBool) {
    let (mut events, mut found) = (Vec::new(), vec![0; SLOT_BYTES]);
    let pause = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    while !ending.load(Ordering::Relaxed) {
        queue.drain(&mut events, 64);
        if events.is_empty() {
            let _ = poll(&mut [PollFd::new(queue, PollFlags::IN)], Some(&pause));
        }
        for event in events.drain(..) {
            let EventBody::Notification { bytes, .. } = event.body else { continue };
            let Some(notice) = Notice::decode(&bytes) else { continue };
            let found = &mut found[..notice.bytes];
            soak.read(notice.slot * SLOT_BYTES, found);
            let word = if notice.is_right(found) { notice.serial } else { notice.serial | BAD };
            soak.write(SLOTS * SLOT_BYTES + 8 * notice.slot, &word.to_ne_bytes());
        }
    }
}

/// One round: WRITE, READ, and the peer's answer. Returns the time of the WRITE.
fn round(
    engine: &Engine,
    peer: PeerId,
    there: &RemoteRegionInfo,
    here: &Memory,
    notice: Notice,
) -> Result<Duration, Answer> {
    let data: Vec<u8> =
        (0..notice.bytes as u64 / 8).flat_map(|k| (notice.serial << 32 | k).to_ne_bytes()).collect();
    here.write(0, &data);
    let (piece, remote) = (notice.bytes / notice.pieces, there.address + (notice.slot * SLOT_BYTES) as u64);
    let request = |local: usize, remote: u64, length: usize| Request {
        local: here.address() + local as u64,
        remote,
        length: length as u64,
        remote_region: there.region,
    };
    let requests: Vec<Request> = (0..notice.pieces)
        .map(|i| request(i * piece, remote + notice.turned(i * piece) as u64, piece))
        .collect();
    let before = Instant::now();
    let told = notice.encode();
    engine.write(peer, &requests, &TransferOptions { notify: Some(&told), ..Default::default() })?;
    let took = before.elapsed();
    let mut back = vec![0; notice.bytes];
    here.write(SLOT_BYTES, &back);
    engine.read(peer, &[request(SLOT_BYTES, remote, notice.bytes)], &TransferOptions::default())?;
    here.read(SLOT_BYTES, &mut back);
    if !notice.is_right(&back) {
        return Err(Answer::Corrupt(format!("what was read back, serial {}", notice.serial)));
    }
    let word = there.address + (SLOTS * SLOT_BYTES + 8 * notice.slot) as u64;
    while before.elapsed() < PATIENCE {
        engine.read(peer, &[request(2 * SLOT_BYTES, word, 8)], &TransferOptions::default())?;
        let mut found = [0; 8];
        here.read(2 * SLOT_BYTES, &mut found);
        match u64::from_ne_bytes(found) {
            found if found == notice.serial => return Ok(took),
            found if found == notice.serial | BAD => {
                return Err(Answer::Corrupt(format!("what the peer found, serial {}", notice.serial)))
            }
            _ => {}
        }
    }
    Err(Answer::Failed("the peer did not answer".into()))
}

fn exchange(engine: &Engine, line: &str) -> Result<String, Answer> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["exchange", address, slot, bytes, pieces, count, serial] = words[..] else {
        return Err(Answer::Failed("no such command".into()));
    };
    let mut notice = Notice {
        slot: slot.parse()?,
        bytes: bytes.parse()?,
        pieces: pieces.parse()?,
        serial: serial.parse()?,
    };
    let peer = engine.connect(address, Some(PATIENCE))?;
    let regions = engine.peer_regions(peer)?;
    let there = regions.iter().find(|region| region.name == "soak");
    let there = there.ok_or_else(|| Answer::Failed("the peer has no region \"soak\"".into()))?;
    let here = engine.alloc(2 * SLOT_BYTES + 64, &RegionOptions::default())?;
    let mut answer = String::from("OK");
    for _ in 0..count.parse::<u64>()? {
        let took = round(engine, peer, there, &here, notice)?;
        let _ = write!(answer, " {:.1}", took.as_secs_f64() * 1e6);
        notice.serial += 1;
    }
    here.free(Some(PATIENCE)).map_err(|(_, error)| error)?;
    Ok(answer)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open(Config::new()?)?;
    let options = RegionOptions { name: "soak".into(), ..Default::default() };
    let soak = engine.alloc(SLOTS * SLOT_BYTES + 8 * SLOTS, &options)?;
    let queue = engine.queue(WHAT_NOTIFICATIONS, 64)?;
    let ending = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| check_what_comes(&soak, &queue, &ending));
        println!("ADDRESS {}", engine.address());
        for line in std::io::stdin().lines().map_while(Result::ok) {
            match exchange(&engine, &line) {
                Ok(answer) => println!("{answer}"),
                Err(Answer::Failed(why)) => println!("FAILED {why}"),
                Err(Answer::Corrupt(what)) => println!("CORRUPT {what}"),
            }
        }
        ending.store(true, Ordering::Relaxed);
    });
    engine.close(Some(PATIENCE))?;
    Ok(())
}
