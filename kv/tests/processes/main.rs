//! Handoffs between processes, one of which is killed or stopped at a moment that a seed draws: the other side's take or
//! offer ends in time, exactly once, with what it says; and nothing lands in its blocks afterwards.
//!
//! `FERRY_TEST_KV_KILLS` is the number of seeds of each kind (2). The other process is this program again: `role`.

mod big;
mod role;
mod slow;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use big::{id, lists, offer_spec, rank, rank_with, take_spec, Rank, PATIENCE, TOKENS};
use ferry_kv::handoff::{End, Event, Mode};

/// A peer that is gone is told in this time, whatever it was doing: `silence`, and `lease_ms` of 1.5 s.
const IN_TIME: Duration = Duration::from_secs(3);

struct Other {
    child: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Other {
    /// Starts this program again in a role.
    fn start(role: &str, transports: &str, target: &str) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["role::plays_the_other_process", "--exact", "--nocapture", "--ignored"])
            .env("FERRY_TEST_KV_ROLE", role)
            .env("FERRY_TEST_KV_TRANSPORTS", transports)
            .env("FERRY_TEST_KV_TARGET", target)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut other = Other { child, output, address: String::new() };
        other.address = other.line("ADDRESS ");
        other
    }

    /// Waits for a line that begins so; returns its rest.
    fn line(&mut self, beginning: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.trim_end().split_once(beginning) {
                return rest.to_owned();
            }
            line.clear();
        }
        panic!("the other process ended without {beginning:?}");
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strike {
    Kill,
    Stop,
}

fn draw(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 31)
}

fn end_within(rank: &Rank, timeout: Duration) -> Option<(End, u64, String)> {
    match rank.cache.wait(Some(timeout)) {
        Ok(Event::Ended { end, valid_tokens, why, .. }) => Some((end, valid_tokens, why)),
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    }
}

fn kills() -> u64 {
    std::env::var("FERRY_TEST_KV_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

fn strike(other: &Other, how: Strike) {
    other.signal(match how {
        Strike::Kill => rustix::process::Signal::KILL,
        Strike::Stop => rustix::process::Signal::STOP,
    });
}

struct Struck<'a> {
    own: &'a Rank,
    other: &'a Other,
    how: Strike,
    at: Instant,
    transports: &'a str,
}

impl Struck<'_> {
    /// Waits for the end of the handoff that was under way; `look` sees what it left before the blocks are used again.
    fn ends(&self, look: impl Fn(u64)) -> End {
        let mut is_stopped = self.how == Strike::Stop;
        let (end, valid, why) = match end_within(self.own, Duration::from_secs(6)) {
            Some(told) => {
                let after = self.at.elapsed();
                assert!(after < IN_TIME, "{:?} {after:?} after the strike: {}", told.0, told.2);
                told
            }
            None => {
                // Stopped in the midst of a copy: no fence reaches the process, and the blocks stay with the handoff.
                assert!(is_stopped && self.transports.contains("local"), "no end in time");
                assert_eq!(self.own.cache.unfenced_blocks(), big::BLOCKS as usize);
                // The message of a cancel fails, because the peer is lost. No take ends before the copy.
                let is_cancelled = self.own.cache.take_cancel(id(0)).is_ok();
                assert_eq!(end_within(self.own, Duration::from_millis(300)), None);
                eprintln!("  waited for, cancelled: {is_cancelled}");
                self.other.signal(rustix::process::Signal::CONT);
                is_stopped = false;
                let told = end_within(self.own, IN_TIME).expect("an end when the process goes on");
                assert!(told.0 != End::Cancelled || is_cancelled);
                if is_cancelled {
                    (End::PeerLost, told.1, told.2)
                } else {
                    told
                }
            }
        };
        eprintln!("  {end:?} after {:?}: {why}", self.at.elapsed());
        look(valid);
        self.own.scribble(0xA5);
        if is_stopped {
            self.other.signal(rustix::process::Signal::CONT);
        }
        std::thread::sleep(Duration::from_millis(300));
        self.own.check_scribbled(0xA5);
        assert_eq!(self.own.cache.unfenced_blocks(), 0);
        end
    }
}

fn producer_is_struck(how: Strike, transports: &str, mode: Mode, seed: u64) -> End {
    let own = rank(transports);
    let mut other = Other::start("producer", transports, "");
    let peer = own.engine.connect(&other.address, Some(PATIENCE)).unwrap();
    let blocks = lists(5);
    own.cache.take(take_spec(id(0), vec![peer], blocks.clone(), mode)).unwrap();
    other.line("COMPUTING");
    std::thread::sleep(Duration::from_micros(draw(seed) % 20_000));
    let struck = Instant::now();
    strike(&other, how);
    Struck { own: &own, other: &other, how, at: struck, transports }
        .ends(|valid| own.check(0, &blocks, valid))
}

fn consumer_is_struck(how: Strike, transports: &str, mode: &str, seed: u64) -> End {
    let own = rank(transports);
    let blocks = lists(3);
    own.cache.offer(offer_spec(id(0), blocks.clone(), Duration::from_secs(1))).unwrap();
    let mut other = Other::start(&format!("consumer {mode}"), transports, own.engine.address());
    other.line("TAKING");
    let ready = std::time::Instant::now();
    let moment = Duration::from_micros(draw(seed) % 20_000);
    let mut struck = None;
    for layer in 0..big::LAYERS {
        own.compute(0, layer, &blocks);
        if struck.is_none() && ready.elapsed() >= moment {
            struck = Some(Instant::now());
            strike(&other, how);
        }
        if own.cache.offer_ready(id(0), layer..layer + 1, TOKENS).is_err() {
            break;
        }
    }
    let struck = struck.unwrap_or_else(|| {
        strike(&other, how);
        Instant::now()
    });
    // Ended already if the peer was lost meanwhile.
    let _ = own.cache.offer_seal(id(0), TOKENS);
    Struck { own: &own, other: &other, how, at: struck, transports }.ends(|_| ())
}

#[test]
fn a_producer_that_is_killed_or_stopped_ends_its_takes_in_time() {
    for seed in 0..kills() {
        for transports in ["tcp", "local,tcp"] {
            for mode in [Mode::Pull, Mode::Push] {
                for how in [Strike::Kill, Strike::Stop] {
                    eprintln!("seed {seed} {transports} {mode:?} {how:?}");
                    let end = producer_is_struck(how, transports, mode, seed);
                    assert!([End::Received, End::PeerLost].contains(&end), "{end:?}");
                }
            }
        }
    }
}

#[test]
fn a_consumer_that_is_killed_or_stopped_ends_its_offers_in_time() {
    for seed in 0..kills() {
        for transports in ["tcp", "local,tcp"] {
            for mode in ["pull", "push"] {
                for how in [Strike::Kill, Strike::Stop] {
                    eprintln!("seed {seed} {transports} {mode} {how:?}");
                    let end = consumer_is_struck(how, transports, mode, seed);
                    assert!([End::Sent, End::PeerLost, End::Expired].contains(&end), "{end:?}");
                }
            }
        }
    }
}

/// All layers are ready at once, so each handoff is one transfer, which takes four times as long as a peer may be silent.
#[test]
fn a_transfer_that_takes_longer_than_a_peer_may_be_silent_arrives() {
    for mode in [Mode::Pull, Mode::Push] {
        // The sockets of a fast path hold as little of what it moves in a second.
        let settings = [("socket_buffer_bytes", "262144")];
        let (producer, consumer) = (rank_with("tcp", &settings), rank_with("tcp", &settings));
        let address = slow::path(producer.engine.address(), 8 << 20);
        let peer = consumer.engine.connect(&address, Some(PATIENCE)).unwrap();
        let (from, into) = (lists(3), lists(5));
        producer.cache.offer(offer_spec(id(0), from.clone(), Duration::from_secs(60))).unwrap();
        (0..big::LAYERS).for_each(|layer| producer.compute(0, layer, &from));
        producer.cache.offer_ready(id(0), 0..big::LAYERS, TOKENS).unwrap();
        producer.cache.offer_seal(id(0), TOKENS).unwrap();
        let began = Instant::now();
        consumer.cache.take(take_spec(id(0), vec![peer], into.clone(), mode)).unwrap();
        let end = end_within(&consumer, PATIENCE);
        assert_eq!(end.as_ref().map(|(end, ..)| *end), Some(End::Received), "{mode:?}: {end:?}");
        assert!(began.elapsed() > Duration::from_secs(3), "{:?}", began.elapsed());
        consumer.check(0, &into, TOKENS);
        let end = end_within(&producer, PATIENCE);
        assert_eq!(end.as_ref().map(|(end, ..)| *end), Some(End::Sent), "{mode:?}: {end:?}");
    }
}
