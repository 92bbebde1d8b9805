//! The messages of the control channel: what is encoded is decoded again, and nothing but an encoding is decoded.

use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::region::RemoteRegion;
use ferry::internals::session::message::{BadMessage, Message};
use ferry::limits::{REGIONS_PER_MESSAGE, REGION_NAME_BYTES_MAX};
use ferry::types::{Access, Boottime, LaneId, Location, MemoryKind, RegionId};

#[derive(Arbitrary, Debug)]
enum Input {
    Bytes(Vec<u8>),
    Message(Draft),
    /// A message with some bytes changed, and cut or extended.
    Harmed(Draft, Vec<(u16, u8)>, i8),
    /// As many regions as given: at the bound and around it.
    Many(RegionDraft, u16),
}

#[derive(Arbitrary, Debug)]
pub struct RegionDraft {
    pub id: u64,
    pub order: u64,
    pub address: u64,
    pub length: u64,
    pub access: u8,
    pub kind: u8,
    pub device: i32,
    pub staging: bool,
    pub name: String,
}

#[derive(Arbitrary, Debug)]
pub enum Draft {
    Start(u64, u64, u64),
    RegionsAdd(Vec<RegionDraft>),
    RegionsRemove(Vec<u64>),
    Ready(u64),
    Ping(u64),
    Pong(u64, u64),
    Fence(u32),
    FenceAck(u32),
    Grant(u64),
    Bye(i32),
    HasEnded(u32, u64),
    Ended(u32, u64),
    Transport(u8, String, Vec<u8>),
}

impl RegionDraft {
    /// Returns the region, with a name that fits.
    pub fn region(self) -> RemoteRegion {
        let end = (0..=self.name.len().min(REGION_NAME_BYTES_MAX)).rev();
        let end = end.into_iter().find(|at| self.name.is_char_boundary(*at)).unwrap_or(0);
        let kinds = [MemoryKind::Host, MemoryKind::Cuda, MemoryKind::Ascend];
        RemoteRegion {
            id: RegionId::from_raw(self.id),
            order: self.order,
            address: self.address,
            length: self.length,
            access: Access(u32::from(self.access) % 4),
            name: self.name[..end].into(),
            location: Location { kind: kinds[self.kind as usize % 3], device: self.device },
            staging: self.staging,
        }
    }
}

impl Draft {
    /// Returns the message, with its lists and texts cut to what a sender may send.
    pub fn message(self) -> Message {
        match self {
            Draft::Start(association, known, fresh) => Message::Start { association, known, fresh },
            Draft::RegionsAdd(all) => Message::RegionsAdd(
                all.into_iter().take(REGIONS_PER_MESSAGE).map(RegionDraft::region).collect(),
            ),
            Draft::RegionsRemove(ids) => Message::RegionsRemove(
                ids.into_iter().take(REGIONS_PER_MESSAGE).map(RegionId::from_raw).collect(),
            ),
            Draft::Ready(notify_limit) => Message::Ready { notify_limit },
            Draft::Ping(nonce) => Message::Ping { nonce },
            Draft::Pong(nonce, clock) => Message::Pong { nonce, clock_ns: Boottime::from_ns(clock) },
            Draft::Fence(lane) => Message::Fence { lane: LaneId::from_raw(lane) },
            Draft::FenceAck(lane) => Message::FenceAck { lane: LaneId::from_raw(lane) },
            Draft::Grant(limit) => Message::Grant { limit },
            Draft::Bye(status) => Message::Bye { status },
            Draft::HasEnded(pid, started) => Message::HasEnded { pid, started },
            Draft::Ended(pid, started) => Message::Ended { pid, started },
            Draft::Transport(transport, why, body) => {
                let end = (0..=why.len().min(255)).rev().find(|at| why.is_char_boundary(*at)).unwrap_or(0);
                Message::Transport {
                    transport,
                    why: why[..end].into(),
                    body: body.into_iter().take(usize::from(u16::MAX)).collect(),
                }
            }
        }
    }
}

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    match input {
        Input::Bytes(bytes) => check_decoded(&bytes),
        Input::Message(draft) => check_round_trip(&draft.message()),
        Input::Harmed(draft, changes, cut) => {
            let mut bytes = draft.message().encode();
            for (at, value) in changes {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            match cut {
                0.. => bytes.extend(std::iter::repeat_n(0, cut as usize)),
                _ => bytes.truncate(bytes.len().saturating_sub(cut.unsigned_abs().into())),
            }
            check_decoded(&bytes);
        }
        Input::Many(region, count) => {
            let count = usize::from(count) % (2 * REGIONS_PER_MESSAGE);
            let fits = count <= REGIONS_PER_MESSAGE;
            let region = region.region();
            let ids = Message::RegionsRemove(vec![region.id; count]);
            assert_eq!(Message::decode(&ids.encode()).is_ok(), fits, "{count} handles");
            let all = Message::RegionsAdd(vec![region; count]);
            assert_eq!(Message::decode(&all.encode()).is_ok(), fits, "{count} regions");
        }
    }
}

fn check_round_trip(message: &Message) {
    let bytes = message.encode();
    assert_eq!(Message::decode(&bytes).as_ref(), Ok(message));
    if bytes.len() < 200 {
        assert!((0..bytes.len()).all(|end| Message::decode(&bytes[..end]) == Err(BadMessage)), "a prefix");
    }
    assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()), Err(BadMessage), "an extension");
}

/// A decoded message is within the bounds, and encodes to these bytes and no others.
fn check_decoded(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else { return };
    match &message {
        Message::RegionsAdd(regions) => {
            assert!(regions.len() <= REGIONS_PER_MESSAGE);
            for region in regions {
                assert!(region.name.len() <= REGION_NAME_BYTES_MAX && region.access.0 <= Access::BOTH.0);
            }
        }
        Message::RegionsRemove(ids) => assert!(ids.len() <= REGIONS_PER_MESSAGE),
        // A status has eight bytes, of which four are read.
        Message::Bye { .. } => return check_round_trip(&message),
        _ => {}
    }
    assert_eq!(message.encode(), bytes);
}
