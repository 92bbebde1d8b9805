//! Messages of the control channel, and their encoding. Little-endian, bounded; `channel` seals each message. Unknown
//! kinds end the session: both sides speak the version agreed in the handshake.

use crate::limits::{REGIONS_PER_MESSAGE, REGION_NAME_BYTES_MAX};
use crate::region::remote::RemoteRegion;
use crate::types::{Access, Boottime, LaneId, Location, MemoryKind, RegionId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first message of each side. `association` is the sender's id of the association with this peer, `known`
    /// the receiver's id as the sender remembers it (both 0: none). If both sides' ids match, the session resumes.
    /// Otherwise each side starts a new association, and `fresh` is the sender's id of it.
    Start {
        association: u64,
        known: u64,
        fresh: u64,
    },
    RegionsAdd(Vec<RemoteRegion>),
    RegionsRemove(Vec<RegionId>),
    /// Every region so far is announced, and nothing of an earlier session can land here any more.
    Ready {
        notify_limit: u64,
    },
    Ping {
        nonce: u64,
    },
    Pong {
        nonce: u64,
        clock_ns: Boottime,
    },
    /// Asks for a FenceAck, which says that nothing of this lane can land any more.
    Fence {
        lane: LaneId,
    },
    FenceAck {
        lane: LaneId,
    },
    Grant {
        limit: u64,
    },
    /// The sender ended the session on purpose, and has closed its lanes.
    Bye {
        status: i32,
    },
    /// Asks whether the process with this pid and start time has ended. Sent only to an engine that counts pids and
    /// times alike (`sys::host`). The answer is Ended with equal numbers; a process that runs gets no answer.
    HasEnded {
        pid: u32,
        started: u64,
    },
    /// This process has ended, as its host's kernel says.
    Ended {
        pid: u32,
        started: u64,
    },
    /// A message from the sender's transport service to the receiver's. A `why` that is not empty says that no path of
    /// this transport will come, and the reason.
    Transport {
        transport: u8,
        why: String,
        body: Vec<u8>,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub struct BadMessage;

/// Reads integers and bytes from the front of a message.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], BadMessage> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(BadMessage)?;
        self.0 = tail;
        Ok(head)
    }
    pub fn u8(&mut self) -> Result<u8, BadMessage> {
        Ok(self.take(1)?[0])
    }
    pub fn u16(&mut self) -> Result<u16, BadMessage> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into().map_err(|_| BadMessage)?))
    }
    pub fn u32(&mut self) -> Result<u32, BadMessage> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| BadMessage)?))
    }
    pub fn u64(&mut self) -> Result<u64, BadMessage> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| BadMessage)?))
    }
    /// Reads a number of eight bytes that must fit into four.
    fn small(&mut self) -> Result<u32, BadMessage> {
        u32::try_from(self.u64()?).map_err(|_| BadMessage)
    }
    fn body(&mut self) -> Result<Vec<u8>, BadMessage> {
        let length = self.u16()? as usize;
        Ok(self.take(length)?.to_vec())
    }
    /// Reads text of at most 255 bytes.
    pub fn text(&mut self) -> Result<String, BadMessage> {
        let length = self.u8()? as usize;
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| BadMessage)
    }
    /// Reads a count and checks its bound before anything is allocated.
    fn count(&mut self) -> Result<usize, BadMessage> {
        let count = self.u32()? as usize;
        if count > REGIONS_PER_MESSAGE {
            return Err(BadMessage);
        }
        Ok(count)
    }
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        let mut numbers = |kind: u8, values: &[u64]| {
            out.push(kind);
            values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        };
        match self {
            Message::Start { association, known, fresh } => numbers(1, &[*association, *known, *fresh]),
            Message::RegionsAdd(regions) => {
                out.push(2);
                out.extend_from_slice(&(regions.len() as u32).to_le_bytes());
                regions.iter().for_each(|region| encode_region(region, &mut out));
            }
            Message::RegionsRemove(ids) => {
                out.push(3);
                out.extend_from_slice(&(ids.len() as u32).to_le_bytes());
                ids.iter().for_each(|id| out.extend_from_slice(&id.raw().to_le_bytes()));
            }
            Message::Ready { notify_limit } => numbers(4, &[*notify_limit]),
            Message::Ping { nonce } => numbers(5, &[*nonce]),
            Message::Pong { nonce, clock_ns } => numbers(6, &[*nonce, clock_ns.ns()]),
            Message::Fence { lane } => numbers(7, &[u64::from(lane.raw())]),
            Message::FenceAck { lane } => numbers(8, &[u64::from(lane.raw())]),
            Message::Grant { limit } => numbers(9, &[*limit]),
            Message::Bye { status } => numbers(10, &[*status as i64 as u64]),
            Message::HasEnded { pid, started } => numbers(12, &[*pid as u64, *started]),
            Message::Ended { pid, started } => numbers(13, &[*pid as u64, *started]),
            Message::Transport { transport, why, body } => {
                out.extend_from_slice(&[11, *transport]);
                encode_text(why, &mut out);
                // The sender of `Command::ServiceMessage` bounds the body: see `CHANNEL_MESSAGE_MAX`.
                out.extend_from_slice(&(body.len() as u16).to_le_bytes());
                out.extend_from_slice(body);
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Message, BadMessage> {
        let mut reader = Reader(bytes);
        let message = match reader.u8()? {
            1 => Message::Start { association: reader.u64()?, known: reader.u64()?, fresh: reader.u64()? },
            2 => {
                let count = reader.count()?;
                Message::RegionsAdd((0..count).map(|_| decode_region(&mut reader)).collect::<Result<_, _>>()?)
            }
            3 => {
                let count = reader.count()?;
                Message::RegionsRemove(
                    (0..count).map(|_| reader.u64().map(RegionId::from_raw)).collect::<Result<_, _>>()?,
                )
            }
            4 => Message::Ready { notify_limit: reader.u64()? },
            5 => Message::Ping { nonce: reader.u64()? },
            6 => Message::Pong { nonce: reader.u64()?, clock_ns: Boottime::from_ns(reader.u64()?) },
            7 => Message::Fence { lane: LaneId::from_raw(reader.small()?) },
            8 => Message::FenceAck { lane: LaneId::from_raw(reader.small()?) },
            9 => Message::Grant { limit: reader.u64()? },
            10 => Message::Bye { status: reader.u64()? as i32 },
            11 => Message::Transport { transport: reader.u8()?, why: reader.text()?, body: reader.body()? },
            12 => Message::HasEnded { pid: reader.small()?, started: reader.u64()? },
            13 => Message::Ended { pid: reader.small()?, started: reader.u64()? },
            _ => return Err(BadMessage),
        };
        if reader.0.is_empty() {
            Ok(message)
        } else {
            Err(BadMessage)
        }
    }
}

/// Appends text with a length byte. Text beyond 255 bytes is cut: it is meant for people.
pub fn encode_text(text: &str, out: &mut Vec<u8>) {
    let end = (0..=text.len().min(255)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    out.push(end as u8);
    out.extend_from_slice(&text.as_bytes()[..end]);
}

/// Flag in the byte of a region's memory kind.
const STAGING: u8 = 0x80;

fn encode_region(region: &RemoteRegion, out: &mut Vec<u8>) {
    for value in [region.id.raw(), region.order, region.address, region.length] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    out.push(region.access.0 as u8);
    out.push(region.location.kind as u8 | if region.staging { STAGING } else { 0 });
    out.extend_from_slice(&region.location.device.to_le_bytes());
    out.push(region.name.len() as u8);
    out.extend_from_slice(region.name.as_bytes());
}

fn decode_region(reader: &mut Reader) -> Result<RemoteRegion, BadMessage> {
    let (id, order) = (RegionId::from_raw(reader.u64()?), reader.u64()?);
    let (address, length) = (reader.u64()?, reader.u64()?);
    let access = Access(reader.u8()? as u32);
    let kind = reader.u8()?;
    let staging = kind & STAGING != 0;
    let kind = MemoryKind::from_number(u32::from(kind & !STAGING)).ok_or(BadMessage)?;
    let location = Location { kind, device: reader.u32()? as i32 };
    let name_bytes = reader.u8()? as usize;
    if access.0 > Access::BOTH.0 || name_bytes > REGION_NAME_BYTES_MAX {
        return Err(BadMessage);
    }
    let name = std::str::from_utf8(reader.take(name_bytes)?).map_err(|_| BadMessage)?.to_owned();
    Ok(RemoteRegion { id, order, address, length, access, name, location, staging })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(name: &str) -> RemoteRegion {
        RemoteRegion {
            id: RegionId::from_raw(9),
            order: 5,
            address: 4096,
            length: 64,
            access: Access::BOTH,
            name: name.into(),
            location: Location { kind: MemoryKind::Cuda, device: 3 },
            staging: name.is_empty(),
        }
    }

    fn all() -> Vec<Message> {
        vec![
            Message::Start { association: 1, known: u64::MAX, fresh: 7 },
            Message::RegionsAdd(vec![region(""), region(&"x".repeat(REGION_NAME_BYTES_MAX))]),
            Message::RegionsRemove([3, 4].map(RegionId::from_raw).into()),
            Message::Ready { notify_limit: 7 },
            Message::Ping { nonce: 5 },
            Message::Pong { nonce: 5, clock_ns: Boottime::from_ns(6) },
            Message::Fence { lane: LaneId::from_raw(u32::MAX) },
            Message::FenceAck { lane: LaneId::from_raw(0) },
            Message::Grant { limit: 8 },
            Message::Bye { status: -301 },
            Message::HasEnded { pid: 7, started: u64::MAX },
            Message::Ended { pid: u32::MAX, started: 3 },
            Message::Transport { transport: 2, why: "no".into(), body: vec![7; 300] },
        ]
    }

    #[test]
    fn every_message_round_trips_and_no_prefix_or_extension_does() {
        for message in all() {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Ok(message));
            for end in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..end]), Err(BadMessage));
            }
            assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()), Err(BadMessage));
        }
    }

    #[test]
    fn counts_and_names_are_bounded() {
        let full = Message::RegionsAdd(vec![region("n"); REGIONS_PER_MESSAGE]);
        assert_eq!(Message::decode(&full.encode()), Ok(full));
        let over = Message::RegionsRemove(vec![RegionId::from_raw(1); REGIONS_PER_MESSAGE + 1]);
        assert_eq!(Message::decode(&over.encode()), Err(BadMessage));
        let long = Message::RegionsAdd(vec![region(&"x".repeat(REGION_NAME_BYTES_MAX + 1))]);
        assert_eq!(Message::decode(&long.encode()), Err(BadMessage));
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_what_decodes_is_canonical(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }
    }
}
