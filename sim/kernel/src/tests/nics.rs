//! NICs: what a program may rely on of requests, keys and completions, and what not.

use super::net::{hosts, within};
use super::seeded;
use crate::nic::{
    self, status, Chain, Completion, Context, Cq, Faults, LocalSide, Mr, Pd, Qp, QpSpec, Remote, Srq,
};
use crate::process::ProcessId;
use crate::{arena, clock, memory, random_u64, task};
use std::sync::Arc;
use std::time::Duration;

const BYTES: u64 = 64 << 10;
/// Requests whose bytes lie beside each other.
const PIECE: u32 = 512;

/// One end of a connection. Fields are dropped in their order.
struct End {
    qp: Qp,
    srq: Arc<Srq>,
    key: Mr,
    cq: Arc<Cq>,
    received: Arc<Cq>,
    gid: [u8; 16],
    memory: u64,
    process: ProcessId,
}

/// An end that is not connected, with memory whose bytes are all `byte`.
fn end(process: ProcessId, byte: u8) -> End {
    within(process, move || {
        let context = Context::open("sim0").unwrap();
        let pd = Pd::new(&context).unwrap();
        let [cq, received] = [(), ()].map(|()| Cq::new(&context, 256, None, 0).unwrap());
        let srq = Srq::new(&pd, 64).unwrap();
        let spec = QpSpec { send_wr: 128, inline_bytes: 0 };
        let qp = Qp::new(&pd, &cq, (&srq, &received), &spec).unwrap();
        let memory = arena::allocate(BYTES as usize).unwrap();
        memory::write(memory, &[byte; BYTES as usize]);
        // SAFETY: memory of the arena stays until the run is over.
        let key = unsafe { pd.register(memory, BYTES, true, true, false) }.unwrap();
        End { qp, srq, key, cq, received, gid: context.gids(1)[0].raw, memory, process }
    })
}

fn connect(one: &End, other: &End, rd_atom: u8) {
    for (own, peer) in [(one, other), (other, one)] {
        let to = Remote {
            qp_number: peer.qp.number(),
            psn: 0xff_fff0,
            mtu_bytes: 1024,
            gid: peer.gid,
            lid: 0,
            is_ethernet: true,
            gid_index: 0,
            port: 1,
            rd_atom,
            min_rnr_timer: 12,
            traffic_class: 0,
        };
        own.qp.to_init(1).unwrap();
        own.qp.to_rtr(&to).unwrap();
        // Packets count as lost after a millisecond at least. The last of the tries is never early.
        let from = LocalSide { psn: 0xff_fff0, rd_atom, timeout: 8, retries: 200, rnr_retries: 7 };
        own.qp.to_rts(&from).unwrap();
    }
}

/// Two connected ends on two hosts with a device each.
fn ends(rd_atom: u8) -> (End, End) {
    let (a, b) = hosts();
    nic::add(a, nic::Abilities::default());
    nic::add(b, nic::Abilities::default());
    let (a, b) = (end(a.start("a"), 0xaa), end(b.start("b"), 0xbb));
    connect(&a, &b, rd_atom);
    (a, b)
}

impl End {
    fn post(&self, chain: &mut Chain) {
        // SAFETY: all requests name memory of the arena.
        unsafe { self.qp.post(chain) }.unwrap();
    }

    /// Posts a signalled WRITE of one piece, as the request `id`, to the same place at the other end.
    fn write(&self, to: &End, id: u64) {
        let (mut chain, at) = (Chain::new(1), id * u64::from(PIECE));
        chain.write(id, self.memory + at, self.key.lkey(), to.memory + at, to.key.rkey(), PIECE, false);
        chain.signal_last();
        self.post(&mut chain);
    }

    fn read(&self, from: &End, id: u64, length: u32) {
        let (mut chain, at) = (Chain::new(1), id * u64::from(PIECE));
        chain.read(id, self.memory + at, self.key.lkey(), from.memory + at, from.key.rkey(), length);
        chain.signal_last();
        self.post(&mut chain);
    }

    fn send(&self, id: u64) {
        let (mut chain, at) = (Chain::new(1), id * u64::from(PIECE));
        chain.send(id, self.memory + at, self.key.lkey(), PIECE, false);
        chain.signal_last();
        self.post(&mut chain);
    }

    fn receive(&self, id: u64) {
        let at = id * u64::from(PIECE);
        // SAFETY: memory of the arena stays until the run is over.
        unsafe { self.srq.post_receive(id, self.memory + at, PIECE, self.key.lkey()) }.unwrap();
    }

    fn bytes(&self, id: u64) -> Vec<u8> {
        memory::read(self.memory + id * u64::from(PIECE), PIECE as usize)
    }
}

/// Waits for this many completions: their ids and statuses.
fn reaped(cq: &Cq, count: usize) -> Vec<(u64, u32)> {
    let (mut all, mut room) = (Vec::new(), [Completion::default(); 8]);
    let until = clock::virtual_ns() + 20_000_000_000;
    while all.len() < count {
        assert!(clock::virtual_ns() < until, "only {} of {count} completions come", all.len());
        let found = cq.poll(&mut room).unwrap();
        all.extend(room[..found].iter().map(|it| (it.id(), it.status())));
        task::sleep(Duration::from_micros(1));
    }
    all
}

/// Waits longer than anything is under way, and makes sure that no completion comes.
fn silent(cq: &Cq) {
    task::sleep(Duration::from_secs(5));
    assert_eq!(cq.poll(&mut [Completion::default(); 8]).unwrap(), 0);
}

#[test]
fn a_write_takes_its_bytes_and_lands_at_any_time_and_a_read_behind_it_proves_it() {
    let (mut at_post, mut later, mut before, mut after) = (0, 0, 0, 0);
    for seed in 0..400 {
        let seen = std::rc::Rc::new(std::cell::Cell::new((false, false)));
        let theirs = seen.clone();
        seeded(seed, move || {
            let (a, b) = ends(4);
            a.write(&b, 1);
            task::sleep(Duration::from_nanos(random_u64() % 4_000));
            memory::write(a.memory + u64::from(PIECE), &[0xcc; PIECE as usize]);
            assert_eq!(reaped(&a.cq, 1), [(1, status::SUCCESS)]);
            let landed = b.bytes(1) != [0xbb; PIECE as usize];
            a.read(&b, 2, 1);
            assert_eq!(reaped(&a.cq, 1), [(2, status::SUCCESS)]);
            let bytes = b.bytes(1);
            assert!(bytes == [0xaa; PIECE as usize] || bytes == [0xcc; PIECE as usize]);
            theirs.set((bytes[0] == 0xaa, landed));
        })
        .check();
        let (old, landed) = seen.get();
        (at_post, later) = (at_post + u32::from(old), later + u32::from(!old));
        (before, after) = (before + u32::from(landed), after + u32::from(!landed));
    }
    assert!(at_post > 20 && later > 20, "bytes of the post {at_post}, later ones {later}");
    assert!(before > 20 && after > 2, "landed before the completion {before}, after it {after}");
}

/// A lease can't bound what lands when a host wakes up.
#[test]
fn what_a_suspended_hosts_nic_has_received_does_not_wait_until_the_host_wakes() {
    let mut received = 0;
    for seed in 0..100 {
        let seen = std::rc::Rc::new(std::cell::Cell::new(false));
        let theirs = seen.clone();
        seeded(seed, move || {
            let (a, b) = ends(4);
            nic::set_faults(Faults { late_landing_ppm: 1_000_000, ..Faults::default() });
            let host = b.process.host();
            a.write(&b, 1);
            task::sleep(Duration::from_nanos(random_u64() % 100_000));
            host.suspend();
            let landed = || b.bytes(1) == [0xaa; PIECE as usize];
            let at_once = landed();
            task::sleep(Duration::from_secs(1));
            let before = landed();
            host.wake_up();
            assert_eq!(landed(), before, "it lands when the host wakes up");
            theirs.set(before && !at_once);
        })
        .check();
        received += u32::from(seen.get());
    }
    assert!(received > 10, "only {received} WRITEs were received and had not landed");
}

#[test]
fn what_is_posted_when_a_queue_pair_fails_is_flushed_once_each_and_in_order() {
    for seed in 0..50 {
        seeded(seed, || {
            let (a, b) = ends(4);
            assert_eq!(nic::states().connected, 2);
            nic::cut(a.process.host(), b.process.host());
            (0..20).for_each(|id| a.write(&b, id));
            a.qp.to_error().unwrap();
            // Requests posted behind the failure are flushed, too.
            (20..30).for_each(|id| a.write(&b, id));
            let all: Vec<(u64, u32)> = (0..30).map(|id| (id, status::WR_FLUSH_ERR)).collect();
            assert_eq!(reaped(&a.cq, 30), all);
            silent(&a.cq);
            assert!((0..30).all(|id| b.bytes(id) == [0xbb; PIECE as usize]));
        })
        .check();
    }
}

#[test]
fn a_key_that_is_taken_back_is_refused_and_what_has_arrived_has_landed() {
    for seed in 0..50 {
        seeded(seed, || {
            let (a, b) = ends(4);
            a.write(&b, 1);
            assert_eq!(reaped(&a.cq, 1), [(1, status::SUCCESS)]);
            let (old, End { key, memory, qp: _qp, srq: _srq, cq: _cq, received: _received, .. }) =
                (b.key.rkey(), b);
            drop(key);
            assert_eq!(memory::read(memory + u64::from(PIECE), 1), [0xaa], "it lands before the key ends");
            let mut chain = Chain::new(2);
            chain.write(2, a.memory, a.key.lkey(), memory, old, PIECE, false);
            chain.write(3, a.memory, a.key.lkey(), memory, old, PIECE, false);
            a.post(&mut chain);
            let all = [(2, status::REM_ACCESS_ERR), (3, status::WR_FLUSH_ERR)];
            assert_eq!(reaped(&a.cq, 2), all);
            assert_eq!(nic::states().refusals, 1);
            assert_eq!(memory::read(memory, PIECE as usize), [0xbb; PIECE as usize]);
        })
        .check();
    }
}

/// Packets are lost, overtaken and sent again without need.
fn harm() {
    nic::set_faults(Faults {
        loss_ppm: 100_000,
        overtaken_ppm: 200_000,
        early_ppm: 500_000,
        late_ppm: 100_000,
        ..Faults::default()
    });
}

#[test]
fn what_is_sent_again_completes_once_and_moves_once() {
    let again = std::rc::Rc::new(std::cell::Cell::new(0));
    for seed in 0..50 {
        let again = again.clone();
        seeded(seed, move || {
            let (a, b) = ends(4);
            (60..80).for_each(|id| b.receive(id));
            harm();
            for id in 0..20 {
                a.write(&b, id);
                a.read(&b, id + 20, PIECE);
                a.send(id + 40);
            }
            again.set(again.get() + u32::from(sends_again()));
            let all = reaped(&a.cq, 60);
            let posted: Vec<(u64, u32)> =
                (0..20).flat_map(|id| [id, id + 20, id + 40]).map(|id| (id, status::SUCCESS)).collect();
            assert_eq!(all, posted);
            let received: Vec<(u64, u32)> = (60..80).map(|id| (id, status::SUCCESS)).collect();
            assert_eq!(reaped(&b.received, 20), received);
            silent(&a.cq);
            silent(&b.received);
            assert!((0..20).all(|id| b.bytes(id) == [0xaa; PIECE as usize]));
            assert!((20..40).all(|id| a.bytes(id) == [0xbb; PIECE as usize]));
            assert!((60..80).all(|id| b.bytes(id) == [0xaa; PIECE as usize]));
        })
        .check();
    }
    assert!(again.get() > 20, "only {} seeds sent again", again.get());
}

/// Waits for a packet that is sent again.
fn sends_again() -> bool {
    let until = clock::virtual_ns() + 5_000_000;
    while clock::virtual_ns() < until && nic::states().sending_again == 0 {
        task::sleep(Duration::from_nanos(500));
    }
    nic::states().sending_again > 0
}

/// A receiver asks for pauses until it has receives, also while the sender has further packets planned.
#[test]
fn what_a_receiver_was_not_ready_for_comes_when_it_is() {
    for seed in 0..50 {
        seeded(seed, move || {
            let (a, b) = ends(4);
            (0..60).for_each(|id| a.send(id));
            for id in 60..80 {
                task::sleep(Duration::from_millis(seed % 3));
                (0..3).for_each(|nth| b.receive(id + 20 * nth));
            }
            let all: Vec<(u64, u32)> = (0..60).map(|id| (id, status::SUCCESS)).collect();
            assert_eq!(reaped(&a.cq, 60), all);
            assert_eq!(reaped(&b.received, 60).len(), 60);
        })
        .check();
    }
}

/// A target serves as many READs at a time as it said. An early repetition must not make it count more.
#[test]
fn reads_that_are_sent_again_are_not_more_than_the_target_serves() {
    for seed in 0..200 {
        seeded(seed, move || {
            let (a, b) = ends(1 + (seed % 3) as u8);
            harm();
            (0..30).for_each(|id| a.read(&b, id, 3 * PIECE));
            let all: Vec<(u64, u32)> = (0..30).map(|id| (id, status::SUCCESS)).collect();
            assert_eq!(reaped(&a.cq, 30), all);
            assert_eq!(nic::states().refusals, 0);
        })
        .check();
    }
}
