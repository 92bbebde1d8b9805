//! Tests of the bound on late lanes, and of a lane that takes the place of another.

use super::*;
use crate::peer::tests::{peer, session_with};
use crate::sys::poller::PollerKind;
use crate::types::Transport;
use crate::{Config, Engine};
use std::os::unix::net::UnixStream;

/// A service with one session. The peers of the engine are not its own.
struct Rig {
    _engine: Engine,
    service: TcpService,
    peer: Arc<Peer>,
}

impl Rig {
    fn new(dialer: bool) -> Rig {
        let mut config = Config::default();
        config.set("transports", "tcp").unwrap();
        let engine = Engine::open(config).unwrap();
        let workers = Arc::new(Workers::new(1, PollerKind::Epoll, 0).unwrap());
        let poller = Arc::new(Poller::new(PollerKind::Epoll).unwrap());
        let service = TcpService::new(engine.whole().clone(), workers, poller);
        let peer = peer();
        service.add(peer.clone());
        service.begin(session_with(peer.clone(), dialer));
        Rig { _engine: engine, service, peer }
    }

    fn greeting(&self, lane: u32) -> Greeting {
        Greeting {
            session_id: session_with(self.peer.clone(), true).session_id,
            lane: LaneId::from_raw(lane),
            slot: 1,
        }
    }

    /// Returns whether a connection with this number is attached as a lane.
    fn attach(&self, lane: u32) -> bool {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        self.service.attach(self.peer.handle, &self.greeting(lane), ours.into()).is_some()
    }

    fn is_welcome(&self, lane: u32) -> bool {
        let (greeting, key) = (self.greeting(lane), session_with(self.peer.clone(), true).key);
        let bytes = greeting.encode(&key);
        let (_, mac) = Greeting::decode(bytes[..].try_into().unwrap());
        self.service.welcome(&greeting, &mac).is_some()
    }
}

/// At either end: a dialer, too, may be made to open lane after lane.
#[test]
fn a_peer_with_too_many_late_lanes_gets_no_further_lane() {
    for dialer in [false, true] {
        let rig = Rig::new(dialer);
        let handle = rig.peer.handle;
        let most = LATE_LANES_MAX as u32;
        for lane in 1..=most {
            assert!(rig.attach(lane), "{lane} of {most}");
            let late = rig.service.take_lane(handle, LaneId::from_raw(lane)).unwrap();
            rig.service.late.lock().entry(handle).or_default().push(late);
        }
        assert!(
            !rig.is_welcome(most + 1) && !rig.attach(most + 1),
            "one more than the limit; dialer: {dialer}"
        );
        rig.service.late.lock().get_mut(&handle).unwrap().pop();
        assert_eq!(rig.is_welcome(most + 1), !dialer, "the acceptor alone is greeted");
        assert!(rig.attach(most + 1), "dialer: {dialer}");
    }
}

/// The peer has lost a lane, and this end has not noticed. The older lane is reported as lost, and when it is closed
/// the newer one stays.
#[test]
fn a_lane_that_takes_the_place_of_another_stays() {
    let rig = Rig::new(false);
    let handle = rig.peer.handle;
    let path = rig.peer.path(Transport::Tcp).unwrap();
    assert!(rig.attach(1) && rig.attach(2));
    assert_eq!(path.lanes(), 1, "they have one slot");
    let session_lanes = || rig.service.lanes(handle).len();
    assert_eq!(session_lanes(), 2, "the older one is open until the control loop closes it");
    assert!(matches!(rig.service.close_lane(handle, LaneId::from_raw(1)), Some(Closed::Quiet(_))));
    assert_eq!((path.lanes(), session_lanes()), (1, 1));
    assert!(!rig.attach(1), "numbers rise");
}
