//! Readies that wait for events of a device.

use ferry::status::Error;
use ferry::Status;
use ferry_kv::handoff::limits::DEVICE_EVENTS_MAX;
use ferry_kv::handoff::wire::Message;
use ferry_kv::handoff::{Blocks, End, HandoffId, HandoffState, OfferSpec};

use super::rig::*;

/// An offer with a taker by push.
fn offered() -> Rig {
    let mut rig = greeted([2], [one()]);
    rig.offer(1, 1);
    rig.hear(peer(2), Message::Take(take(1, 1, true)));
    rig
}

impl Rig {
    fn after(&mut self, layers: std::ops::Range<u32>, tokens: u64, event: u64) -> Result<(), String> {
        let done = self.machine.offer_ready_after(id(1), layers, tokens, event, self.now);
        self.settle();
        done.map_err(|error| error.message)
    }

    fn reached(&mut self, event: u64, result: Result<(), Error>) {
        self.machine.event_reached(event, result, self.now);
        self.settle();
    }

    /// Ends what was posted; the layers and tokens that the taker is told of.
    fn posted(&mut self) -> Vec<(std::ops::Range<u32>, std::ops::Range<u64>)> {
        self.told(peer(2));
        self.all_moved();
        let told = self.told(peer(2)).into_iter().filter_map(|message| match message {
            Message::Data { work, .. } => Some((work.layers, work.tokens)),
            _ => None,
        });
        told.collect()
    }

    fn awaited(&self) -> Vec<u64> {
        self.machine.awaited_events().into_iter().collect()
    }
}

#[test]
fn readies_apply_in_the_order_of_their_calls() {
    let mut rig = offered();
    rig.after(0..1, TOKENS, 7).unwrap();
    rig.after(1..2, TOKENS, 8).unwrap();
    // Without an event, and behind two.
    rig.ready(1, 2..3, TOKENS);
    rig.machine.offer_seal(id(1), TOKENS, 0).unwrap();
    assert_eq!(rig.awaited(), [7, 8]);
    rig.reached(8, Ok(()));
    rig.reached(99, Ok(()));
    assert_eq!(rig.awaited(), [7]);
    assert!(rig.posted().is_empty(), "layer 0 is not computed");
    rig.reached(7, Ok(()));
    assert_eq!(rig.posted(), [(0..3, 0..TOKENS)]);
    rig.hear(peer(2), done(key(1, 1)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
    // Nothing waits any more: the next one applies at once.
    rig.offer(2, 1);
    rig.hear(peer(2), Message::Take(take(2, 2, true)));
    rig.seal(2);
    assert_eq!(rig.posted(), [(0..3, 0..TOKENS)]);
}

#[test]
fn what_is_reached_moves_while_later_layers_wait() {
    let mut rig = offered();
    rig.after(0..1, 8, 7).unwrap();
    rig.after(1..3, 8, 8).unwrap();
    rig.after(0..3, TOKENS, 9).unwrap();
    rig.reached(7, Ok(()));
    assert_eq!(rig.posted(), [(0..1, 0..8)]);
    rig.reached(8, Ok(()));
    assert_eq!(rig.posted(), [(1..3, 0..8)]);
    rig.reached(9, Ok(()));
    assert_eq!(rig.posted(), [(0..3, 8..TOKENS)]);
    assert!(rig.awaited().is_empty());
}

/// Wrong calls are told at once, as if all that waits had applied.
#[test]
fn what_is_wrong_is_told_by_the_call() {
    let mut rig = Rig::new(one());
    rig.offer(1, 1);
    rig.after(0..1, 8, 7).unwrap();
    assert_eq!(rig.after(0..1, 8, 8).unwrap_err(), "layers: layer 0 is ready up to token 8 already");
    assert_eq!(rig.after(1..2, 9, 8).unwrap_err(), "layers: layer 0 is ready up to token 8 only");
    assert_eq!(rig.after(1..1, 9, 8).unwrap_err(), "layers: 1 to 1 is no range of the 3 layers");
    let refused = rig.machine.offer_ready(id(1), 0..1, 8, 0).unwrap_err();
    assert_eq!(refused.message, "layers: layer 0 is ready up to token 8 already");
    assert!(rig.after(0..1, TOKENS + 1, 8).unwrap_err().starts_with("tokens: the tokens 0 to 17 need more"));
    let refused = rig.machine.offer_seal(id(1), 7, 0).unwrap_err();
    assert_eq!(refused.message, "tokens: 7 are less than the 8 that are ready");
    rig.machine.offer_seal(id(1), 8, 0).unwrap();
    assert_eq!(rig.after(0..1, 9, 8).unwrap_err(), "tokens: 9 are above the 8 of the seal");
    assert_eq!(rig.awaited(), [7], "what was refused does not wait");
    let unknown = rig.machine.offer_ready_after(id(5), 0..1, 8, 3, 0).unwrap_err();
    assert_eq!((unknown.status, &*unknown.message), (Status::Invalid, "id: 05050505.. is no offer"));
}

#[test]
fn work_that_fails_fails_its_offer_and_no_other() {
    let mut rig = offered();
    rig.offer(2, 1);
    rig.after(0..1, TOKENS, 7).unwrap();
    rig.after(1..2, TOKENS, 8).unwrap();
    rig.machine.offer_ready_after(id(2), 0..1, 4, 9, 0).unwrap();
    // Even behind one that is not reached.
    rig.reached(8, Err(Error::new(Status::Unavailable, "the device said 700")));
    assert_eq!(rig.end_of(1), Some((End::Failed, Status::Unavailable)));
    let why = rig.events.iter().find_map(|event| match event {
        ferry_kv::handoff::Event::Ended { why, .. } => Some(why.clone()),
        _ => None,
    });
    let expected = "the work before an event of the producer's device failed: the device said 700";
    assert_eq!(why.as_deref(), Some(expected));
    assert_eq!(rig.awaited(), [9]);
    rig.reached(7, Ok(()));
    assert!(rig.posted().is_empty());
    assert_eq!(rig.machine.status(id(2)), HandoffState::Offered { sealed: false, takers: 0 });
}

/// An offer that ends waits for nothing: aborted, with its lease, with its cache.
#[test]
fn an_end_gives_up_what_waits() {
    for way in 0..4 {
        let mut rig = Rig::new(one());
        rig.offer(1, 1);
        rig.after(0..1, TOKENS, 7).unwrap();
        match way {
            0 => rig.machine.offer_cancel(id(1), 0).unwrap(),
            1 => {
                rig.machine.offer_seal(id(1), TOKENS, 0).unwrap();
                rig.tick(LEASE);
            }
            2 => assert!(rig.machine.close(0)),
            _ => rig.machine.engine_closed(0),
        }
        rig.settle();
        assert!(rig.awaited().is_empty(), "{way}");
        let end = rig.end_of(1);
        rig.reached(7, Err(Error::new(Status::Corrupt, "late")));
        assert_eq!((rig.end_of(1), rig.machine.metrics(0).offers), (end, 0), "{way}");
        assert_eq!(rig.after(1..2, TOKENS, 8).unwrap_err(), "id: 01010101.. has ended", "{way}");
    }
    // While a WRITE of it is not final, the offer is ending, and an event changes nothing.
    let mut rig = offered();
    rig.ready(1, 0..3, 8);
    rig.after(0..3, TOKENS, 7).unwrap();
    rig.machine.record(9, 0).unwrap();
    rig.abort(1);
    rig.reached(7, Ok(()));
    assert!(rig.awaited().is_empty());
    assert!(rig.machine.recorded(0, 9).is_empty(), "nothing becomes ready of what is ending");
    assert_eq!((rig.posts.len(), rig.machine.status(id(1))), (1, HandoffState::Ending));
    rig.moved(Ok(()));
    assert_eq!(rig.end_of(1), Some((End::Cancelled, Status::Cancelled)));
}

#[test]
fn what_waits_is_bounded() {
    let mut rig = Rig::new(one());
    for number in 0..DEVICE_EVENTS_MAX / 16 {
        let mut bytes = [1; 16];
        (bytes[0], bytes[1]) = ((number >> 8) as u8, number as u8);
        let id = HandoffId::from_bytes(bytes);
        rig.offer_as(OfferSpec { id, ..offer_spec(1, 1) });
        for token in 1..=16 {
            rig.machine.offer_ready_after(id, 0..3, token, number as u64 * 16 + token, 0).unwrap();
        }
    }
    rig.offer(1, 1);
    assert_eq!(
        rig.after(0..1, 1, 1 << 40).unwrap_err(),
        "4096 calls of offer_ready wait for events of devices"
    );
    // A call that need not wait always has room.
    rig.machine.offer_ready(id(1), 0..1, 1, 0).unwrap();
    rig.reached(1, Ok(()));
    rig.after(0..1, 2, 1 << 40).unwrap();
    assert_eq!(rig.machine.offer_ready(id(1), 1..2, 1, 0).unwrap_err().status, Status::Limit);
}

#[test]
fn what_waits_for_an_event_and_is_taken_back_is_said_again() {
    let mut rig = offered();
    rig.after(0..3, 8, 7).unwrap();
    rig.after(0..3, TOKENS, 8).unwrap();
    // Waits behind the one that is taken back.
    rig.machine.offer_retract(id(1), 8, 0).unwrap();
    rig.settle();
    assert_eq!(rig.awaited(), [7]);
    rig.hear(peer(2), Message::Retracted { key: key(1, 1), epoch: 1 });
    rig.reached(8, Ok(()));
    rig.reached(7, Ok(()));
    assert_eq!(rig.posted(), [(0..3, 0..8)]);
    rig.machine.offer_extend(id(1), &[Blocks { first_token: 0, ids: vec![8, 9] }], 0).unwrap();
    rig.after(0..3, TOKENS, 9).unwrap();
    rig.reached(9, Err(Error::new(Status::Unavailable, "the work has failed")));
    assert_eq!(rig.end_of(1), Some((End::Failed, Status::Unavailable)));
}
