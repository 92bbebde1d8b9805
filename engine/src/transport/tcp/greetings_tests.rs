//! Tests of lanes whose welcome does not come.

use super::*;
use crate::peer::transport::LANE_TOKENS;
use crate::sys::clock;
use crate::sys::poller::PollerKind;
use crate::types::SessionId;
use std::net::TcpListener;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(1);

/// A listener that welcomes nobody.
struct Rig {
    listener: TcpListener,
    greetings: Greetings,
    now: Monotonic,
}

impl Rig {
    fn new() -> Rig {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let poller = Arc::new(Poller::new(PollerKind::Epoll).unwrap());
        Rig { listener, greetings: Greetings::new(poller), now: clock::monotonic_ns() }
    }

    fn dial(&mut self, peer: u64, lane: u32, wait: Duration) -> Greeting {
        let greeting = Greeting { session_id: SessionId([3; 16]), lane: LaneId::from_raw(lane), slot: 0 };
        let dial = Dial {
            peer: PeerId::from_raw(peer),
            remote: self.listener.local_addr().unwrap(),
            key: [7; 32],
            greeting,
            buffer_bytes: 0,
            deadline: self.now + wait,
        };
        self.greetings.dial(dial).unwrap();
        greeting
    }

    fn expire(&mut self, peer: u64, after: Duration) -> Vec<Greeting> {
        self.greetings.expire(PeerId::from_raw(peer), self.now + after)
    }
}

#[test]
fn each_lane_has_its_own_time_to_be_welcomed() {
    let mut rig = Rig::new();
    let [first, second] = [(1, WAIT), (2, 2 * WAIT)].map(|(lane, wait)| rig.dial(1, lane, wait));
    let other = rig.dial(2, 1, WAIT / 2);
    let next = |rig: &Rig, peer| {
        rig.greetings.next_timer(PeerId::from_raw(peer)).map(|at| Duration::from_nanos(at - rig.now))
    };
    assert_eq!((next(&rig, 1), next(&rig, 2)), (Some(WAIT), Some(WAIT / 2)), "each peer has its own lanes");
    assert_eq!(rig.expire(1, WAIT / 2), []);
    assert_eq!(rig.expire(1, WAIT), [first]);
    assert_eq!(next(&rig, 1), Some(2 * WAIT));
    assert_eq!((rig.expire(1, 2 * WAIT), rig.expire(2, 2 * WAIT)), (vec![second], vec![other]));
    assert_eq!((next(&rig, 1), next(&rig, 2)), (None, None));
}

#[test]
fn a_lane_that_is_given_up_is_heard_of_no_more() {
    let mut rig = Rig::new();
    let greetings = [1, 2, 3].map(|lane| rig.dial(1, lane, WAIT));
    rig.dial(2, 1, WAIT);
    let peer = PeerId::from_raw(1);
    assert_eq!(rig.greetings.give_up(peer, LaneId::from_raw(2)), Some(greetings[1]));
    assert_eq!(rig.greetings.give_up(peer, LaneId::from_raw(2)), None);
    assert_eq!(rig.greetings.event(LANE_TOKENS + 2).map(|it| it.greeting), None, "an event that came late");
    assert_eq!(rig.expire(1, WAIT), [greetings[0], greetings[2]]);
    rig.dial(1, 4, WAIT);
    rig.greetings.end(peer);
    assert_eq!((rig.expire(1, WAIT).len(), rig.expire(2, WAIT).len()), (0, 1), "the other peer's stays");
    assert!(rig.greetings.pending.is_empty() && rig.greetings.by_lane.is_empty());
}
