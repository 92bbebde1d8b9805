//! Tests of late lanes, over a transport whose device finishes when the test says so.

use crate::command::Command;
use crate::context::Context;
use crate::control::tests::{config, until, BOUND};
use crate::loss::{Cause, Loss};
use crate::peer::{Closed, Path, PeerState, SessionInfo, TransportService};
use crate::session::greeting::Greeting;
use crate::types::{LaneId, PeerId, SessionId, Transport};
use crate::Engine;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const TRANSPORT: Transport = Transport::Loopback;
/// The number of the device's lane.
const LANE: LaneId = LaneId::from_raw(1000);

/// A transport with one lane, in the first session, which carries nothing.
struct Device {
    context: Arc<Context>,
    /// The lane is late when it is closed.
    is_busy: AtomicBool,
    /// The peer at the other end of the lane; None when the lane is closed and the device has finished.
    lane: Mutex<Option<PeerId>>,
    /// The ids of the sessions that have begun, and the keys of their lanes.
    sessions: Mutex<Vec<(SessionId, [u8; 32])>>,
}

impl Device {
    /// Opens an engine that has this transport and no other.
    fn open(is_busy: bool) -> (Engine, Arc<Device>) {
        let mut installed = None;
        let engine = Engine::open_with(config(&[("transports", TRANSPORT.name())]), |context, services| {
            let device = Arc::new(Device {
                context: context.clone(),
                is_busy: is_busy.into(),
                lane: Mutex::default(),
                sessions: Mutex::default(),
            });
            let place = services.iter_mut().find(|it| it.transport == TRANSPORT).unwrap();
            place.service = Ok(device.clone());
            installed = Some(device);
        });
        (engine.unwrap(), installed.unwrap())
    }

    fn close(&self) -> Closed {
        if self.is_busy.load(Ordering::SeqCst) {
            return Closed::Soon(Vec::new());
        }
        *self.lane.lock().unwrap() = None;
        Closed::Quiet(Vec::new())
    }

    fn finish(&self) {
        self.is_busy.store(false, Ordering::SeqCst);
        if let Some(peer) = *self.lane.lock().unwrap() {
            let loss = Loss::of(Cause::Ours, "the device has finished");
            self.context.commands.push(Command::LaneLost { peer, lane: LANE, loss });
        }
    }

    /// Returns the session that began after `count - 1` others.
    fn session(&self, count: usize) -> Option<(SessionId, [u8; 32])> {
        self.sessions.lock().unwrap().get(count - 1).copied()
    }
}

impl TransportService for Device {
    fn begin(&self, info: SessionInfo) {
        let mut sessions = self.sessions.lock().unwrap();
        if sessions.is_empty() {
            assert!(info.lane_numbers.take(LANE));
            *self.lane.lock().unwrap() = Some(info.peer.handle);
        }
        sessions.push((info.session_id, info.key));
        info.settled(TRANSPORT, Some("it carries nothing".into()));
    }

    fn path(&self, _peer: PeerId) -> Option<(Arc<dyn Path>, String)> {
        None
    }

    fn close_lane(&self, peer: PeerId, number: LaneId) -> Option<Closed> {
        let is_it = number == LANE && *self.lane.lock().unwrap() == Some(peer);
        is_it.then(|| self.close())
    }

    fn end(&self, peer: PeerId) -> Vec<(LaneId, Closed)> {
        self.close_lane(peer, LANE).map(|closed| (LANE, closed)).into_iter().collect()
    }
}

/// Lets the device finish, also when the test fails: its engine closes then.
struct Busy(Arc<Device>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Contract 3: the dialer has closed its end of a lane, and the device of the acceptor has not finished. The session is
/// connected anew. The acceptor takes no other lane with that number until its device has finished.
#[test]
fn the_number_of_a_late_lane_is_not_taken_by_the_next_connection() {
    let ((a, dialers), (b, acceptors)) = (Device::open(false), Device::open(true));
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    let (object, commands) = (a.whole().peers.get(peer).unwrap(), &a.whole().commands);
    let busy = Busy(acceptors.clone());
    let lanes = || b.peer_info(b.peers().unwrap()[0]).unwrap().lanes;
    let refused = || b.whole().stats.handshakes_refused.load(Ordering::Relaxed);
    let connect_anew = |count: usize| {
        commands.push(Command::PathBroken { peer, transport: TRANSPORT });
        until("both ends begin anew", || {
            let id = dialers.session(count);
            id.is_some() && acceptors.session(count) == id
        });
        // The dialer's engine draws other numbers.
        let (session_id, key) = dialers.session(count).unwrap();
        let mut lane = TcpStream::connect(b.address()).unwrap();
        lane.write_all(&Greeting { session_id, lane: LANE, slot: 0 }.encode(&key)).unwrap();
        lane
    };
    assert!(dialers.session(1).is_some() && dialers.session(1) == acceptors.session(1));
    let _refused = connect_anew(2);
    until("the lane is refused or attached", || refused() > 0 || lanes() > 0);
    assert_eq!((refused(), lanes()), (1, 0), "the number is of a late lane");
    assert_ne!(object.state(), PeerState::Up, "the acceptor has not said that its lanes are closed");
    drop(busy);
    until("the session stands again", || object.state() == PeerState::Up);
    let _attached = connect_anew(3);
    until("the number is free", || lanes() == 1);
    assert_eq!(refused(), 1);
}
