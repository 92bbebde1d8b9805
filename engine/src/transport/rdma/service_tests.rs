//! Tests of the service without devices: the cost of an event with many sessions, and endpoints that are refused. The
//! service's thread is not started; the tests call its turns.

use super::super::wire::Side;
use super::*;
use crate::handle::Tag;
use crate::peer::tests::{peer_with, session_with};
use crate::peer::{Path, TransportService};
use crate::types::{LaneId, PeerId};

const PEERS: u64 = 1000;

fn service() -> Arc<RdmaService> {
    let devices = DeviceSettings {
        gid_index: None,
        mtu: 0,
        inline_bytes: 0,
        ack_timeout_ms: 1,
        retries: 1,
        mr_bytes_max: 0,
    };
    let settings = RdmaSettings {
        devices,
        names: Vec::new(),
        qps: 1,
        spin_ns: 0,
        lease_ns: 1_000_000_000,
        patience: Duration::from_secs(60),
        idle: Duration::ZERO,
    };
    let registry = Arc::new(Registry::new(Tag::from_random(1), None));
    let service =
        RdmaService::over(Vec::new(), settings, registry, Arc::default(), Direct::new(None)).unwrap();
    for handle in 1..=PEERS {
        service.begin(session_with(peer_with(handle), handle % 2 == 0));
    }
    service
}

/// Runs a turn of the service's thread. Returns the number of sessions that were looked after.
fn turn(service: &Arc<RdmaService>) -> u64 {
    let before = service.served.load(Ordering::Relaxed);
    service.clone().turn(clock::monotonic_ns(), &[]);
    service.served.load(Ordering::Relaxed) - before
}

#[test]
fn an_event_costs_the_sessions_that_it_concerns() {
    let service = service();
    assert_eq!(turn(&service), PEERS, "each has just begun");
    assert_eq!(turn(&service), 0);
    let now = clock::monotonic_ns();
    assert!(service.lock().next_due(now).is_none_or(|at| at > now), "nothing is to be done");
    assert!(service.message(PeerId::from_raw(5), &Message::Idle.encode()));
    assert!(service.lock().next_due(now).is_some_and(|at| at <= now));
    assert_eq!(turn(&service), 1, "a word");
    let call = service.lock().all.get(&PeerId::from_raw(8)).map(|session| session.path.clone()).unwrap();
    call.note_given_up();
    call.rouse();
    assert_eq!(turn(&service), 1, "its endpoints are wanted");
    service.key_holders.give(RegionId::from_raw(70), PeerId::from_raw(9));
    service.key_holders.revoke(RegionId::from_raw(70));
    assert_eq!(turn(&service), 1, "keys are asked for");
    service.end(PeerId::from_raw(9));
    assert_eq!(turn(&service), 0);
    assert!(service.key_holders.holders(RegionId::from_raw(70)).is_empty(), "it has none any more");
}

/// Returns the service's reason for refusing a CONNECT of this lane, if it refuses.
fn refusal(service: &Arc<RdmaService>, peer: PeerId, lane: LaneId) -> Option<String> {
    let side = Side { mtu: 1024, reads_max: 1, qps: vec![(1, 1), (2, 2)] };
    service.commands.take();
    assert!(service.message(peer, &Message::Connect { lane, own: 0, other: 0, side }.encode()));
    turn(service);
    service.commands.take().into_iter().find_map(|command| match command {
        Command::ServiceMessage { body, .. } => match Message::decode(&body) {
            Ok(Message::Refuse { lane: refused, why }) if refused == lane => Some(why),
            _ => None,
        },
        _ => None,
    })
}

/// Lanes of all transports share one sequence of numbers, and no lane opens after its number was fenced.
#[test]
fn an_endpoint_whose_number_is_taken_or_fenced_is_refused() {
    let service = service();
    let numbers = service
        .lock()
        .all
        .get(&PeerId::from_raw(5))
        .map(|session| session.session_info.lane_numbers.clone())
        .unwrap();
    assert!(numbers.take(LaneId::from_raw(3)));
    numbers.fence(LaneId::from_raw(4));
    for lane in [3, 4].map(LaneId::from_raw) {
        let why = refusal(&service, PeerId::from_raw(5), lane).unwrap();
        assert!(why.contains("was taken or fenced"), "{why}");
    }
    let why = refusal(&service, PeerId::from_raw(5), LaneId::from_raw(6)).unwrap();
    assert!(why.contains("no such device"), "{why}");
    assert!(!numbers.is_free(LaneId::from_raw(6)), "TCP's lanes may not have it either");
}
