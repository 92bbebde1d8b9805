//! The cost of a turn of the stage's thread with many peers depends only on those that something concerns. The thread
//! is not started; the tests call its turns.

use super::super::event::Event;
use super::super::service::{Mover, Stage, StageService, StageSettings, StagedPart};
use super::super::wire::Message;
use crate::complete::Transfer;
use crate::device::{Drivers, Limits};
use crate::handle::Tag;
use crate::peer::tests::{peer_with, session_with};
use crate::peer::{Peer, TransportService};
use crate::region::Registry;
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::types::{OperationId, PeerId, TransferId};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

const PEERS: u64 = 1000;

struct Nowhere;

impl Mover for Nowhere {
    fn submit(&self, _: &Arc<Peer>, _: StagedPart) -> Result<Arc<Transfer>> {
        Err(Error::new(Status::Unavailable, "there is nothing to move"))
    }

    fn forget(&self, _: &Transfer) {}
}

/// A stage with PEERS peers, and its service.
fn stage() -> (Stage, Arc<StageService>) {
    let registry = Arc::new(Registry::new(Tag::from_random(1), None));
    let limits = Limits { batch_bytes: 1, depth: 1, timeout: Duration::from_secs(1) };
    let drivers = Arc::new(Drivers::new(Vec::new(), limits));
    let service =
        StageService::new(StageSettings { slots: 2 }, registry, drivers, Arc::default(), Box::new(Nowhere));
    let mut stage = service.take_stage().unwrap();
    for handle in 1..=PEERS {
        service.begin(session_with(peer_with(handle), true));
    }
    work_off(&mut stage);
    (stage, service)
}

fn work_off(stage: &mut Stage) {
    for event in stage.inbox.take() {
        stage.event(event);
    }
}

/// Runs a turn. Returns the number of peers and operations looked at.
fn turn(stage: &mut Stage) -> u64 {
    work_off(stage);
    let before = stage.due.checked;
    stage.turn(clock::monotonic_ns());
    stage.due.checked - before
}

#[test]
fn a_turn_costs_the_peers_that_something_concerns() {
    let (mut stage, service) = stage();
    assert_eq!(turn(&mut stage), 2 * PEERS, "each may have something queued, and is told what lives");
    assert_eq!(turn(&mut stage), 0);
    service.path(PeerId::from_raw(5)).unwrap().0.nudge(&mut peer_with(5).after());
    service.path(PeerId::from_raw(5)).unwrap().0.nudge(&mut peer_with(5).after());
    assert_eq!(turn(&mut stage), 1, "something was queued");
    let mut said = Vec::new();
    Message::Stop { op: OperationId::from_raw(1) }.encode(&mut said);
    stage.event(Event::Received(PeerId::from_raw(7), said));
    assert_eq!(turn(&mut stage), 1, "an answer");
    service.end(PeerId::from_raw(9));
    service.forget(PeerId::from_raw(9));
    assert_eq!(turn(&mut stage), 1, "a peer is lost");
    assert!(!stage.sides.contains_key(&PeerId::from_raw(9)) && stage.sides.len() as u64 == PEERS - 1);
}

/// Operations that wait for an answer are looked at when their time has come, and no others.
#[test]
fn a_turn_looks_at_the_operations_whose_time_has_come() {
    let (mut stage, _service) = stage();
    turn(&mut stage);
    let soon_ns = crate::sys::clock::monotonic_ns() + 1_000_000_000;
    for op in 1..=PEERS {
        let at_ns = soon_ns + 1_000_000_000_000 * (op % 2);
        stage.operations.check_at(PeerId::from_raw(op), OperationId::from_raw(op), at_ns);
    }
    let before = stage.due.checked;
    stage.check_due(soon_ns - 1);
    assert_eq!(stage.due.checked - before, 0);
    stage.check_due(soon_ns);
    assert_eq!(stage.due.checked - before, PEERS / 2);
}

#[test]
fn a_transfer_that_has_ended_is_watched_no_more() {
    let (mut stage, _service) = stage();
    let (peer, transfer) = (PeerId::from_raw(9), TransferId::from_raw(1));
    stage.sides.get_mut(&peer).unwrap().watched.insert(transfer, Waker::noop().clone());
    stage.event(Event::Struck(peer, transfer));
    assert!(stage.sides[&peer].watched.is_empty());
}
