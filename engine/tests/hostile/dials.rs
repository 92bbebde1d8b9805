//! Both ends dial, in orders that a network may make. Luck does not decide which connection the session keeps, and no
//! end waits for a dial of the other that never comes.

use crate::hostile::{Hostile, HostileLane, HostileListener, Taken, Who, PATIENCE};
use crate::support::{connect, engine, eventually};
use ferry::internals::session::handshake::RefusalCode;
use ferry::internals::session::message::Message;
use ferry::notify::{Event, EventBody, Queue, WHAT_PEERS};
use ferry::types::{EngineId, PeerId};
use ferry::{Engine, PeerState, Status};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

/// Times that nothing here comes to.
const PATIENT: [(&str, &str); 3] =
    [("reconnect_timeout_ms", "60000"), ("connect_timeout_ms", "60000"), ("handshake_timeout_ms", "60000")];

/// An engine, and a peer whose identity is smaller or larger than the engine's.
struct Two {
    engine: Engine,
    who: Who,
    listener: HostileListener,
}

impl Two {
    fn new(is_larger: bool) -> Two {
        let mut who = Who::new();
        who.0.engine_id = EngineId([if is_larger { 0xff } else { 0 }; 16]);
        let listener = HostileListener::open(Who(who.0.clone()));
        who.0.address.clone_from(&listener.address);
        Two { engine: engine(&PATIENT), who, listener }
    }

    fn dial(&self) -> Hostile {
        Hostile::dial(self.engine.address(), &self.who)
    }

    fn state(&self, peer: PeerId) -> PeerState {
        self.engine.peer_info(peer).unwrap().state
    }

    /// Returns the handle of the one peer that is up.
    fn up(&self) -> PeerId {
        let mut peers = self.engine.peers().unwrap();
        peers.retain(|peer| self.state(*peer) == PeerState::Up);
        assert_eq!(peers.len(), 1);
        peers[0]
    }

    /// Connects the engine to the peer.
    fn connect(&self) -> (Hostile, Vec<HostileLane>, PeerId) {
        connect(&self.engine, &self.listener)
    }

    /// Lets the engine begin to connect to the peer; returns the queue that is told of the end.
    fn begin_to_connect(&self) -> Arc<Queue> {
        let queue = self.engine.queue(WHAT_PEERS, 8).unwrap();
        self.engine.connect_async(&self.listener.address, Some(PATIENCE), &queue, 5).unwrap();
        queue
    }

    /// The engine's next dial resumes the session of `from`.
    fn redial_resumes(&self, from: &Hostile, handle: PeerId) {
        let mut next = self.listener.accept();
        resume(&mut next, from);
        let _lanes = next.up();
        next.sync();
        assert_eq!(self.up(), handle);
    }

    /// Returns another identity at the peer's address.
    fn another(&self) -> Who {
        let mut another = Who(self.who.0.clone());
        another.0.engine_id = EngineId([0xfe; 16]);
        another
    }

    /// Connects the engine to the peer, cuts the connection, and lets the peer dial before it answers the redial.
    /// Returns the redial, the peer's connection with its lanes, and the first session's handle.
    fn overtake(&self, resumes: bool) -> (Taken<'_>, Hostile, Vec<HostileLane>, PeerId) {
        let (first, _lanes, handle) = self.connect();
        self.cut(&first, handle);
        let redial = self.listener.take();
        let mut second = self.dial();
        if resumes {
            resume(&mut second, &first);
        }
        let lanes = second.up();
        second.sync();
        (redial, second, lanes, handle)
    }

    /// Ends the session's connection.
    fn cut(&self, peer: &Hostile, handle: PeerId) {
        let _ = peer.raw().shutdown(Shutdown::Both);
        eventually("the session is down", || self.state(handle) == PeerState::Down);
    }
}

/// Names the session of `from` in the next Start.
fn resume(next: &mut Hostile, from: &Hostile) {
    (next.association, next.known) = (from.association, from.known);
}

/// Returns what the event of a connect tells.
fn connected(queue: &Queue) -> (PeerId, Status) {
    let (mut events, mut told): (Vec<Event>, _) = (Vec::new(), None);
    eventually("the connect ends", || {
        queue.drain(&mut events, 8);
        told = events.iter().find_map(|event| match &event.body {
            EventBody::PeerConnect { status, .. } => Some((event.peer, *status)),
            _ => None,
        });
        told.is_some()
    });
    told.unwrap()
}

/// The network held up the answer to a redial, until the peer had dialed itself.
#[test]
fn a_redial_that_is_answered_late_ends_no_session_that_came_meanwhile() {
    for (is_larger, resumes) in [(false, false), (false, true), (true, false), (true, true)] {
        let two = Two::new(is_larger);
        let (redial, mut second, _lanes, handle) = two.overtake(resumes);
        let now = two.up();
        assert_eq!(now == handle, resumes);
        let lost = || two.engine.stats().unwrap().counts.sessions_lost;
        let before = lost();
        assert_eq!(redial.finish().receive_any(), None, "the engine began a session on the redial");
        second.sync();
        assert_eq!((two.up(), lost()), (now, before));
    }
}

/// While the engine's own dial has been answered, the end with the smaller identity refuses the other's dial.
#[test]
fn of_two_dials_the_one_of_the_smaller_engine_stays_also_if_it_is_a_redial() {
    for is_larger in [false, true] {
        let two = Two::new(is_larger);
        let (first, _lanes, handle) = two.connect();
        two.cut(&first, handle);
        let mut redial = two.listener.take();
        redial.answer();
        let socket = TcpStream::connect(two.engine.address()).unwrap();
        let own = Hostile::try_over(socket, &two.who);
        let mut stays = match own {
            Ok(own) => {
                assert!(!is_larger, "both dials stand");
                own
            }
            Err(error) => {
                assert_eq!((is_larger, error.refusal), (true, Some(RefusalCode::Duplicate)));
                redial.finish()
            }
        };
        resume(&mut stays, &first);
        let _lanes = stays.up();
        stays.sync();
        assert_eq!(two.up(), handle);
    }
}

/// A peer that dials may have lost the connection that the engine takes for alive.
#[test]
fn a_peer_whose_dial_is_refused_is_asked_on_the_connection_that_stays() {
    let two = Two::new(true);
    let (mut first, _lanes, _) = two.connect();
    first.sync();
    let socket = TcpStream::connect(two.engine.address()).unwrap();
    let refused = Hostile::try_over(socket, &two.who).err().and_then(|error| error.refusal);
    assert_eq!(refused, Some(RefusalCode::Duplicate));
    let asked = std::iter::from_fn(|| first.receive_any());
    // The engine's services have messages of their own.
    let asked = asked.into_iter().find(|message| !matches!(message, Message::Transport { .. }));
    assert!(matches!(asked, Some(Message::Ping { .. })), "{asked:?}");
}

/// The engine cannot reach the peer, and the peer can reach the engine.
#[test]
fn a_dial_that_nobody_answers_keeps_no_peer_from_connecting() {
    let two = Two::new(true);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| two.engine.connect(&two.listener.address, Some(PATIENCE)));
        let unanswered = two.listener.take();
        let mut peer = two.dial();
        let _lanes = peer.up();
        assert_eq!(connecting.join().unwrap().unwrap(), two.up());
        // The dial comes through at last, and is not needed.
        assert_eq!(unanswered.finish().receive_any(), None);
    });
}

/// The dial of the peer took the place of the engine's own. Then the peer does not dial again.
#[test]
fn an_engine_that_knows_the_peer_s_address_dials_although_the_peer_had_dialed() {
    for resumes in [false, true] {
        let two = Two::new(true);
        let (redial, second, _lanes, _) = two.overtake(resumes);
        assert_eq!(redial.finish().receive_any(), None);
        let handle = two.up();
        two.cut(&second, handle);
        two.redial_resumes(&second, handle);
    }
}

/// What the peer says on the older connection may have been said before it opened the lanes of the later one.
#[test]
fn a_connection_that_began_before_one_that_is_lost_is_not_taken() {
    let two = Two::new(true);
    let _queue = two.begin_to_connect();
    let mut older = two.listener.accept();
    let mut later = two.dial();
    let _lanes = later.up();
    later.sync();
    let handle = two.up();
    two.cut(&later, handle);
    older.start();
    assert_eq!(older.receive_any(), None, "the engine went on with the older connection");
    two.redial_resumes(&later, handle);
}

/// The peer had dialed last, but the engine has reached it before: who answers in its place has replaced it.
#[test]
fn an_engine_that_answers_where_the_peer_was_reached_replaces_it() {
    let mut two = Two::new(true);
    let (redial, second, _lanes, handle) = two.overtake(true);
    assert_eq!(redial.finish().receive_any(), None);
    two.listener.hand_over_to(two.another());
    two.cut(&second, handle);
    let mut other = two.listener.accept();
    let _lanes = other.up();
    other.sync();
    assert_eq!(two.state(handle), PeerState::Lost);
    assert_ne!(two.up(), handle);
}

/// Clones of a machine claim one address, behind which one of them listens.
#[test]
fn a_clone_that_answers_in_the_place_of_another_ends_nobody_s_session() {
    for (is_connected, refuses) in [(false, false), (true, false), (true, true)] {
        let two = Two::new(true);
        let listens = two.another();
        let mut clone = is_connected.then(|| Hostile::dial(two.engine.address(), &listens));
        let _of_clone = clone.as_mut().map(Hostile::up);
        let mut first = two.dial();
        let _lanes = first.up();
        first.sync();
        let handle = two.engine.connect(&two.listener.address, Some(PATIENCE)).unwrap();
        let (engine, mut listener) = (two.engine, two.listener);
        listener.hand_over_to(listens);
        let _ = first.raw().shutdown(Shutdown::Both);
        eventually("the session is down", || engine.peer_info(handle).unwrap().state == PeerState::Down);
        // The loop has the call before it hears who answers.
        let queue = engine.queue(WHAT_PEERS, 8).unwrap();
        engine.connect_async(&listener.address, Some(PATIENCE), &queue, 5).unwrap();
        let answers = listener.take();
        let mut stays = None;
        if refuses {
            answers.refuse(RefusalCode::Duplicate);
        } else if is_connected {
            assert_eq!(answers.finish().receive_any(), None, "the clone has a session");
        } else {
            let mut answers = answers.finish();
            stays = Some((answers.up(), answers));
        }
        let (got, status) = connected(&queue);
        assert!(status == Status::Ok && got != handle, "{status}: the caller gets who answers");
        if let Some(clone) = &mut clone {
            clone.sync();
        }
        listener.hand_over_to(two.who);
        let mut second = listener.accept();
        resume(&mut second, &first);
        let _lanes = second.up();
        second.sync();
        assert_eq!(engine.peer_info(handle).unwrap().state, PeerState::Up);
        drop(stays);
    }
}

/// The peer had dialed, and does not dial again: it may not know of the loss, or take the engine for the dialer.
#[test]
fn a_connect_dials_a_peer_that_had_dialed_itself() {
    let two = Two::new(true);
    let mut first = two.dial();
    let _lanes = first.up();
    let handle = two.engine.peers().unwrap()[0];
    two.cut(&first, handle);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| two.engine.connect(&two.listener.address, Some(PATIENCE)));
        let mut second = two.listener.accept();
        resume(&mut second, &first);
        let _lanes = second.up();
        assert_eq!(connecting.join().unwrap().unwrap(), handle);
    });
}

/// The caller waits for a connection of the peer, which gives that connection up for another, or says no more there.
#[test]
fn a_connect_that_waits_for_a_connection_gets_the_session_of_another() {
    [true, false].into_iter().for_each(gets_the_session_of_another);
}

fn gets_the_session_of_another(is_given_up: bool) {
    let mut two = Two::new(true);
    if !is_given_up {
        two.engine = engine(&[("handshake_timeout_ms", "4000"), ("connect_timeout_ms", "60000")]);
    }
    let mut first = Some(two.dial());
    let queue = two.begin_to_connect();
    let mut second = two.dial();
    let _lanes = second.up();
    first.take_if(|_| is_given_up);
    assert_eq!(connected(&queue), (two.up(), Status::Ok));
}

/// Who waits for a session that is down asked for the engine at an address, which may be another by then.
#[test]
fn a_connect_that_waits_for_a_session_that_is_lost_gets_the_engine_that_listens_there() {
    let mut two = Two::new(true);
    let (first, _lanes, handle) = two.connect();
    two.cut(&first, handle);
    let queue = two.begin_to_connect();
    // The answer of an engine that has no such session and accepts nobody any more.
    two.listener.take().refuse(RefusalCode::AuthRequired);
    eventually("the peer is lost", || two.state(handle) == PeerState::Lost);
    two.listener.hand_over_to(two.another());
    let mut other = two.listener.accept();
    let _lanes = other.up();
    assert_eq!(connected(&queue), (two.up(), Status::Ok));
}
