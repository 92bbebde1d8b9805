//! Support for tests of the handshake and the channel: engines, and a pump that moves bytes between a dialer and an
//! acceptor in memory. A test may split the bytes into pieces or alter them.

use super::super::*;
use crate::session::channel::Channel;
use crate::types::{Boottime, EngineId, PlaceId};

pub(crate) const DIALER_NS: Boottime = Boottime::from_ns(1_111);
pub(crate) const ACCEPTOR_NS: Boottime = Boottime::from_ns(2_222);

/// Returns engine number `n`, without an authentication mode.
pub(crate) fn local(n: u8) -> Local {
    Local {
        engine_id: EngineId([n; 16]),
        incarnation: 100 + n as u64,
        address: format!("10.0.0.{n}:7000"),
        tag: 0x100 + n as u16,
        lanes_max: 2 + n as u32,
        frame_bytes_max: 1 << 20,
        reads_max: 64,
        notify_credits: 1000 + n as u32,
        unix_name: Some(format!("ferry-{n:032x}").into_bytes()),
        place: Some(PlaceId([0x50 + n; 16])),
        process: Some(Process { boot: [n; 16], pids: 11, times: 12, pid: 13, started: 14 }),
        auth: AuthPolicy::default(),
    }
}

pub(crate) fn with_secret(n: u8, byte: u8) -> Local {
    let mut local = local(n);
    local.auth.secret = Some(derive_secret(&[byte; 32]).unwrap());
    local
}

/// Called for each byte in transit, with its position in the stream of its direction; true: from the dialer.
pub(crate) type Alter<'a> = dyn FnMut(bool, usize, &mut u8) + 'a;

/// How the pump moves bytes from one end to the other.
pub(crate) struct Wire<'a> {
    /// The largest number of bytes moved at once.
    pub piece: usize,
    pub alter: Box<Alter<'a>>,
    /// The acceptor's proof for the dialer's nonce, made when the dialer asks for it.
    pub proof: Option<Proof>,
    /// The refusal that the acceptor's driver sends instead of WELCOME, if any.
    pub turn_down: Option<RefusalCode>,
}

impl Default for Wire<'_> {
    fn default() -> Self {
        Wire { piece: usize::MAX, alter: Box::new(|_, _, _| ()), proof: None, turn_down: None }
    }
}

/// The result at one side; None while that side still waits.
pub(crate) type End = Option<HandshakeResult<Box<Established>>>;

pub(crate) struct Pump<'a> {
    pub dialer: Dialer,
    pub acceptor: Acceptor,
    pub wire: Wire<'a>,
    pub ends: (End, End),
    /// The bytes that the dialer and the acceptor have sent.
    pub sent: (Vec<u8>, Vec<u8>),
    delivered: (usize, usize),
    nonce: Option<Nonce>,
}

impl<'a> Pump<'a> {
    pub fn new(dialer: &Local, acceptor: &Local, wire: Wire<'a>) -> Pump<'a> {
        let acceptor = Acceptor::new(acceptor).unwrap();
        let (dialer, first) = Dialer::start(dialer).unwrap();
        let sent = (first, Vec::new());
        Pump { dialer, acceptor, wire, ends: (None, None), sent, delivered: (0, 0), nonce: None }
    }

    /// Runs until neither side has anything left to send.
    pub fn run(mut self) -> Pump<'a> {
        while self.feed_acceptor() | self.feed_dialer() {}
        self
    }

    fn feed_acceptor(&mut self) -> bool {
        let bytes = piece(&mut self.wire, true, &self.sent.0, &mut self.delivered.0);
        if bytes.is_empty() || self.ends.1.is_some() {
            return !bytes.is_empty();
        }
        let (issued, proof) = (self.nonce, self.wire.proof.clone());
        let mut proofs = |nonce: &Nonce| proof.clone().filter(|_| issued == Some(*nonce));
        match self.acceptor.input(&bytes, &mut proofs, ACCEPTOR_NS) {
            Ok(HandshakeStep { output, next: Next::More }) => self.sent.1.extend(output),
            Ok(HandshakeStep { output, next: Next::Done(established) }) => {
                self.sent.1.extend(self.wire.turn_down.map_or(output, refusal));
                self.ends.1 = Some(Ok(established));
            }
            Ok(HandshakeStep { next: Next::ProveSameUser { .. }, .. }) => {
                panic!("an acceptor has nothing to prove")
            }
            Err(error) => {
                self.sent.1.extend(&error.reply);
                self.ends.1 = Some(Err(error));
            }
        }
        true
    }

    fn feed_dialer(&mut self) -> bool {
        let bytes = piece(&mut self.wire, false, &self.sent.1, &mut self.delivered.1);
        if bytes.is_empty() || self.ends.0.is_some() {
            return !bytes.is_empty();
        }
        let result = self.dialer.input(&bytes, DIALER_NS);
        self.dialer_step(result);
        true
    }

    fn dialer_step(&mut self, result: HandshakeResult<HandshakeStep>) {
        match result {
            Ok(HandshakeStep { output, next }) => {
                self.sent.0.extend(output);
                match next {
                    Next::More => (),
                    Next::Done(established) => self.ends.0 = Some(Ok(established)),
                    Next::ProveSameUser { nonce, .. } => {
                        self.nonce = Some(nonce);
                        let none = || crate::status::Error::new(crate::Status::System, "no such socket");
                        let proof = self.wire.proof.clone().ok_or_else(none);
                        let result = self.dialer.proof(proof, DIALER_NS);
                        self.dialer_step(result);
                    }
                }
            }
            Err(error) => {
                self.sent.0.extend(&error.reply);
                self.ends.0 = Some(Err(error));
            }
        }
    }
}

fn piece(wire: &mut Wire<'_>, from_dialer: bool, sent: &[u8], delivered: &mut usize) -> Vec<u8> {
    let start = *delivered;
    *delivered = sent.len().min(start.saturating_add(wire.piece));
    let mut bytes = sent[start..*delivered].to_vec();
    for (i, byte) in bytes.iter_mut().enumerate() {
        (wire.alter)(from_dialer, start + i, byte);
    }
    bytes
}

/// Returns both ends of a session between engines 1 and 2 with a shared secret.
pub(crate) fn established() -> (Box<Established>, Box<Established>) {
    let pump = Pump::new(&with_secret(1, 9), &with_secret(2, 9), Wire::default()).run();
    (pump.ends.0.unwrap().unwrap(), pump.ends.1.unwrap().unwrap())
}

pub(crate) fn channels() -> (Channel, Channel) {
    let (dialer, acceptor) = established();
    (dialer.channel, acceptor.channel)
}
