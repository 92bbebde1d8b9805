//! The small formats: lane greetings, headers of TCP frames, words of the RDMA, same-host and staging services. Each
//! decoder takes exactly what its encoder makes, within the bounds that are checked before anything is allocated.

use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::session::greeting::{Greeting, GREETING_BYTES, PREAMBLE_BYTES};
use ferry::internals::stage::wire as stage_wire;
use ferry::internals::transport::local::attach::{Keys, Packet, PACKET_BYTES_MAX};
use ferry::internals::transport::rdma::wire as rdma_wire;
use ferry::internals::transport::tcp::wire::{
    Descriptor, Fault, Header, Malformed, Sealer, DESCRIPTOR_BYTES, HEADER_BYTES, META_BYTES_MAX,
};
use ferry::limits::{
    DEVICES_MAX, FRAME_BYTES_MAX, FRAME_DESCRIPTORS_MAX, QPS_MAX, REGIONS_PER_MESSAGE, RKEYS_PER_MESSAGE,
    STAGE_BYTES, STAGE_OPERATIONS_MAX,
};
use ferry::types::{LaneId, SessionId};

/// A greeting is bound to every bit and to its key.
pub fn greeting(data: &[u8]) {
    let mut data = Unstructured::new(data);
    let Ok((session_id, lane, slot, key)) = <([u8; 16], u32, u32, [u8; 32])>::arbitrary(&mut data) else {
        return;
    };
    let sent = Greeting { session_id: SessionId(session_id), lane: LaneId::from_raw(lane), slot };
    let mut bytes: [u8; GREETING_BYTES] = sent.encode(&key).try_into().unwrap();
    let changes = Vec::<(u8, u8)>::arbitrary(&mut data).unwrap_or_default();
    let before = bytes;
    for (at, change) in changes {
        bytes[PREAMBLE_BYTES + usize::from(at) % (GREETING_BYTES - PREAMBLE_BYTES)] ^= change;
    }
    let (read, mac) = Greeting::decode(&bytes);
    assert_eq!(read.verify(&key, &mac), bytes == before);
    assert_eq!(read.is_welcome(&key, &sent.welcome(&key)), read == sent);
    assert!(!sent.is_welcome(&key, &mac), "a greeting is no welcome");
}

#[derive(Arbitrary, Debug)]
struct HeaderInput {
    head: [u8; HEADER_BYTES],
    has_magic: bool,
    has_kind: bool,
    is_small: bool,
    rest: Vec<u8>,
}

/// Every length of a header is bounded, and a header that is decoded is encoded to the same bytes. Only a frame under
/// the right MAC and count is opened.
pub fn header(data: &[u8]) {
    let Ok(input) = HeaderInput::arbitrary(&mut Unstructured::new(data)) else { return };
    let mut head = input.head;
    if input.has_magic {
        head[24..28].copy_from_slice(b"FRY1");
    }
    if input.has_kind {
        (head[28], head[29]) = (head[28] % 4 + 1, head[29] % 8);
        head[68..72].fill(0);
    }
    if input.is_small {
        (head[31], head[34], head[35], head[38], head[39]) = (0, 0, 0, 0, 0);
        head[33] %= 16;
        head[37] %= 16;
    }
    let faults = Fault::decode_all(&input.rest);
    if let Some(faults) = &faults {
        let mut bytes = Vec::new();
        faults.iter().for_each(|fault| fault.encode(&mut bytes));
        assert_eq!(bytes, input.rest);
        assert!(faults.iter().all(|fault| (fault.status as i32) < 0), "a refusal is no success");
    }
    let Ok(header) = Header::decode(&head) else { return };
    let mut again = Vec::new();
    let count = u64::from_le_bytes(head[16..24].try_into().unwrap());
    header.encode(count, &mut again);
    assert_eq!(again[16..], head[16..]);
    assert!(header.payload_bytes <= FRAME_BYTES_MAX);
    assert!(header.descriptors as usize <= FRAME_DESCRIPTORS_MAX);
    assert!(header.meta_bytes() <= META_BYTES_MAX - HEADER_BYTES);
    let content = header.descriptors as usize * DESCRIPTOR_BYTES + header.extra_bytes as usize;
    assert!(header.meta_bytes() >= content);
    assert!(header.payload_bytes == 0 || (HEADER_BYTES + header.meta_bytes()) % 64 == 0);
    sealed(&header, &input.rest, content);
}

fn sealed(header: &Header, rest: &[u8], content: usize) {
    let (mut sealer, mut opener) = (Sealer::new([3; 32]), Sealer::new([3; 32]));
    let mut frame = Vec::new();
    let body: Vec<u8> = rest.iter().copied().chain(std::iter::repeat(7)).take(content).collect();
    sealer.seal(header, &mut frame, |out| out.extend_from_slice(&body));
    assert_eq!(frame.len(), HEADER_BYTES + header.meta_bytes());
    let meta = &frame[HEADER_BYTES..];
    let mut descriptors = Vec::new();
    Descriptor::decode_all(meta, header.descriptors.into()).for_each(|one| {
        let mut bytes = Vec::new();
        one.encode(&mut bytes);
        descriptors.extend_from_slice(&bytes[..20]); // four bytes behind the length are not read
    });
    let read = meta[..header.descriptors as usize * DESCRIPTOR_BYTES].chunks(DESCRIPTOR_BYTES);
    assert_eq!(read.flat_map(|chunk| &chunk[..20]).copied().collect::<Vec<u8>>(), descriptors);
    if let Some(&at) = rest.first() {
        let mut harmed = frame.clone();
        let at = usize::from(at) % harmed.len();
        harmed[at] ^= 1 << (rest.len() % 8);
        assert_eq!(opener.open(&harmed), Err(Malformed::Mac));
    }
    assert_eq!(opener.open(&frame), Ok(()));
    assert_eq!(opener.open(&frame), Err(Malformed::Count), "a replay");
}

/// The words between two RDMA services.
pub fn rdma(data: &[u8]) {
    use rdma_wire::Message;
    let Some(bytes) = spread(data) else { return };
    let Ok(message) = Message::decode(&bytes) else { return };
    match &message {
        Message::Offer { devices, .. } => assert!(devices.len() <= DEVICES_MAX),
        Message::Keys(offer) => assert!(offer.rkeys.len() <= RKEYS_PER_MESSAGE),
        Message::Revoke(ids) | Message::Revoked(ids) => assert!(ids.len() <= REGIONS_PER_MESSAGE),
        Message::Connect { side, .. } | Message::Accept { side, .. } => {
            assert!(side.qps.len() <= QPS_MAX as usize + 1)
        }
        _ => {}
    }
    assert_eq!(message.encode(), bytes);
    assert!(
        Message::decode(&bytes[..bytes.len() - 1]).is_err()
            && Message::decode(&[&bytes[..], &[0]].concat()).is_err()
    );
}

/// The words between two staging services: a body has several.
pub fn stage(data: &[u8]) {
    use stage_wire::Message;
    let Some(bytes) = spread(data) else { return };
    let Ok(messages) = Message::decode_all(&bytes) else { return };
    let mut again = Vec::new();
    for message in &messages {
        match message {
            Message::Commit { blocks, .. } | Message::Fetch { blocks, .. } => {
                assert!((1..=FRAME_DESCRIPTORS_MAX).contains(&blocks.list.len()));
                let (offsets, end) = stage_wire::layout(blocks.list.iter().map(|block| block.length));
                let total: u64 = blocks.list.iter().map(|block| u64::from(block.length)).sum();
                assert!(total <= u64::from(STAGE_BYTES), "more than a slot holds");
                assert!(end <= ferry::limits::STAGE_SLOT_BYTES, "{end} bytes in a slot");
                assert!(offsets.windows(2).all(|pair| pair[0] <= pair[1]));
            }
            Message::Live { ops, bridges } => {
                assert!(ops.len() <= STAGE_OPERATIONS_MAX && bridges.len() <= STAGE_OPERATIONS_MAX)
            }
            Message::Lent { memory, .. } => assert!(memory.len() <= 512),
            _ => {}
        }
        message.encode(&mut again);
    }
    assert_eq!(again, bytes);
}

/// The packets of the same-host path: only the other side's ATTACH, for this session, is accepted.
pub fn packets(data: &[u8]) {
    let keys = Keys::new(&[1; 32], SessionId([2; 16]));
    if let Some(packet) = Packet::decode(data) {
        assert_eq!(packet.encode(), data);
        assert!(data.len() <= PACKET_BYTES_MAX);
        assert!(keys.check(&packet, true).is_none() && keys.check(&packet, false).is_none(), "a forgery");
    }
    let Ok((dialer, value_at, at, change)) = <(bool, u64, u8, u8)>::arbitrary(&mut Unstructured::new(data))
    else {
        return;
    };
    let bytes = keys.attach(dialer, value_at).encode();
    let mut harmed = bytes.clone();
    let at = usize::from(at) % harmed.len();
    harmed[at] ^= change;
    let Some(packet) = Packet::decode(&harmed) else { return };
    let genuine = (change == 0).then_some(value_at);
    assert_eq!((keys.check(&packet, dialer), keys.check(&packet, !dialer)), (genuine, None));
}

/// One part of a message: bytes, numbers as they go over the wire, or a byte that is repeated.
#[derive(Arbitrary, Debug)]
enum Part {
    Bytes(Vec<u8>),
    Small(u8),
    Number(u64),
    Word(u32),
    /// A number of eight bytes that is small, as counts are.
    Count(u16),
    Run(u8, u8),
}

/// Makes the bytes of a message of parts; the first byte says whether the rest are parts or the message itself.
fn spread(data: &[u8]) -> Option<Vec<u8>> {
    let (how, rest) = data.split_first()?;
    if how % 2 == 0 {
        return Some(rest.to_vec());
    }
    let mut out = Vec::new();
    for part in Vec::<Part>::arbitrary(&mut Unstructured::new(rest)).ok()? {
        match part {
            Part::Bytes(bytes) => out.extend(bytes),
            Part::Small(value) => out.push(value),
            Part::Number(value) => out.extend(value.to_le_bytes()),
            Part::Word(value) => out.extend(value.to_le_bytes()),
            Part::Count(value) => out.extend(u64::from(value).to_le_bytes()),
            Part::Run(value, times) => out.extend(std::iter::repeat_n(value, usize::from(times) * 24)),
        }
    }
    Some(out)
}
