//! The messages between the stages of two engines, on the control channel. They name operations, which the initiator
//! numbers. Little-endian and bounded; one `Message::Transport` carries several of them.
//!
//! ```text
//! WRITE to a device      WANT ─▶ ◀─ GRANT   data into the slot   COMMIT ─▶ ◀─ DONE   RELEASE ─▶
//! READ from a device     FETCH ─▶ ◀─ READY  data from the slot                       RELEASE ─▶
//! struck meanwhile       STOP ─▶ ◀─ UNKNOWN, the answer, or BUSY as long as a device copies
//! memory to map          BORROW ─▶ ◀─ LENT or REFUSED; ◀─ RECALLED when it is unregistered
//! a bridge               EXPOSE ─▶ ◀─ EXPOSED or HIDDEN; CONCEAL ─▶ when the device here has detached
//! ```

use crate::complete::transfer::Failure;
use crate::limits::{
    DEVICE_TIMEOUT_MS_MAX, FRAME_DESCRIPTORS_MAX, STAGE_ALIGN, STAGE_BYTES, STAGE_OPERATIONS_MAX,
    STAGE_SECTOR, STAGE_SLOT_BYTES,
};
use crate::session::message::{BadMessage, Reader};
use crate::status::{Error, Status};
use crate::types::{end_of, Boottime, BridgeId, Location, MemoryKind, OperationId, RegionId};

/// The most bytes to collect before sending, well below the limit of the channel.
pub const MESSAGE_BYTES: usize = 32 << 10;
/// The most bytes of a driver's description of memory (see `Queue::export`), or of a reason.
const LENT_BYTES_MAX: usize = 512;
/// The most operations in one LIVE.
const LIVE_MAX: usize = STAGE_OPERATIONS_MAX;

/// A block of the target's device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// As in a request: NONE means any region that contains the block.
    pub region: RegionId,
    pub address: u64,
    pub length: u32,
}

/// A slot of a bridge, which the initiator numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeSlotId {
    pub bridge: BridgeId,
    pub slot: u32,
}

/// The blocks of an operation, in their order in a slot, and the target's time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// On the target's clock.
    pub not_after_ns: Boottime,
    /// The slot, if it belongs to a bridge.
    pub bridge_slot: Option<BridgeSlotId>,
    /// The answer waits until written blocks of files would survive a loss of power.
    pub durable: bool,
    pub list: Vec<Block>,
}

/// A block that was refused or could not be copied, by its position in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub block: u32,
    pub status: Status,
    pub os_error: i32,
    pub vendor_error: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The initiator asks for a slot at the target to write into.
    Want { op: OperationId },
    /// The slot. It belongs to the initiator until COMMIT is answered or RELEASE comes.
    Grant { op: OperationId, region: RegionId, address: u64 },
    /// The slot is filled: copy it to these blocks. A repetition extends the time.
    Commit { op: OperationId, blocks: Blocks },
    /// Copy these blocks into a slot. A repetition extends the time.
    Fetch { op: OperationId, blocks: Blocks },
    /// The slot to read, which the target keeps until RELEASE.
    Ready { op: OperationId, region: RegionId, address: u64, faults: Vec<Fault> },
    /// The data is in the blocks and visible there, except in the faulty ones.
    Done { op: OperationId, faults: Vec<Fault> },
    /// The initiator does not need the operation any more.
    Release { op: OperationId },
    /// All operations and bridges of the initiator; the first message on a new connection.
    Live { ops: Vec<OperationId>, bridges: Vec<BridgeId> },
    /// The target does not know the operation, and nothing of it happens there.
    Unknown { op: OperationId },
    /// The initiator has given the operation up: no copy of it may begin.
    Stop { op: OperationId },
    /// Copies are queued or run. A device that takes longer than `timeout_ms` for a copy counts as broken.
    Busy { op: OperationId, timeout_ms: u64 },
    /// The initiator wants to map this region of device memory. `process` is its number in its driver for this kind of
    /// memory; it runs on the same host.
    Borrow { region: RegionId, kind: MemoryKind, process: i32 },
    /// The driver's description of the memory.
    Lent { region: RegionId, memory: Vec<u8> },
    /// The region cannot be mapped, for this reason.
    Refused { region: RegionId, status: Status, why: String },
    /// The region is being unregistered: close the mapping.
    Recalled { region: RegionId },
    /// The initiator wants memory of this device for a bridge, of `slots` slots.
    Expose { bridge: BridgeId, at: Location, slots: u32 },
    /// The memory has at most `slots` slots; `offer` lets the initiator's device attach.
    Exposed { bridge: BridgeId, slots: u32, offer: Vec<u8> },
    /// The target has no memory for the bridge, for this reason.
    Hidden { bridge: BridgeId, status: Status, why: String },
    /// The initiator's device has detached.
    Conceal { bridge: BridgeId },
}

/// Bridges are numbered from 1.
const NO_BRIDGE_SLOT: BridgeSlotId = BridgeSlotId { bridge: BridgeId::NONE, slot: 0 };

/// Returns the offsets of blocks of these lengths in a slot, and the bytes that they take.
pub fn layout(lengths: impl Iterator<Item = u32>) -> (Vec<u64>, u64) {
    let mut end = 0u64;
    let offsets = lengths.map(|length| {
        let is_of_sectors = u64::from(length) % STAGE_SECTOR == 0;
        let at = end.next_multiple_of(if is_of_sectors { STAGE_SECTOR } else { STAGE_ALIGN });
        end = at + u64::from(length);
        at
    });
    (offsets.collect(), end)
}

impl Fault {
    /// Converts to a failure of a slice; `first` is the slice of the list's first block.
    pub fn at(self, first: u32) -> Failure {
        let Fault { block, status, os_error, vendor_error } = self;
        Failure { slice: first + block, status, os_error, vendor_error }
    }
}

impl Message {
    pub fn refused(region: RegionId, error: &Error) -> Message {
        Message::Refused { region, status: error.status, why: short(error) }
    }

    pub fn hidden(bridge: BridgeId, error: &Error) -> Message {
        Message::Hidden { bridge, status: error.status, why: short(error) }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Want { op } => numbers(out, 1, &[op.raw()]),
            Message::Grant { op, region, address } => numbers(out, 2, &[op.raw(), region.raw(), *address]),
            Message::Commit { op, blocks } => {
                numbers(out, 3, &[op.raw()]);
                blocks.encode(out);
            }
            Message::Fetch { op, blocks } => {
                numbers(out, 4, &[op.raw()]);
                blocks.encode(out);
            }
            Message::Ready { op, region, address, faults } => {
                numbers(out, 5, &[op.raw(), region.raw(), *address]);
                encode_faults(faults, out);
            }
            Message::Done { op, faults } => {
                numbers(out, 6, &[op.raw()]);
                encode_faults(faults, out);
            }
            Message::Release { op } => numbers(out, 7, &[op.raw()]),
            Message::Live { ops, bridges } => {
                numbers(out, 8, &[ops.len() as u64, bridges.len() as u64]);
                let (ops, bridges) = (ops.iter().map(|op| op.raw()), bridges.iter().map(|id| id.raw()));
                ops.chain(bridges).for_each(|one| out.extend_from_slice(&one.to_le_bytes()));
            }
            Message::Unknown { op } => numbers(out, 9, &[op.raw()]),
            Message::Stop { op } => numbers(out, 10, &[op.raw()]),
            Message::Busy { op, timeout_ms } => numbers(out, 11, &[op.raw(), *timeout_ms]),
            Message::Borrow { region, kind, process } => {
                numbers(out, 12, &[region.raw()]);
                out.extend_from_slice(&(*kind as u32).to_le_bytes());
                out.extend_from_slice(&process.to_le_bytes());
            }
            Message::Lent { region, memory } => named_bytes(out, 13, region.raw(), memory),
            Message::Refused { region, status, why } => {
                named_bytes(out, 14, region.raw(), why.as_bytes());
                out.extend_from_slice(&(*status as i32).to_le_bytes());
            }
            Message::Recalled { region } => numbers(out, 15, &[region.raw()]),
            Message::Expose { bridge, at, slots } => {
                numbers(out, 16, &[bridge.raw()]);
                out.extend_from_slice(&(at.kind as u32).to_le_bytes());
                out.extend_from_slice(&at.device.to_le_bytes());
                out.extend_from_slice(&slots.to_le_bytes());
            }
            Message::Exposed { bridge, slots, offer } => {
                named_bytes(out, 17, bridge.raw(), offer);
                out.extend_from_slice(&slots.to_le_bytes());
            }
            Message::Hidden { bridge, status, why } => {
                named_bytes(out, 18, bridge.raw(), why.as_bytes());
                out.extend_from_slice(&(*status as i32).to_le_bytes());
            }
            Message::Conceal { bridge } => numbers(out, 19, &[bridge.raw()]),
        }
    }

    /// Decodes all messages of a body.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Message>, BadMessage> {
        let mut reader = Reader(bytes);
        let mut messages = Vec::new();
        while !reader.0.is_empty() {
            messages.push(Message::decode(&mut reader)?);
        }
        Ok(messages)
    }

    fn decode(reader: &mut Reader) -> Result<Message, BadMessage> {
        Ok(match reader.u8()? {
            1 => Message::Want { op: decode_op(reader)? },
            2 => Message::Grant {
                op: decode_op(reader)?,
                region: decode_region(reader)?,
                address: decode_slot(reader)?,
            },
            3 => Message::Commit { op: decode_op(reader)?, blocks: Blocks::decode(reader)? },
            4 => Message::Fetch { op: decode_op(reader)?, blocks: Blocks::decode(reader)? },
            5 => Message::Ready {
                op: decode_op(reader)?,
                region: decode_region(reader)?,
                address: decode_slot(reader)?,
                faults: decode_faults(reader)?,
            },
            6 => Message::Done { op: decode_op(reader)?, faults: decode_faults(reader)? },
            7 => Message::Release { op: decode_op(reader)? },
            8 => {
                let (ops, bridges) = (bounded(reader.u64()?, LIVE_MAX)?, bounded(reader.u64()?, LIVE_MAX)?);
                let ops = (0..ops).map(|_| decode_op(reader)).collect::<Result<_, _>>()?;
                let bridges = (0..bridges).map(|_| decode_bridge(reader)).collect::<Result<_, _>>()?;
                Message::Live { ops, bridges }
            }
            9 => Message::Unknown { op: decode_op(reader)? },
            10 => Message::Stop { op: decode_op(reader)? },
            11 => Message::Busy {
                op: decode_op(reader)?,
                timeout_ms: bounded(reader.u64()?, DEVICE_TIMEOUT_MS_MAX as usize)? as u64,
            },
            12 => Message::Borrow {
                region: decode_region(reader)?,
                kind: decode_kind(reader)?,
                process: reader.u32()? as i32,
            },
            13 => Message::Lent { region: decode_region(reader)?, memory: decode_bytes(reader)? },
            14 => {
                let (region, why) = (decode_region(reader)?, decode_text(reader)?);
                Message::Refused { region, status: decode_failure(reader)?, why }
            }
            15 => Message::Recalled { region: decode_region(reader)? },
            16 => Message::Expose {
                bridge: decode_bridge(reader)?,
                at: Location { kind: decode_kind(reader)?, device: reader.u32()? as i32 },
                slots: reader.u32()?,
            },
            17 => {
                let (bridge, offer) = (decode_bridge(reader)?, decode_bytes(reader)?);
                Message::Exposed { bridge, slots: reader.u32()?, offer }
            }
            18 => {
                let (bridge, why) = (decode_bridge(reader)?, decode_text(reader)?);
                Message::Hidden { bridge, status: decode_failure(reader)?, why }
            }
            19 => Message::Conceal { bridge: decode_bridge(reader)? },
            _ => return Err(BadMessage),
        })
    }
}

impl Blocks {
    fn encode(&self, out: &mut Vec<u8>) {
        let BridgeSlotId { bridge, slot } = self.bridge_slot.unwrap_or(NO_BRIDGE_SLOT);
        out.extend_from_slice(&self.not_after_ns.ns().to_le_bytes());
        out.extend_from_slice(&bridge.raw().to_le_bytes());
        out.extend_from_slice(&slot.to_le_bytes());
        out.push(self.durable.into());
        out.extend_from_slice(&(self.list.len() as u64).to_le_bytes());
        for block in &self.list {
            out.extend_from_slice(&block.region.raw().to_le_bytes());
            out.extend_from_slice(&block.address.to_le_bytes());
            out.extend_from_slice(&block.length.to_le_bytes());
        }
    }

    /// Decodes blocks; refuses a list that is empty or does not fit a slot.
    fn decode(reader: &mut Reader) -> Result<Blocks, BadMessage> {
        let not_after_ns = Boottime::from_ns(reader.u64()?);
        let bridge_slot = BridgeSlotId { bridge: decode_bridge(reader)?, slot: reader.u32()? };
        let bridge_slot = Some(bridge_slot).filter(|bridge_slot| *bridge_slot != NO_BRIDGE_SLOT);
        let durable = bounded(reader.u8()?.into(), 1)? == 1;
        let count = bounded(reader.u64()?, FRAME_DESCRIPTORS_MAX)?;
        let block = |reader: &mut Reader| {
            Ok(Block { region: decode_region(reader)?, address: reader.u64()?, length: reader.u32()? })
        };
        let list: Vec<Block> = (0..count).map(|_| block(reader)).collect::<Result<_, _>>()?;
        let bytes: u64 = list.iter().map(|block| u64::from(block.length)).sum();
        if list.is_empty() || bytes > u64::from(STAGE_BYTES) {
            return Err(BadMessage);
        }
        Ok(Blocks { not_after_ns: Boottime::from_ns(not_after_ns.ns()), bridge_slot, durable, list })
    }
}

fn decode_op(reader: &mut Reader) -> Result<OperationId, BadMessage> {
    reader.u64().map(OperationId::from_raw)
}

fn decode_bridge(reader: &mut Reader) -> Result<BridgeId, BadMessage> {
    reader.u64().map(BridgeId::from_raw)
}

fn decode_region(reader: &mut Reader) -> Result<RegionId, BadMessage> {
    reader.u64().map(RegionId::from_raw)
}

fn numbers(out: &mut Vec<u8>, kind: u8, values: &[u64]) {
    out.push(kind);
    values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}

fn named_bytes(out: &mut Vec<u8>, kind: u8, name: u64, bytes: &[u8]) {
    numbers(out, kind, &[name, bytes.len() as u64]);
    out.extend_from_slice(bytes);
}

/// Returns an error's reason, cut to the limit.
fn short(error: &Error) -> String {
    let why = error.message.char_indices().take_while(|(at, _)| *at < LENT_BYTES_MAX - 4);
    why.map(|(_, char)| char).collect()
}

fn encode_faults(faults: &[Fault], out: &mut Vec<u8>) {
    out.extend_from_slice(&(faults.len() as u64).to_le_bytes());
    for fault in faults {
        out.extend_from_slice(&fault.block.to_le_bytes());
        out.extend_from_slice(&(fault.status as i32).to_le_bytes());
        out.extend_from_slice(&fault.os_error.to_le_bytes());
        out.extend_from_slice(&fault.vendor_error.to_le_bytes());
    }
}

fn decode_faults(reader: &mut Reader) -> Result<Vec<Fault>, BadMessage> {
    let count = bounded(reader.u64()?, FRAME_DESCRIPTORS_MAX)?;
    let fault = |reader: &mut Reader| {
        let (block, status, os_error) = (reader.u32()?, decode_failure(reader)?, reader.u32()? as i32);
        Ok(Fault { block, status, os_error, vendor_error: reader.u32()? as i32 })
    };
    (0..count).map(|_| fault(reader)).collect()
}

/// Decodes a slot's address. Refuses a slot that would end beyond the address space, because offsets are added
/// unchecked.
fn decode_slot(reader: &mut Reader) -> Result<u64, BadMessage> {
    let address = reader.u64()?;
    end_of(address, STAGE_SLOT_BYTES).map(|_| address).ok_or(BadMessage)
}

fn decode_bytes(reader: &mut Reader) -> Result<Vec<u8>, BadMessage> {
    let length = bounded(reader.u64()?, LENT_BYTES_MAX)?;
    (0..length).map(|_| reader.u8()).collect()
}

fn decode_text(reader: &mut Reader) -> Result<String, BadMessage> {
    String::from_utf8(decode_bytes(reader)?).map_err(|_| BadMessage)
}

fn decode_kind(reader: &mut Reader) -> Result<MemoryKind, BadMessage> {
    MemoryKind::from_number(reader.u32()?).ok_or(BadMessage)
}

fn decode_failure(reader: &mut Reader) -> Result<Status, BadMessage> {
    let status = Status::from_number(reader.u32()? as i32);
    status.filter(|status| (*status as i32) < 0).ok_or(BadMessage)
}

fn bounded(count: u64, most: usize) -> Result<usize, BadMessage> {
    usize::try_from(count).ok().filter(|count| *count <= most).ok_or(BadMessage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> Vec<Message> {
        let block = |at: u64| Block { region: RegionId::from_raw(5), address: at << 20, length: 4096 };
        let blocks = Blocks {
            not_after_ns: Boottime::from_ns(77),
            bridge_slot: None,
            durable: false,
            list: (1..4).map(block).collect(),
        };
        let placed = Blocks {
            bridge_slot: Some(BridgeSlotId { bridge: BridgeId::from_raw(1), slot: 63 }),
            durable: true,
            ..blocks.clone()
        };
        let faults = vec![Fault { block: 2, status: Status::Stale, os_error: 28, vendor_error: -7 }];
        vec![
            Message::Want { op: OperationId::from_raw(1) },
            Message::Grant { op: OperationId::from_raw(1), region: RegionId::from_raw(2), address: 3 },
            Message::Commit { op: OperationId::from_raw(1), blocks: blocks.clone() },
            Message::Fetch { op: OperationId::from_raw(u64::MAX), blocks },
            Message::Fetch { op: OperationId::from_raw(7), blocks: placed },
            Message::Ready {
                op: OperationId::from_raw(1),
                region: RegionId::from_raw(2),
                address: 3,
                faults: faults.clone(),
            },
            Message::Done { op: OperationId::from_raw(1), faults },
            Message::Release { op: OperationId::from_raw(9) },
            Message::Live {
                ops: [1, 2, 3].map(OperationId::from_raw).into(),
                bridges: [4, 5].map(BridgeId::from_raw).into(),
            },
            Message::Unknown { op: OperationId::from_raw(4) },
            Message::Stop { op: OperationId::from_raw(5) },
            Message::Busy { op: OperationId::from_raw(6), timeout_ms: DEVICE_TIMEOUT_MS_MAX },
            Message::Borrow { region: RegionId::from_raw(1), kind: MemoryKind::Ascend, process: 4711 },
            Message::Lent { region: RegionId::from_raw(2), memory: (0..=255).chain(0..=255).collect() },
            Message::Refused { region: RegionId::from_raw(3), status: Status::Access, why: "no".into() },
            Message::Recalled { region: RegionId::from_raw(4) },
            Message::Expose {
                bridge: BridgeId::from_raw(1),
                at: Location { kind: MemoryKind::Ascend, device: 7 },
                slots: 8,
            },
            Message::Exposed { bridge: BridgeId::from_raw(1), slots: 8, offer: vec![1, 2, 3] },
            Message::Hidden { bridge: BridgeId::from_raw(2), status: Status::Unsupported, why: "off".into() },
            Message::Conceal { bridge: BridgeId::from_raw(1) },
        ]
    }

    #[test]
    fn messages_round_trip_alone_and_together() {
        let mut together = Vec::new();
        for message in all() {
            let mut alone = Vec::new();
            message.encode(&mut alone);
            message.encode(&mut together);
            for end in 1..alone.len() {
                assert_eq!(Message::decode_all(&alone[..end]), Err(BadMessage), "{message:?} cut at {end}");
            }
            assert_eq!(Message::decode_all(&alone), Ok(vec![message]));
        }
        assert_eq!(Message::decode_all(&together), Ok(all()));
    }

    #[test]
    fn what_does_not_fit_a_slot_is_refused() {
        let decode = |list: Vec<Block>| {
            let mut bytes = Vec::new();
            Message::Commit {
                op: OperationId::from_raw(1),
                blocks: Blocks {
                    not_after_ns: Boottime::from_ns(1),
                    bridge_slot: None,
                    durable: false,
                    list,
                },
            }
            .encode(&mut bytes);
            Message::decode_all(&bytes).is_ok()
        };
        let block = |length| Block { region: RegionId::from_raw(1), address: 4096, length };
        assert!(decode(vec![block(STAGE_BYTES)]));
        assert!(!decode(vec![block(STAGE_BYTES), block(1)]));
        assert!(!decode(vec![block(u32::MAX); 4]));
        assert!(!decode(Vec::new()));
        assert!(decode(vec![block(1); FRAME_DESCRIPTORS_MAX]));
        assert!(!decode(vec![block(1); FRAME_DESCRIPTORS_MAX + 1]));
    }

    #[test]
    fn a_full_list_fits_a_message_and_its_blocks_a_slot() {
        let list = vec![
            Block { region: RegionId::from_raw(1), address: 1, length: STAGE_BYTES / 512 - 1 };
            FRAME_DESCRIPTORS_MAX
        ];
        let (offsets, end) = layout(list.iter().map(|block| block.length));
        assert!(end <= crate::limits::STAGE_SLOT_BYTES);
        assert!(offsets.iter().all(|offset| offset % STAGE_ALIGN == 0));
        let (offsets, end) = layout((0..FRAME_DESCRIPTORS_MAX as u32).map(|at| [7673, 512][at as usize % 2]));
        assert!(end <= crate::limits::STAGE_SLOT_BYTES, "{end}");
        assert!(offsets.iter().skip(1).step_by(2).all(|offset| offset % STAGE_SECTOR == 0));
        let mut bytes = Vec::new();
        Message::Commit {
            op: OperationId::from_raw(1),
            blocks: Blocks { not_after_ns: Boottime::from_ns(1), bridge_slot: None, durable: false, list },
        }
        .encode(&mut bytes);
        assert!(bytes.len() < MESSAGE_BYTES);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::decode_all(&bytes);
        }
    }
}
