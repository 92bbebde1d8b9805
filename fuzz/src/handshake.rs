//! Both sides of the handshake, in every mode, with bytes in pieces, changed, cut, repeated and put in. Both sides end
//! with the same keys, or neither has a session that the other could use; a session has the proof that both demand.

use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::session::handshake::{
    derive_secret, Acceptor, Auth, AuthPolicy, Dialer, Established, HandshakeError, HandshakeStep, Key,
    Local, Next, Proof,
};
use ferry::types::{Boottime, EngineId, PlaceId};
use ferry::Status;

#[derive(Arbitrary, Debug)]
struct Input {
    dialer: Policy,
    acceptor: Policy,
    /// The proof over AF_UNIX works.
    is_one_host: bool,
    /// The proof that the dialer has is another one.
    is_other_proof: bool,
    /// The largest pieces in which bytes go, in turn.
    pieces: Vec<u8>,
    harms: Vec<Harm>,
    /// Messages over the channel afterwards: whose, and how long.
    messages: Vec<(bool, u16)>,
    /// The message that arrives in place of the other side's.
    raw: Option<(bool, Vec<u8>)>,
}

#[derive(Arbitrary, Debug, Clone)]
struct Policy {
    secret: Option<u8>,
    same_user: bool,
    unauthenticated: bool,
}

#[derive(Arbitrary, Debug)]
struct Harm {
    from_dialer: bool,
    at: u16,
    how: How,
}

#[derive(Arbitrary, Debug)]
enum How {
    Change(u8),
    Drop,
    Insert(u8),
    Repeat(u8),
}

fn local(number: u8, policy: &Policy) -> Local {
    Local {
        engine_id: EngineId([number; 16]),
        incarnation: u64::from(number),
        address: format!("10.0.0.{number}:7000"),
        tag: 0x100 + u16::from(number),
        lanes_max: 2,
        frame_bytes_max: 1 << 20,
        reads_max: 64,
        notify_credits: 1000,
        unix_name: Some(format!("ferry-{number:032x}").into_bytes()),
        place: Some(PlaceId([number; 16])),
        process: None,
        auth: AuthPolicy {
            secret: policy.secret.map(|byte| derive_secret(&[byte % 2; 32]).unwrap()),
            same_user: policy.same_user,
            allow_unauthenticated: policy.unauthenticated,
        },
    }
}

const NOW: Boottime = Boottime::from_ns(77);

/// One side's stream to the other.
struct Stream {
    bytes: Vec<u8>,
    sent: usize,
    moved: usize,
    is_harmed: bool,
}

impl Stream {
    fn new() -> Stream {
        Stream { bytes: Vec::new(), sent: 0, moved: 0, is_harmed: false }
    }

    /// Appends what a side sends, with the harm that falls on it.
    fn push(&mut self, bytes: &[u8], harms: &[Harm], from_dialer: bool) {
        for byte in bytes {
            let harm = harms
                .iter()
                .find(|harm| harm.from_dialer == from_dialer && usize::from(harm.at) == self.sent);
            self.sent += 1;
            match harm.map(|harm| &harm.how) {
                None | Some(How::Change(0)) => self.bytes.push(*byte),
                Some(how) => {
                    self.is_harmed = true;
                    match how {
                        How::Change(change) => self.bytes.push(byte ^ change),
                        How::Drop => {}
                        How::Insert(more) => self.bytes.extend([*more, *byte]),
                        How::Repeat(count) => {
                            self.bytes.push(*byte);
                            let from = self.bytes.len().saturating_sub(usize::from(*count));
                            self.bytes.extend_from_within(from..);
                        }
                    }
                }
            }
        }
    }

    fn take(&mut self, most: usize) -> Vec<u8> {
        let end = self.bytes.len().min(self.moved + most);
        let piece = self.bytes[self.moved..end].to_vec();
        self.moved = end;
        piece
    }
}

type End = Option<Result<Box<Established>, HandshakeError>>;

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    if let Some((to_dialer, bytes)) = &input.raw {
        return alone(*to_dialer, bytes, &input);
    }
    let (ours, theirs) = (local(1, &input.dialer), local(2, &input.acceptor));
    let (mut dialer, first) = Dialer::start(&ours).unwrap();
    let mut acceptor = Acceptor::new(&theirs).unwrap();
    let (mut there, mut back) = (Stream::new(), Stream::new());
    there.push(&first, &input.harms, true);
    let (mut dialed, mut accepted): (End, End) = (None, None);
    let proof = Proof { key: Key::from([5; 32]), pid: 12, uid: 34 };
    let other = Proof { key: Key::from([6; 32]), ..proof.clone() };
    let mut issued = None;
    let sizes = || input.pieces.iter().map(|size| usize::from(*size) + 1).chain([usize::MAX >> 1]);
    let mut pieces = sizes().cycle();
    while there.moved < there.bytes.len() || back.moved < back.bytes.len() {
        let bytes = there.take(pieces.next().unwrap_or(1));
        if !bytes.is_empty() && accepted.is_none() {
            let mut proofs = |nonce: &[u8; 32]| (issued == Some(*nonce)).then(|| proof.clone());
            match acceptor.input(&bytes, &mut proofs, NOW) {
                Ok(HandshakeStep { output, next }) => {
                    back.push(&output, &input.harms, false);
                    if let Next::Done(established) = next {
                        accepted = Some(Ok(established));
                    }
                }
                Err(error) => {
                    back.push(&error.reply, &input.harms, false);
                    assert_eq!(ended(acceptor.input(b"more", &mut |_| None, NOW)), Status::Closed);
                    accepted = Some(Err(error));
                }
            }
        }
        let bytes = back.take(pieces.next().unwrap_or(1));
        if bytes.is_empty() || dialed.is_some() {
            continue;
        }
        let mut result = dialer.input(&bytes, NOW);
        if let Ok(HandshakeStep { next: Next::ProveSameUser { nonce, .. }, .. }) = &result {
            issued = input.is_one_host.then_some(*nonce);
            let none = || ferry::Error::new(Status::System, "no such socket");
            let got = if input.is_other_proof { other.clone() } else { proof.clone() };
            result = dialer.proof(issued.map(|_| got).ok_or_else(none), NOW);
        }
        match result {
            Ok(HandshakeStep { output, next }) => {
                there.push(&output, &input.harms, true);
                if let Next::Done(established) = next {
                    dialed = Some(Ok(established));
                }
            }
            Err(error) => {
                there.push(&error.reply, &input.harms, true);
                assert_eq!(ended(dialer.input(b"more", NOW)), Status::Closed);
                dialed = Some(Err(error));
            }
        }
    }
    let is_harmed = there.is_harmed || back.is_harmed;
    let leftover = (dialer.leftover(), acceptor.leftover());
    judge(&input, dialed, accepted, is_harmed, leftover);
}

fn ended(result: Result<HandshakeStep, HandshakeError>) -> Status {
    result.map_or_else(|error| error.error.status, |_| Status::Ok)
}

/// The mode that two policies agree on; None if there is none, or the handshake must fail.
fn mode(input: &Input) -> Option<&'static str> {
    let (a, b) = (&input.dialer, &input.acceptor);
    let open = a.unauthenticated && b.unauthenticated;
    match (a.secret, b.secret) {
        (Some(mine), Some(yours)) => return (mine % 2 == yours % 2).then_some("secret"),
        (None, None) => {}
        // A secret is given up only if both ends allow sessions without any proof.
        _ => return open.then_some("none"),
    }
    if a.same_user && b.same_user && input.is_one_host {
        (!input.is_other_proof).then_some("user")
    } else {
        open.then_some("none")
    }
}

fn judge(input: &Input, dialed: End, accepted: End, is_harmed: bool, leftover: (Vec<u8>, Vec<u8>)) {
    let expected = mode(input);
    // The dialer's session exists only if the acceptor's does.
    let has_dialed = matches!(dialed, Some(Ok(_)));
    assert!(!has_dialed || matches!(accepted, Some(Ok(_))), "a session with nobody");
    if !is_harmed {
        assert_eq!(has_dialed, expected.is_some(), "{expected:?} {:?}", dialed.as_ref().map(Result::is_ok));
    }
    let (Some(Ok(mut a)), Some(Ok(mut b))) = (dialed, accepted) else { return };
    let auth = |auth| match auth {
        Auth::Secret => "secret",
        Auth::SameUser { .. } => "user",
        Auth::None => "none",
    };
    // Harm may make the proof fail, never weaken what both ends demand.
    assert_eq!((auth(a.auth), auth(b.auth)), (expected.unwrap_or("?"), expected.unwrap_or("?")));
    assert_eq!((a.session_id, a.lane_key.bytes()), (b.session_id, b.lane_key.bytes()));
    assert_eq!((a.peer.engine_id, b.peer.engine_id), (EngineId([2; 16]), EngineId([1; 16])));
    assert_eq!((a.peer.incarnation, b.peer.tag), (2, 0x101));
    if is_harmed && (!leftover.0.is_empty() || !leftover.1.is_empty()) {
        return; // bytes behind the handshake: the channel refuses them
    }
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let mut sent: (Vec<Vec<u8>>, Vec<Vec<u8>>) = Default::default();
    for (from_dialer, length) in input.messages.iter().take(6) {
        let plain = vec![*length as u8; usize::from(*length) % 60_001];
        if *from_dialer {
            a.channel.seal(&plain, &mut there).unwrap();
            sent.0.push(plain);
        } else {
            b.channel.seal(&plain, &mut back).unwrap();
            sent.1.push(plain);
        }
    }
    if let Some(harm) = input.harms.first().filter(|_| !there.is_empty()) {
        let at = usize::from(harm.at) % there.len();
        there[at] ^= 1;
        // What comes before the harm is genuine, and nothing behind it is opened.
        let mut nth = 0;
        while let Ok(Some(plain)) = b.channel.open(&mut there) {
            assert_eq!(Some(&plain), sent.0.get(nth), "a changed message is opened");
            nth += 1;
        }
        assert!(nth < sent.0.len());
        return;
    }
    for plain in sent.0 {
        assert_eq!(b.channel.open(&mut there).unwrap(), Some(plain));
    }
    for plain in sent.1 {
        assert_eq!(a.channel.open(&mut back).unwrap(), Some(plain));
    }
}

/// One side alone with any bytes, sometimes behind the beginning of a genuine handshake: nothing is established.
fn alone(to_dialer: bool, bytes: &[u8], input: &Input) {
    let policy = |policy: &Policy| Policy { secret: Some(1), ..policy.clone() };
    let (ours, theirs) = (local(1, &policy(&input.dialer)), local(2, &policy(&input.acceptor)));
    let (mut dialer, first) = Dialer::start(&ours).unwrap();
    let mut acceptor = Acceptor::new(&theirs).unwrap();
    let mut stream = if input.is_one_host { b"FERRY\0\x01".to_vec() } else { Vec::new() };
    stream.extend(bytes);
    if input.is_other_proof && !to_dialer {
        stream = [&first[..], bytes].concat();
    }
    let size = input.pieces.first().map_or(usize::MAX, |size| usize::from(*size) + 1);
    for piece in stream.chunks(size) {
        let result =
            if to_dialer { dialer.input(piece, NOW) } else { acceptor.input(piece, &mut |_| None, NOW) };
        match result {
            Ok(step) => assert!(!matches!(step.next, Next::Done(_)), "a session with nobody"),
            Err(_) => return,
        }
    }
}
