//! A hostile peer with the right secret: it speaks the real handshake, sealed channel and lane frames, in one thread
//! with blocking sockets, and sends whatever the test asks, in any order.
//!
//! ```text
//! let mut peer = Hostile::dial(engine.address(), Who::new());     or HostileListener::open(who) … listener.accept()
//! peer.start(); peer.ready();                                     or peer.up(), which opens the lanes too
//! let mut lane = peer.lane(0);                                    greeted by the dialer
//! lane.send(Header { kind: Kind::Write, sequence: 7, ..lane.header() }, &[descriptor], b"", b"payload");
//! ```
//! Every wait ends within `PATIENCE`, or the test fails. While the peer waits for a message it answers pings.
#![allow(dead_code)]

mod lane;

#[allow(unused_imports)]
pub use lane::{HostileLane, Received};

use ferry::internals::session::channel::Channel;
use ferry::internals::session::greeting::{Greeting, GREETING_BYTES, WELCOME_BYTES};
use ferry::internals::session::handshake::{
    derive_secret, peek_kind, refusal, Acceptor, AuthPolicy, Dialer, Established, HandshakeError, Identity,
    Local, Next, Peek, RefusalCode,
};
use ferry::internals::session::message::Message;
use ferry::internals::sys::{clock, random_u64};
use ferry::types::{EngineId, LaneId, SessionId, Transport};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Returns the message by which an acceptor asks for lanes of these kinds.
pub fn open_lanes(kinds: u32) -> Message {
    let body = kinds.to_le_bytes().to_vec();
    Message::Transport { transport: Transport::Tcp as u8, why: String::new(), body }
}

/// Longer than anything here takes; a wait that lasts longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The secret of the engines that the peer attacks, so that it is authenticated.
pub const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// The peer's identity; any field may be changed before use.
pub struct Who(pub Local);

impl Who {
    /// Makes the identity of a separate engine, with one bulk lane beside the express lane.
    pub fn new() -> Who {
        let id = [random_u64().to_le_bytes(), random_u64().to_le_bytes()].concat();
        let secret: Vec<u8> = (0..SECRET.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&SECRET[at..at + 2], 16).unwrap())
            .collect();
        Who(Local {
            engine_id: EngineId(id.try_into().unwrap()),
            incarnation: random_u64(),
            address: String::new(),
            tag: 7,
            lanes_max: 1,
            frame_bytes_max: 1 << 20,
            reads_max: 64,
            notify_credits: 1024,
            unix_name: None,
            place: None,
            process: None,
            auth: AuthPolicy { secret: Some(derive_secret(&secret).unwrap()), ..AuthPolicy::default() },
        })
    }
}

/// A listener for engines that connect to the hostile peer.
pub struct HostileListener {
    pub address: String,
    who: Who,
    listener: TcpListener,
}

impl HostileListener {
    pub fn open(mut who: Who) -> HostileListener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        socket2::SockRef::from(&listener).set_read_timeout(Some(PATIENCE)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        who.0.address.clone_from(&address);
        HostileListener { address, who, listener }
    }

    /// Lets another identity listen here from now on.
    pub fn hand_over_to(&mut self, mut who: Who) {
        who.0.address.clone_from(&self.address);
        self.who = who;
    }

    /// Takes the next control connection through the handshake. Closes lanes that arrive before it.
    pub fn accept(&self) -> Hostile {
        self.take().finish()
    }

    /// Takes the next control connection and its first bytes, and answers nothing. Closes lanes that arrive before it.
    pub fn take(&self) -> Taken<'_> {
        loop {
            let mut socket = patient(self.listener.accept().expect("the engine did not connect").0);
            match receive(&mut socket) {
                Some(bytes) if matches!(peek_kind(&bytes), Peek::Control) => {
                    let acceptor = Acceptor::new(&self.who.0).unwrap();
                    return Taken { by: self, socket, acceptor, bytes };
                }
                _ => {}
            }
        }
    }
}

/// A control connection of an engine whose handshake is not over.
pub struct Taken<'a> {
    by: &'a HostileListener,
    socket: TcpStream,
    acceptor: Acceptor,
    /// Received, and not handled yet.
    bytes: Vec<u8>,
}

impl Taken<'_> {
    /// `refused`: what is said instead of the last message.
    fn step(&mut self, refused: Option<RefusalCode>) -> Option<Established> {
        let step = self.acceptor.input(&self.bytes, &mut |_| None, clock::boottime_ns()).unwrap();
        let output = match (&step.next, refused) {
            (Next::Done(_), Some(code)) => refusal(code),
            _ => step.output,
        };
        self.socket.write_all(&output).unwrap();
        match step.next {
            Next::Done(established) => Some(*established),
            _ => {
                self.bytes = receive(&mut self.socket).expect("the engine ended the handshake");
                None
            }
        }
    }

    /// Answers the first bytes, and waits for what the engine says to that.
    pub fn answer(&mut self) {
        assert!(self.step(None).is_none());
    }

    /// Refuses the session at the end of the handshake, and waits until the engine has closed the connection.
    pub fn refuse(mut self, code: RefusalCode) {
        while self.step(Some(code)).is_none() {}
        assert!(receive(&mut self.socket).is_none(), "the engine takes no notice of the refusal");
    }

    /// Completes the handshake.
    pub fn finish(mut self) -> Hostile {
        loop {
            if let Some(established) = self.step(None) {
                let (by, leftover) = (self.by, self.acceptor.leftover());
                let listener = by.listener.try_clone().unwrap();
                return Hostile::new(self.socket, established, leftover, Some(listener), &by.who.0);
            }
        }
    }
}

/// One session with an engine.
pub struct Hostile {
    /// The engine's identity, as the engine announced it.
    pub engine: Identity,
    pub session_id: SessionId,
    pub lane_key: [u8; 32],
    /// The engine's association that the next `start` names; `start` fills it in. To resume, take this field and the
    /// next from an earlier session.
    pub association: u64,
    pub known: u64,
    /// The number of lanes of the session, including the express lane.
    pub slots: u32,
    pub next_lane: LaneId,
    listener: Option<TcpListener>,
    /// The engine's listener, or the engine's end of the connection.
    remote: SocketAddr,
    socket: TcpStream,
    channel: Channel,
    input: Vec<u8>,
}

fn patient(socket: TcpStream) -> TcpStream {
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Receives one frame; None when the engine has closed the connection.
fn receive(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 32 << 10];
    match socket.read(&mut bytes) {
        Ok(0) => None,
        Ok(count) => {
            bytes.truncate(count);
            Some(bytes)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the engine said nothing"),
        Err(_) => None,
    }
}

impl Hostile {
    fn new(
        socket: TcpStream,
        established: Established,
        input: Vec<u8>,
        listener: Option<TcpListener>,
        who: &Local,
    ) -> Hostile {
        Hostile {
            slots: who.lanes_max.min(established.peer.lanes_max) + 1,
            engine: established.peer,
            session_id: established.session_id,
            lane_key: *established.lane_key.bytes(),
            association: 0,
            known: 0,
            next_lane: LaneId::from_raw(1),
            listener,
            remote: socket.peer_addr().unwrap(),
            socket,
            channel: established.channel,
            input,
        }
    }

    /// Connects to an engine and completes the handshake; sends nothing more.
    pub fn dial(address: &str, who: &Who) -> Hostile {
        Hostile::over(TcpStream::connect(address).unwrap(), who)
    }

    /// Completes the handshake over an open connection.
    pub fn over(socket: TcpStream, who: &Who) -> Hostile {
        Hostile::try_over(socket, who).unwrap()
    }

    /// Completes the handshake over an open connection, or returns the engine's refusal.
    pub fn try_over(socket: TcpStream, who: &Who) -> Result<Hostile, HandshakeError> {
        let mut socket = patient(socket);
        let (mut dialer, first) = Dialer::start(&who.0).unwrap();
        socket.write_all(&first).unwrap();
        loop {
            let bytes = receive(&mut socket).expect("the engine ended the handshake");
            let step = dialer.input(&bytes, clock::boottime_ns())?;
            socket.write_all(&step.output).unwrap();
            if let Next::Done(established) = step.next {
                return Ok(Hostile::new(socket, *established, dialer.leftover(), None, &who.0));
            }
        }
    }

    /// Sends a message; ignores an error if the engine has ended the session.
    pub fn send(&mut self, message: &Message) {
        self.send_bytes(&message.encode());
    }

    /// Sends these bytes in place of a message.
    pub fn send_bytes(&mut self, plain: &[u8]) {
        let mut sealed = Vec::new();
        self.channel.seal(plain, &mut sealed).unwrap();
        let _ = self.socket.write_all(&sealed);
    }

    /// Seals many messages, to be sent through `raw`.
    pub fn seal_all<'a>(&mut self, messages: impl IntoIterator<Item = &'a Message>) -> Vec<u8> {
        let mut sealed = Vec::new();
        messages.into_iter().for_each(|it| self.channel.seal(&it.encode(), &mut sealed).unwrap());
        sealed
    }

    /// Sends many messages in one write.
    pub fn send_all<'a>(&mut self, messages: impl IntoIterator<Item = &'a Message>) {
        let sealed = self.seal_all(messages);
        let _ = self.socket.write_all(&sealed);
    }

    /// Returns the control connection's socket, for bytes that are sealed already or answers that no test reads.
    pub fn raw(&self) -> TcpStream {
        self.socket.try_clone().unwrap()
    }

    /// Returns the next message, pings included; None when the engine has ended the connection.
    pub fn receive_any(&mut self) -> Option<Message> {
        loop {
            if let Some(plain) = self.channel.open(&mut self.input).unwrap() {
                return Some(Message::decode(&plain).unwrap());
            }
            let bytes = receive(&mut self.socket)?;
            self.input.extend_from_slice(&bytes);
        }
    }

    /// Returns the next message; answers pings.
    pub fn receive(&mut self) -> Option<Message> {
        loop {
            match self.receive_any()? {
                Message::Ping { nonce } => {
                    self.send(&Message::Pong { nonce, clock_ns: clock::boottime_ns() })
                }
                message => return Some(message),
            }
        }
    }

    /// Reads until `pick` takes a message; drops the others.
    #[track_caller]
    pub fn receive_until<T>(&mut self, mut pick: impl FnMut(&Message) -> Option<T>) -> T {
        loop {
            let message = self.receive().expect("the engine ended the session");
            if let Some(picked) = pick(&message) {
                return picked;
            }
        }
    }

    /// Reads until the engine ends the connection; returns the status of its Bye, if there was a Bye.
    pub fn receive_end(&mut self) -> Option<i32> {
        let mut bye = None;
        while let Some(message) = self.receive() {
            if let Message::Bye { status } = message {
                bye = Some(status);
            }
        }
        bye
    }

    /// Exchanges Start, with `link` and `known` as they are; stores the engine's values for the next time.
    pub fn start(&mut self) {
        let fresh = random_u64().max(1);
        self.send(&Message::Start { association: self.association, known: self.known, fresh });
        let theirs = self.receive_until(|message| match message {
            Message::Start { association, known, fresh } => Some((*association, *known, *fresh)),
            _ => None,
        });
        let resumes = self.association != 0 && (theirs.1, theirs.0) == (self.association, self.known);
        if !resumes {
            (self.association, self.known) = (fresh, theirs.2);
        }
    }

    /// Sends Ready, and waits for the engine's Ready.
    pub fn ready(&mut self) {
        self.send(&Message::Ready { notify_limit: 1024 });
        self.receive_until(|message| matches!(message, Message::Ready { .. }).then_some(()));
    }

    /// Waits until the engine has handled all earlier messages: it answers a ping.
    pub fn sync(&mut self) {
        let asked = random_u64();
        self.send(&Message::Ping { nonce: asked });
        self.receive_until(|message| {
            matches!(message, Message::Pong { nonce, .. } if *nonce == asked).then_some(())
        });
    }

    /// Brings the session up: Start, Ready and the lanes; returns the lanes by slot.
    pub fn up(&mut self) -> Vec<HostileLane> {
        self.start();
        self.ready();
        if self.listener.is_some() {
            self.send(&open_lanes(3));
        }
        let mut lanes: Vec<HostileLane> = (0..self.slots).map(|slot| self.lane(slot)).collect();
        lanes.sort_by_key(|lane| lane.slot);
        lanes
    }

    /// Returns a lane: opens one with the next number in this slot, or, if the engine dialed, accepts the next lane
    /// that the engine opens.
    pub fn lane(&mut self, slot: u32) -> HostileLane {
        let Some(listener) = &self.listener else {
            let lane = self.next_lane;
            self.next_lane = lane.next();
            return self.open_lane(lane, slot).expect("the engine refused the lane");
        };
        let mut bytes = [0; GREETING_BYTES];
        let mut socket = loop {
            let mut socket = patient(listener.accept().expect("the engine opened no lane").0);
            socket.read_exact(&mut bytes).unwrap();
            // A dial of another session is closed, and made again.
            if !matches!(peek_kind(&bytes), Peek::Control) {
                break socket;
            }
        };
        let (greeting, mac) = Greeting::decode(&bytes);
        assert!(greeting.verify(&self.lane_key, &mac), "another session's lane");
        socket.write_all(&greeting.welcome(&self.lane_key)).unwrap();
        HostileLane::new(socket, &greeting, &self.lane_key, false)
    }

    /// Returns the listener for the engine's lanes, if the engine dialed.
    pub fn listener(&self) -> Option<&TcpListener> {
        self.listener.as_ref()
    }

    /// Greets the engine with these numbers; None when the engine closes the connection.
    pub fn open_lane(&self, lane: LaneId, slot: u32) -> Option<HostileLane> {
        let greeting = Greeting { session_id: self.session_id, lane, slot };
        let mut socket = patient(TcpStream::connect(self.remote).unwrap());
        socket.write_all(&greeting.encode(&self.lane_key)).unwrap();
        let mut welcome = [0; WELCOME_BYTES];
        socket.read_exact(&mut welcome).ok()?;
        assert!(greeting.is_welcome(&self.lane_key, &welcome));
        Some(HostileLane::new(socket, &greeting, &self.lane_key, true))
    }
}
