//! The last step of a transfer: what a thread that sees it final may rely on, and who forgets it.

use crate::rig::*;
use ferry::internals::complete::{orphan, transfer, wait, wait_any, Table};
use ferry::internals::handle::Tag;
use ferry::internals::notify::{create, reserve};
use ferry::internals::peer::{Peer, Pulled};
use ferry::internals::region::{Region, Registry};
use ferry::notify::{EventBody, Queue, WHAT_TRANSFERS};
use ferry::types::{SliceRange, TransferId};
use ferry::{RegionSpec, State, TransferCore};
use std::rc::Rc;
use std::sync::Arc;

struct Rig {
    peer: Peer,
    table: Arc<Table<TransferId, TransferCore>>,
    transfer: Arc<TransferCore>,
    region: Arc<Region>,
    queue: Arc<Queue>,
}

/// A transfer of two slices, each pulled by itself.
fn posted() -> (Rc<Rig>, [SliceRange; 2]) {
    let peer = peer();
    let registry = Registry::new(Tag::from_random(1), None);
    let spec = RegionSpec { address: 0x10000, length: 4096, ..RegionSpec::default() };
    let region = registry.register(&[spec]).unwrap().remove(0);
    assert!(region.enter());
    let queue = create(&peer.engine().hub, WHAT_TRANSFERS, 4).unwrap();
    reserve(&queue).unwrap();
    let table = peer.engine().transfers.clone();
    let wish =
        Wish { slices: 2, region: Some(region.clone()), queue: Some(queue.clone()), ..Wish::default() };
    let made = table.insert(|handle| transfer(handle, wish.spec())).unwrap();
    peer.submit(made.clone()).unwrap();
    let ranges = [0, 1].map(|_| match pull(&peer, 1) {
        Some(Pulled::Slices { range, .. }) => range,
        _ => panic!("no data"),
    });
    (Rc::new(Rig { peer, table, transfer: made, region, queue }), ranges)
}

fn settles(rig: &Rc<Rig>, name: &str, range: SliceRange) -> ferry_sim_kernel::task::JoinHandle<()> {
    start(rig, name, move |rig| confirm(&rig.peer, &rig.transfer, range, false))
}

impl Rig {
    /// Checks what each thread that sees the transfer final must find.
    fn check_final(&self) {
        let result = self.transfer.result().expect("the result");
        assert_eq!((result.state, result.bytes_confirmed), (State::Done, 2 * u64::from(SLICE_BYTES)));
        assert!(self.region.is_idle(), "the transfer is final and still in its region");
        assert_eq!(self.peer.engine().stats.counts().transfers_done, 1, "the statistics come later");
        let mut events = Vec::new();
        self.queue.drain(&mut events, 2);
        let bodies: Vec<_> = events.into_iter().map(|event| event.body).collect();
        assert!(matches!(&bodies[..], [EventBody::Transfer { user_data: 5, .. }]), "{bodies:?}");
    }
}

/// Two threads settle the two slices; one of them makes the transfer final. A thread that waits is woken and sees all.
#[test]
fn a_thread_that_waits_sees_all_that_came_before_the_end() {
    explore(2, || {
        let (rig, [first, second]) = posted();
        let waits = start(&rig, "waits", |rig| {
            wait(&rig.transfer);
            rig.check_final();
        });
        join([settles(&rig, "settles-0", first), settles(&rig, "settles-1", second), waits]);
        assert_eq!(rig.peer.active(), 0);
    });
}

/// A thread waits for any of two transfers, both of which end.
#[test]
fn a_thread_that_waits_for_any_is_woken() {
    explore(2, || {
        let peer = peer();
        let both = [1, 2].map(|handle| Wish { slices: 1, ..Wish::default() }.transfer(handle));
        let rig = Rc::new((peer, both));
        let ends = |nth: usize| {
            move |(peer, both): &(Peer, [Arc<TransferCore>; 2])| {
                peer.submit(both[nth].clone()).unwrap();
                peer.strike(&both[nth], CANCEL);
            }
        };
        let waits = start(&rig, "waits", |(_, both)| {
            let found = wait_any(both).unwrap();
            assert!(both[found].is_final());
        });
        join([start(&rig, "ends-0", ends(0)), start(&rig, "ends-1", ends(1)), waits]);
        check_end(&rig.0, &[&rig.1[0], &rig.1[1]]);
    });
}

/// The owner drops its handle while the transfer ends: one of the two threads forgets it.
#[test]
fn a_transfer_whose_handle_is_dropped_is_forgotten() {
    explore(3, || {
        let (rig, [first, second]) = posted();
        confirm(&rig.peer, &rig.transfer, first, false);
        let drops = start(&rig, "drops", |rig| {
            if orphan(&rig.transfer) {
                let _ = rig.table.remove(rig.transfer.handle);
            }
        });
        join([settles(&rig, "settles", second), drops]);
        assert_eq!(rig.table.count(), 0, "nobody forgets the transfer");
        rig.check_final();
    });
}
