//! The messages between the RDMA services of two engines, inside the session's sealed channel. Little-endian. Every
//! count is checked against its bound before anything is allocated for it.
//!
//! ```text
//! both      OFFER (devices), KEYS of every region          ... KEYS, REVOKE ─▶ ◀─ REVOKED as they come and go
//! dialer    CONNECT(lane, devices, QPs) ─▶ ◀─ ACCEPT or REFUSE     probe     ESTABLISHED(lane) ─▶
//! dialer    SETTLED: each pair of devices has been tried once
//! dialer    IDLE ─▶ ◀─ IDLE, if the acceptor is idle, too: the endpoints are given up      ◀─ WAKE: made again
//! ```

use crate::limits::{DEVICES_MAX, QPS_MAX, REGIONS_PER_MESSAGE, RKEYS_PER_MESSAGE};
use crate::session::message::{encode_text, BadMessage, Reader};
use crate::types::{LaneId, RegionId};

/// A device that peers can reach now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOffer {
    /// The sender's number for the device, valid as long as its engine lives.
    pub index: u8,
    pub is_ethernet: bool,
    pub gid: [u8; 16],
    pub lid: u16,
    pub mtu: u16,
    /// READs that the device accepts at one time on a queue pair.
    pub reads_max: u8,
    /// Memory of the engine that peers may READ. Used behind WRITEs to regions that peers may not READ.
    pub flush_address: u64,
    pub flush_rkey: u32,
    pub name: String,
}

/// Some of the keys of a region on one of the sender's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysOffer {
    pub region: RegionId,
    pub address: u64,
    pub length: u64,
    pub readable: bool,
    pub device: u8,
    /// How much farther the device is from the region than the nearest could be (`locality`).
    pub detour: u8,
    /// Registrations cover pieces of this many bytes; `rkeys` starts with the key of piece `first`.
    pub piece_bytes: u64,
    pub first: u32,
    pub rkeys: Vec<u32>,
}

/// One end's queue pairs of an endpoint: (number, first packet sequence number), express first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    pub mtu: u16,
    pub reads_max: u8,
    pub qps: Vec<(u32, u32)>,
}

/// A message between two RDMA services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// All devices of the sender that peers can reach; replaces earlier offers. `why`: the reason why others are
    /// missing.
    Offer {
        devices: Vec<DeviceOffer>,
        why: String,
    },
    Keys(KeysOffer),
    /// Asks the peer to stop using the keys of these regions, and to answer REVOKED when no posted work uses them.
    Revoke(Vec<RegionId>),
    Revoked(Vec<RegionId>),
    /// The dialer's end of a new endpoint, between two devices by number.
    Connect {
        lane: LaneId,
        own: u8,
        other: u8,
        side: Side,
    },
    Accept {
        lane: LaneId,
        side: Side,
    },
    Refuse {
        lane: LaneId,
        why: String,
    },
    /// A READ of the dialer has come back, so the endpoint works both ways.
    Established {
        lane: LaneId,
    },
    /// Each pair of devices was tried.
    Settled {
        why: String,
    },
    /// Nothing has been posted for a while.
    Idle,
    /// The acceptor has something to post.
    Wake,
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Message::Offer { devices, why } => {
                out.extend_from_slice(&[1, devices.len() as u8]);
                devices.iter().for_each(|device| device.encode(&mut out));
                encode_text(why, &mut out);
            }
            Message::Keys(keys) => {
                out.extend_from_slice(&[2, keys.readable as u8, keys.device, keys.detour]);
                for value in [keys.region.raw(), keys.address, keys.length, keys.piece_bytes] {
                    out.extend_from_slice(&value.to_le_bytes());
                }
                out.extend_from_slice(&keys.first.to_le_bytes());
                out.extend_from_slice(&(keys.rkeys.len() as u32).to_le_bytes());
                keys.rkeys.iter().for_each(|key| out.extend_from_slice(&key.to_le_bytes()));
            }
            Message::Revoke(regions) => encode_ids(3, regions, &mut out),
            Message::Revoked(regions) => encode_ids(4, regions, &mut out),
            Message::Connect { lane, own, other, side } => {
                encode_lane(5, *lane, &mut out);
                out.extend_from_slice(&[*own, *other]);
                side.encode(&mut out);
            }
            Message::Accept { lane, side } => {
                encode_lane(6, *lane, &mut out);
                side.encode(&mut out);
            }
            Message::Refuse { lane, why } => {
                encode_lane(7, *lane, &mut out);
                encode_text(why, &mut out);
            }
            Message::Established { lane } => encode_lane(8, *lane, &mut out),
            Message::Settled { why } => {
                out.push(9);
                encode_text(why, &mut out);
            }
            Message::Idle => out.push(10),
            Message::Wake => out.push(11),
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Message, BadMessage> {
        let mut reader = Reader(bytes);
        let message = match reader.u8()? {
            1 => {
                let count = bounded(reader.u8()? as usize, DEVICES_MAX)?;
                let devices =
                    (0..count).map(|_| DeviceOffer::decode(&mut reader)).collect::<Result<_, _>>()?;
                Message::Offer { devices, why: reader.text()? }
            }
            2 => Message::Keys(decode_keys(&mut reader)?),
            3 => Message::Revoke(decode_ids(&mut reader)?),
            4 => Message::Revoked(decode_ids(&mut reader)?),
            5 => Message::Connect {
                lane: decode_lane(&mut reader)?,
                own: reader.u8()?,
                other: reader.u8()?,
                side: Side::decode(&mut reader)?,
            },
            6 => Message::Accept { lane: decode_lane(&mut reader)?, side: Side::decode(&mut reader)? },
            7 => Message::Refuse { lane: decode_lane(&mut reader)?, why: reader.text()? },
            8 => Message::Established { lane: decode_lane(&mut reader)? },
            9 => Message::Settled { why: reader.text()? },
            10 => Message::Idle,
            11 => Message::Wake,
            _ => return Err(BadMessage),
        };
        if reader.0.is_empty() {
            Ok(message)
        } else {
            Err(BadMessage)
        }
    }
}

fn bounded(count: usize, most: usize) -> Result<usize, BadMessage> {
    if count <= most {
        Ok(count)
    } else {
        Err(BadMessage)
    }
}

fn boolean(byte: u8) -> Result<bool, BadMessage> {
    match byte {
        0 | 1 => Ok(byte == 1),
        _ => Err(BadMessage),
    }
}

fn encode_lane(kind: u8, lane: LaneId, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&lane.raw().to_le_bytes());
}

fn decode_lane(reader: &mut Reader) -> Result<LaneId, BadMessage> {
    reader.u32().map(LaneId::from_raw)
}

fn encode_ids(kind: u8, ids: &[RegionId], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&(ids.len() as u32).to_le_bytes());
    ids.iter().for_each(|id| out.extend_from_slice(&id.raw().to_le_bytes()));
}

fn decode_ids(reader: &mut Reader) -> Result<Vec<RegionId>, BadMessage> {
    let count = bounded(reader.u32()? as usize, REGIONS_PER_MESSAGE)?;
    (0..count).map(|_| reader.u64().map(RegionId::from_raw)).collect()
}

fn decode_keys(reader: &mut Reader) -> Result<KeysOffer, BadMessage> {
    let (readable, device, detour) = (boolean(reader.u8()?)?, reader.u8()?, reader.u8()?);
    let (region, address, length) = (RegionId::from_raw(reader.u64()?), reader.u64()?, reader.u64()?);
    let (piece_bytes, first) = (reader.u64()?, reader.u32()?);
    let count = bounded(reader.u32()? as usize, RKEYS_PER_MESSAGE)?;
    let rkeys = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
    Ok(KeysOffer { region, address, length, readable, device, detour, piece_bytes, first, rkeys })
}

impl DeviceOffer {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.index, self.is_ethernet as u8, self.reads_max]);
        out.extend_from_slice(&self.gid);
        out.extend_from_slice(&self.lid.to_le_bytes());
        out.extend_from_slice(&self.mtu.to_le_bytes());
        out.extend_from_slice(&self.flush_address.to_le_bytes());
        out.extend_from_slice(&self.flush_rkey.to_le_bytes());
        encode_text(&self.name, out);
    }

    fn decode(reader: &mut Reader) -> Result<DeviceOffer, BadMessage> {
        let (index, is_ethernet, reads_max) = (reader.u8()?, boolean(reader.u8()?)?, reader.u8()?);
        let gid = reader.take(16)?.try_into().map_err(|_| BadMessage)?;
        Ok(DeviceOffer {
            index,
            is_ethernet,
            gid,
            lid: reader.u16()?,
            mtu: reader.u16()?,
            reads_max,
            flush_address: reader.u64()?,
            flush_rkey: reader.u32()?,
            name: reader.text()?,
        })
    }
}

impl Side {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.mtu.to_le_bytes());
        out.extend_from_slice(&[self.reads_max, self.qps.len() as u8]);
        for (number, sequence) in &self.qps {
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&sequence.to_le_bytes());
        }
    }

    fn decode(reader: &mut Reader) -> Result<Side, BadMessage> {
        let (mtu, reads_max) = (reader.u16()?, reader.u8()?);
        let count = bounded(reader.u8()? as usize, QPS_MAX as usize + 1)?;
        let qps = (0..count).map(|_| Ok((reader.u32()?, reader.u32()?))).collect::<Result<_, _>>()?;
        Ok(Side { mtu, reads_max, qps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> Vec<Message> {
        let device = DeviceOffer {
            index: 3,
            is_ethernet: true,
            gid: [7; 16],
            lid: 9,
            mtu: 4096,
            reads_max: 16,
            flush_address: 1 << 40,
            flush_rkey: 77,
            name: "mlx5_0".into(),
        };
        let keys = KeysOffer {
            region: RegionId::from_raw(5),
            address: 4096,
            length: 1 << 33,
            readable: true,
            device: 1,
            detour: 255,
            piece_bytes: 1 << 30,
            first: 2,
            rkeys: vec![1; RKEYS_PER_MESSAGE],
        };
        let side = Side { mtu: 1024, reads_max: 4, qps: vec![(17, 3); QPS_MAX as usize + 1] };
        vec![
            Message::Offer { devices: vec![device; DEVICES_MAX], why: "one is down".into() },
            Message::Keys(keys),
            Message::Revoke(vec![RegionId::from_raw(3); REGIONS_PER_MESSAGE]),
            Message::Revoked(vec![]),
            Message::Connect { lane: LaneId::from_raw(u32::MAX), own: 0, other: 255, side: side.clone() },
            Message::Accept { lane: LaneId::from_raw(1 << 31), side },
            Message::Refuse { lane: LaneId::from_raw(7), why: "no".into() },
            Message::Established { lane: LaneId::from_raw(7) },
            Message::Settled { why: String::new() },
            Message::Idle,
            Message::Wake,
        ]
    }

    #[test]
    fn every_message_round_trips_within_the_bound_and_no_prefix_or_extension_is_one() {
        for message in all() {
            let bytes = message.encode();
            assert!(bytes.len() <= crate::session::channel::CHANNEL_MESSAGE_MAX - 300);
            assert_eq!(Message::decode(&bytes), Ok(message));
            (0..bytes.len()).for_each(|end| assert_eq!(Message::decode(&bytes[..end]), Err(BadMessage)));
            assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()), Err(BadMessage));
        }
    }

    #[test]
    fn counts_are_bounded() {
        let over = Message::Revoke(vec![RegionId::from_raw(1); REGIONS_PER_MESSAGE + 1]);
        assert_eq!(Message::decode(&over.encode()), Err(BadMessage));
        let side = Side { mtu: 1024, reads_max: 4, qps: vec![(1, 1); QPS_MAX as usize + 2] };
        assert_eq!(
            Message::decode(&Message::Accept { lane: LaneId::from_raw(1), side }.encode()),
            Err(BadMessage)
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_what_decodes_is_canonical(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }
    }
}
