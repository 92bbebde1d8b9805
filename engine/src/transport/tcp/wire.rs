//! The wire format of data lanes: an authenticated header, then descriptors, extra bytes and payload. Pure encoding and
//! decoding; `tx` and `rx` move the bytes.
//!
//! ```text
//! 0        16       24    28   29    30          32       36        40        48         56     64        72
//! [ mac 16 ][ count ][ magic ][kind][flags][descriptors][payload ][ extra   ][sequence][not after][clock ][checksum]
//! the checksum has 4 bytes, and 4 zeros behind it
//! then descriptors (24 bytes each), extra, zeros up to a multiple of 64 if there is payload, payload
//! ```
//! All integers are little-endian. The MAC covers everything from `count` to the end of `extra` and its padding, under
//! a key of this lane and direction. `count` rises by one with each frame, so a replayed, dropped or reordered frame is
//! detected. Payload is not encrypted; `checksum` covers it if the CHECKSUM flag is set.

use crate::limits;
use crate::loss::{Cause, Failure};
use crate::status::Status;
use crate::types::{Boottime, LaneId, RegionId};

pub const HEADER_BYTES: usize = 72;
pub const DESCRIPTOR_BYTES: usize = 24;
pub const FAULT_BYTES: usize = 16;
const MAC_BYTES: usize = 16;
const FLAGS_AT: usize = 29;
/// The payload's alignment in its frame. The kernel's copies between page-aligned memory and socket buffers are a tenth
/// slower if the two sides are aligned differently.
const PAYLOAD_ALIGNMENT: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"FRY1");

/// The largest `extra` of a frame: a notification with its number, or one acknowledgement's faults.
pub const EXTRA_BYTES_MAX: usize = {
    let notification = 8 + limits::NOTIFY_BYTES_MAX;
    let faults = FAULTS_PER_FRAME_MAX * FAULT_BYTES;
    if notification > faults {
        notification
    } else {
        faults
    }
};
/// Faults that one acknowledgement or answer reports; the next acknowledgement reports further faults.
pub const FAULTS_PER_FRAME_MAX: usize = 1024;
/// The largest frame without its payload.
pub const META_BYTES_MAX: usize =
    HEADER_BYTES + limits::FRAME_DESCRIPTORS_MAX * DESCRIPTOR_BYTES + EXTRA_BYTES_MAX + PAYLOAD_ALIGNMENT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Descriptors and payload to place; `extra` may have a notification.
    Write = 1,
    /// Descriptors to gather and send back.
    Read = 2,
    /// Answer to the READ with the same sequence: faults in `extra`, then the payload of the others.
    Data = 3,
    /// Every WRITE up to `sequence` is applied, except for the faults in `extra`.
    Ack = 4,
    /// Follows an answer at once: all of it was sent, and the memory is not read for it any more. Faults in `extra`
    /// name slices whose memory could not be read; their bytes in the answer are filler.
    DataEnd = 5,
}

pub mod flags {
    /// `checksum` is the CRC-32 of the payload. In a READ: the answer is to have one.
    pub const CHECKSUM: u8 = 1;
    /// `extra` is a notification: u64 sequence, then bytes.
    pub const NOTIFY: u8 = 2;
    /// `extra` is the u64 number of a notification that was given up.
    pub const SKIP: u8 = 4;
    /// The sender could not read a part of the payload: its notification is not delivered, and its number stays open.
    pub const VOID: u8 = 8;
    /// All known flags.
    pub const ALL: u8 = CHECKSUM | NOTIFY | SKIP | VOID;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub flags: u8,
    pub descriptors: u16,
    pub payload_bytes: u32,
    pub extra_bytes: u32,
    pub sequence: u64,
    /// The receiver must not apply or answer the frame after this time on its clock of leases.
    pub not_after_ns: Boottime,
    /// The sender's clock of leases when it wrote the header.
    pub clock_ns: Boottime,
    pub checksum: u32,
}

/// A range of the receiver's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub address: u64,
    pub region: RegionId,
    pub length: u32,
}

/// A refused descriptor: the frame's sequence, and the descriptor's index in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub sequence: u64,
    pub descriptor: u16,
    pub status: Status,
}

/// Why a frame violates the protocol. Each of these ends the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    Magic,
    Kind,
    Flags,
    TooManyDescriptors,
    TooMuchPayload,
    TooMuchExtra,
    Mac,
    Count,
    PayloadMismatch,
    Sequence,
}

impl Malformed {
    /// Returns the failed check as text for people.
    pub fn failure(self) -> Failure {
        let what = match self {
            Malformed::Mac => return Failure::new(Cause::Forged, "the MAC of a frame is wrong"),
            Malformed::Count => {
                return Failure::new(Cause::Forged, "a frame was repeated, left out or moved")
            }
            Malformed::Magic => "a frame does not begin with the magic number",
            Malformed::Kind => "the kind of a frame is unknown",
            Malformed::Flags => "a frame has flags that are unknown or contradict its kind",
            Malformed::TooManyDescriptors => "a frame has more descriptors than the limit",
            Malformed::TooMuchPayload => "a frame has more payload than the limit",
            Malformed::TooMuchExtra => "a frame has more extra bytes than the limit",
            Malformed::PayloadMismatch => "the descriptors of a frame do not add up to its payload",
            Malformed::Sequence => "the sequence number of a frame is out of order",
        };
        Failure::new(Cause::Damaged, what)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

impl Header {
    /// Returns the bytes of descriptors, extra and padding that follow the header.
    pub fn meta_bytes(&self) -> usize {
        let content = self.descriptors as usize * DESCRIPTOR_BYTES + self.extra_bytes as usize;
        if self.payload_bytes == 0 {
            return content;
        }
        (HEADER_BYTES + content).next_multiple_of(PAYLOAD_ALIGNMENT) - HEADER_BYTES
    }

    /// Appends the header with an empty MAC; `seal` fills it in.
    pub fn encode(&self, count: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0; MAC_BYTES]);
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.push(self.kind as u8);
        out.push(self.flags);
        out.extend_from_slice(&self.descriptors.to_le_bytes());
        out.extend_from_slice(&self.payload_bytes.to_le_bytes());
        out.extend_from_slice(&self.extra_bytes.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.not_after_ns.ns().to_le_bytes());
        out.extend_from_slice(&self.clock_ns.ns().to_le_bytes());
        out.extend_from_slice(&self.checksum.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
    }

    /// Decodes a header and checks the bounds of every length in it, before anything is allocated or trusted.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Malformed> {
        if u32_at(bytes, 24) != MAGIC {
            return Err(Malformed::Magic);
        }
        let kind = match bytes[28] {
            1 => Kind::Write,
            2 => Kind::Read,
            3 => Kind::Data,
            4 => Kind::Ack,
            5 => Kind::DataEnd,
            _ => return Err(Malformed::Kind),
        };
        let header = Header {
            kind,
            flags: bytes[FLAGS_AT],
            descriptors: u16_at(bytes, 30),
            payload_bytes: u32_at(bytes, 32),
            extra_bytes: u32_at(bytes, 36),
            sequence: u64_at(bytes, 40),
            not_after_ns: Boottime::from_ns(u64_at(bytes, 48)),
            clock_ns: Boottime::from_ns(u64_at(bytes, 56)),
            checksum: u32_at(bytes, 64),
        };
        if header.flags & !flags::ALL != 0 || u32_at(bytes, 68) != 0 {
            return Err(Malformed::Flags);
        }
        if header.descriptors as usize > limits::FRAME_DESCRIPTORS_MAX {
            return Err(Malformed::TooManyDescriptors);
        }
        if header.payload_bytes > limits::FRAME_BYTES_MAX {
            return Err(Malformed::TooMuchPayload);
        }
        if header.extra_bytes as usize > EXTRA_BYTES_MAX {
            return Err(Malformed::TooMuchExtra);
        }
        Ok(header)
    }
}

impl Descriptor {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.address.to_le_bytes());
        out.extend_from_slice(&self.region.raw().to_le_bytes());
        out.extend_from_slice(&(self.length as u64).to_le_bytes());
    }

    /// Decodes the descriptors of a frame's `meta`; `Header::decode` has bounded `count`.
    pub fn decode_all(meta: &[u8], count: usize) -> impl Iterator<Item = Descriptor> + '_ {
        meta[..count * DESCRIPTOR_BYTES].chunks_exact(DESCRIPTOR_BYTES).map(|bytes| Descriptor {
            address: u64_at(bytes, 0),
            region: RegionId::from_raw(u64_at(bytes, 8)),
            length: u32_at(bytes, 16),
        })
    }
}

impl Fault {
    /// Returns the faults of a frame whose sender could not read the slices in `own`, and for which `told` was
    /// reported. If a slice has two faults, the sender's own stays. The sender's own fault also explains CORRUPT.
    pub fn joined(mut own: Vec<Fault>, told: &[Fault]) -> Vec<Fault> {
        let explained = own.first().map(|fault| fault.status);
        own.extend(told.iter().map(|fault| match explained {
            Some(status) if fault.status == Status::Corrupt => Fault { status, ..*fault },
            _ => *fault,
        }));
        own.sort_by_key(|fault| fault.descriptor);
        own.dedup_by_key(|fault| fault.descriptor);
        own
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&(self.descriptor as u32).to_le_bytes());
        out.extend_from_slice(&(self.status as i32).to_le_bytes());
    }

    /// Decodes the faults in `extra`; None if the bytes are not faults.
    pub fn decode_all(extra: &[u8]) -> Option<Vec<Fault>> {
        if extra.len() % FAULT_BYTES != 0 {
            return None;
        }
        extra
            .chunks_exact(FAULT_BYTES)
            .map(|bytes| {
                let status = Status::from_number(u32_at(bytes, 12) as i32).filter(|s| (*s as i32) < 0)?;
                let descriptor = u16::try_from(u32_at(bytes, 8)).ok()?;
                Some(Fault { sequence: u64_at(bytes, 0), descriptor, status })
            })
            .collect()
    }
}

/// The key and the frame counter of one direction of one lane.
pub struct Sealer {
    key: [u8; 32],
    count: u64,
}

impl Sealer {
    pub fn new(key: [u8; 32]) -> Sealer {
        Sealer { key, count: 0 }
    }

    /// Appends the header, and the descriptors and extra bytes that `body` writes, with their MAC.
    pub fn seal(&mut self, header: &Header, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
        self.seal_as(self.count, header, out, body);
        self.count += 1;
    }

    fn seal_as(&self, count: u64, header: &Header, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        header.encode(count, out);
        body(out);
        let whole = start + HEADER_BYTES + header.meta_bytes();
        debug_assert!((out.len()..out.len() + PAYLOAD_ALIGNMENT).contains(&whole));
        out.resize(whole, 0);
        self.sign(&mut out[start..]);
    }

    fn sign(&self, frame: &mut [u8]) {
        let mac = blake3::keyed_hash(&self.key, &frame[MAC_BYTES..]);
        frame[..MAC_BYTES].copy_from_slice(&mac.as_bytes()[..MAC_BYTES]);
    }

    /// Adds VOID to the flags of a sealed frame before any byte of it is sent. `frame` excludes the payload.
    pub fn void(&self, frame: &mut [u8]) {
        frame[FLAGS_AT] |= flags::VOID;
        self.sign(frame);
    }

    /// Appends the end of an answer again, with faults. It replaces a sealed end of which no byte was sent.
    pub fn end_again(&self, end: &[u8; HEADER_BYTES], faults: &[Fault], out: &mut Vec<u8>) {
        let Ok(header) = Header::decode(end) else { return };
        let header = Header { extra_bytes: (faults.len() * FAULT_BYTES) as u32, ..header };
        self.seal_as(u64_at(end, MAC_BYTES), &header, out, |out| {
            faults.iter().for_each(|fault| fault.encode(out));
        });
    }

    /// Checks the MAC of a frame's header, descriptors and extra, and that the frame is the next in order.
    pub fn open(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        let mac = blake3::keyed_hash(&self.key, &frame[MAC_BYTES..]);
        // Compared in constant time, so that a forger learns nothing from the time of a refusal.
        let difference =
            mac.as_bytes()[..MAC_BYTES].iter().zip(&frame[..MAC_BYTES]).fold(0, |all, (a, b)| all | (a ^ b));
        if difference != 0 {
            return Err(Malformed::Mac);
        }
        if u64_at(frame, MAC_BYTES) != self.count {
            return Err(Malformed::Count);
        }
        self.count += 1;
        Ok(())
    }
}

/// Derives the key of one direction of one lane from the session's lane key.
pub fn lane_key(session_lane_key: &[u8; 32], lane: LaneId, from_dialer: bool) -> [u8; 32] {
    let mut input = [0u8; 5];
    input[..4].copy_from_slice(&lane.raw().to_le_bytes());
    input[4] = from_dialer as u8;
    *blake3::keyed_hash(session_lane_key, &input).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(descriptors: u16, extra_bytes: u32) -> Header {
        Header {
            kind: Kind::Write,
            flags: 0,
            descriptors,
            payload_bytes: 9,
            extra_bytes,
            sequence: 77,
            not_after_ns: Boottime::from_ns(5),
            clock_ns: Boottime::from_ns(6),
            checksum: 7,
        }
    }

    fn sealed(sealer: &mut Sealer) -> Vec<u8> {
        let mut out = Vec::new();
        sealer.seal(&header(1, 3), &mut out, |out| {
            Descriptor { address: 1, region: RegionId::from_raw(2), length: 9 }.encode(out);
            out.extend_from_slice(b"abc");
        });
        out
    }

    #[test]
    fn a_sealed_frame_opens_once_and_in_order() {
        let (mut tx, mut rx) = (Sealer::new([3; 32]), Sealer::new([3; 32]));
        let (first, second) = (sealed(&mut tx), sealed(&mut tx));
        assert_eq!(Header::decode(first[..HEADER_BYTES].try_into().unwrap()), Ok(header(1, 3)));
        let descriptor = Descriptor::decode_all(&first[HEADER_BYTES..], 1).next().unwrap();
        assert_eq!(descriptor, Descriptor { address: 1, region: RegionId::from_raw(2), length: 9 });
        assert_eq!(first.len() % 64, 0, "payload is aligned");
        assert_eq!(rx.open(&second), Err(Malformed::Count));
        assert_eq!(rx.open(&first), Ok(()));
        assert_eq!(rx.open(&first), Err(Malformed::Count));
        assert_eq!(rx.open(&second), Ok(()));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let frame = sealed(&mut Sealer::new([3; 32]));
        for bit in 0..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Sealer::new([3; 32]).open(&bad), Err(Malformed::Mac), "bit {bit}");
        }
        assert_eq!(Sealer::new([4; 32]).open(&frame), Err(Malformed::Mac));
    }

    /// A frame of one lane and direction is refused on another lane, and in the other direction.
    #[test]
    fn each_direction_of_each_lane_has_a_key_of_its_own() {
        let directions = [(1, true), (1, false), (2, true), (2, false), (1 << 31, true), (256, true)];
        for (from, to) in directions.iter().flat_map(|from| directions.map(|to| (*from, to))) {
            let sealer =
                |(lane, from_dialer)| Sealer::new(lane_key(&[9; 32], LaneId::from_raw(lane), from_dialer));
            let opened = sealer(to).open(&sealed(&mut sealer(from)));
            assert_eq!(opened.is_ok(), from == to, "{from:?} {to:?}");
        }
    }

    #[test]
    fn lengths_are_bounded_at_their_last_valid_value() {
        let edge = Header {
            descriptors: limits::FRAME_DESCRIPTORS_MAX as u16,
            payload_bytes: limits::FRAME_BYTES_MAX,
            extra_bytes: EXTRA_BYTES_MAX as u32,
            ..header(0, 0)
        };
        let check = |header: &Header| {
            let mut out = Vec::new();
            header.encode(0, &mut out);
            Header::decode(out[..].try_into().unwrap())
        };
        assert_eq!(check(&edge), Ok(edge));
        assert_eq!(
            check(&Header { descriptors: edge.descriptors + 1, ..edge }),
            Err(Malformed::TooManyDescriptors)
        );
        assert_eq!(
            check(&Header { payload_bytes: edge.payload_bytes + 1, ..edge }),
            Err(Malformed::TooMuchPayload)
        );
        assert_eq!(
            check(&Header { extra_bytes: edge.extra_bytes + 1, ..edge }),
            Err(Malformed::TooMuchExtra)
        );
        assert_eq!(check(&Header { flags: flags::ALL + 1, ..edge }), Err(Malformed::Flags));
    }

    proptest! {
        #[test]
        fn decoding_garbage_never_panics(bytes in proptest::array::uniform32(any::<u8>()), more in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut frame = [0u8; HEADER_BYTES];
            frame[..32].copy_from_slice(&bytes);
            frame[24..28].copy_from_slice(b"FRY1");
            if let Ok(header) = Header::decode(&frame) {
                prop_assert!(header.meta_bytes() <= META_BYTES_MAX);
            }
            let _ = Fault::decode_all(&more);
        }
    }
}
