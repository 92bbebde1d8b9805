//! Messages that a peer's stage may not send.

use super::*;
use crate::peer::{PeerState, TransportService};
use crate::stage::wire::Message;
use crate::types::OperationId;

/// A slot at the end of all addresses: an offset in the slot would be beyond them.
#[test]
fn a_slot_that_can_be_no_memory_ends_the_session() {
    let two = Two::new(&[("transports", "tcp"), ("staging_slots", "2")]);
    let (local, remote) = (two.place(&two.a, None, 8 * MIB), two.place(&two.b, Some(0), 8 * MIB));
    let begun = two.fake.begun.load(Ordering::SeqCst);
    two.fake.hangs.store(true, Ordering::SeqCst);
    let requests = scattered(&local, &remote, 600, 8 << 10);
    let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
    until("both of the target's slots are in use", || two.fake.begun.load(Ordering::SeqCst) >= begun + 2);
    // The next run waits for one.
    let mut body = Vec::new();
    (1..16).map(OperationId::from_raw).for_each(|op| {
        Message::Grant { op, region: RegionId::from_raw(7), address: u64::MAX - 4096 }.encode(&mut body)
    });
    assert!(two.a.stage().message(two.peer, &body));
    until("the session is over", || two.a.peer_info(two.peer).unwrap().state == PeerState::Lost);
    two.fake.hangs.store(false, Ordering::SeqCst);
    let result = transfer.wait(Some(BOUND)).unwrap();
    assert_eq!((result.state, result.status), (State::Failed, Status::Corrupt));
}
