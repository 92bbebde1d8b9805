//! The well-behaved peer: one small WRITE or READ after the other, each timed, and the bytes checked.

use crate::hostile::PATIENCE;
use crate::processors::run_at_once;
use crate::{engine, Hub, HONEST_BYTES};
use ferry::types::{Op, RegionId, Request};
use ferry::{Engine, Memory, RegionOptions, State, TransferOptions};
use std::time::{Duration, Instant};

/// Transfers of one measurement: six are above the p99.
const TRANSFERS: usize = 600;
/// The pause between two transfers. A peer without pauses would take a CPU, and the flood would not get through.
const PAUSE: Duration = Duration::from_micros(200);
const SIZES: [usize; 2] = [512, 8 << 10];

struct Honest {
    engine: Engine,
    peer: ferry::types::PeerId,
    hub: Hub,
    out: Memory,
    back: Memory,
    /// Where the next bytes go.
    turn: usize,
}

impl Honest {
    fn new(hub: Hub) -> Honest {
        let engine = engine(&[("listen_address", ""), ("workers", "1")]);
        let peer = engine.connect(&hub.address, Some(PATIENCE)).unwrap();
        let alloc = || engine.alloc(HONEST_BYTES, &RegionOptions::default()).unwrap();
        let (out, back) = (alloc(), alloc());
        Honest { peer, hub, out, back, turn: 0, engine }
    }

    fn transfer(&self, op: Op, memory: &Memory, at: usize, length: usize) -> u64 {
        let request = Request {
            local: memory.address() + at as u64,
            remote: self.hub.memory + at as u64,
            length: length as u64,
            remote_region: RegionId::from_raw(self.hub.region),
        };
        // The rate of a peer, not a wait for anything.
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        let transfer = self.engine.submit(self.peer, op, &[request], &TransferOptions::default()).unwrap();
        let result = transfer.wait(Some(PATIENCE)).unwrap();
        let took = begun.elapsed().as_nanos() as u64;
        assert_eq!(result.state, State::Done, "{result:?}");
        took
    }

    /// WRITEs new bytes and READs them back, by turns of the sizes. Returns p50 and p99 of all, in nanoseconds.
    fn measure(&mut self) -> String {
        let mut took = Vec::with_capacity(TRANSFERS);
        for nth in 0..TRANSFERS / 2 {
            let length = SIZES[nth % SIZES.len()];
            let at = self.turn % (HONEST_BYTES / SIZES[1]) * SIZES[1];
            self.turn += 1;
            let image: Vec<u8> =
                (0..length / 8).flat_map(|word| ((self.turn << 20 | word) as u64).to_le_bytes()).collect();
            self.out.write(at, &image);
            took.push(self.transfer(Op::Write, &self.out, at, length));
            took.push(self.transfer(Op::Read, &self.back, at, length));
            let mut found = vec![0; length];
            self.back.read(at, &mut found);
            assert!(found == image, "what was written is read back");
        }
        took.sort_unstable();
        format!("{} {}", took[took.len() / 2], took[took.len() * 99 / 100])
    }
}

#[test]
#[ignore = "a role of a_flood_slows_no_other_peer_down"]
fn honest_role() {
    let Some(hub) = Hub::of_parent() else { return };
    if !run_at_once() {
        println!("no right to real-time threads: the peer waits for processors of the flood too");
    }
    let mut honest = Honest::new(hub);
    println!("@@ ready");
    for command in std::io::stdin().lines().map_while(Result::ok) {
        assert_eq!(command, "measure");
        println!("@@ {}", honest.measure());
    }
}
