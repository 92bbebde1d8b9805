//! Notifications between devices: small SENDs into the other end's shared receive queue. A device's endpoints share
//! one such queue, and its poller keeps the queue fed. Each notification stays in a slot of registered memory until
//! its SEND has completed. The target's engine acknowledges notifications by another SEND (`unacknowledged`).

use crate::limits::RDMA_NOTIFY_BYTES_MAX;
use crate::sys::lock::Mutex;
use crate::sys::mapping::Mapping;
use crate::sys::verbs::{Mr, Pd, Srq};
use std::io;
use std::sync::Arc;

const NOTIFY: u8 = 1;
const SKIP: u8 = 2;
const ACKS: u8 = 3;
const HEADER_BYTES: usize = 9;
const SLOT_BYTES: usize = RDMA_NOTIFY_BYTES_MAX + HEADER_BYTES;
/// Slots to receive into, and slots to send from.
const RECEIVES: u32 = 512;
const SENDS: u32 = 256;

/// The content of one SEND.
#[derive(Debug, PartialEq, Eq)]
pub enum SendBody<'a> {
    /// A notification, with its number among the sender's.
    Notify(u64, &'a [u8]),
    /// Gives up this number: no notification with it will come.
    Skip(u64),
    /// Acknowledges the notifications and skips with these numbers.
    Acks(Vec<u64>),
}

/// Numbers that one SEND can acknowledge.
pub const ACKS_MAX: usize = RDMA_NOTIFY_BYTES_MAX / 8;

pub struct Notifications {
    /// Declared before the memory, so that the registration is dropped first.
    key: Mr,
    memory: Mapping,
    pub srq: Arc<Srq>,
    free: Mutex<Vec<u32>>,
}

impl Notifications {
    pub fn new(pd: &Arc<Pd>) -> io::Result<Notifications> {
        let limits = pd.context().limits();
        // Each may complete before one is taken in.
        let receives = RECEIVES.min(limits.srq_wr_max).min(limits.cqe_max);
        let length = (receives + SENDS) as usize * SLOT_BYTES;
        let memory = Mapping::private(length)?;
        memory.keep_from_children();
        // SAFETY: the mapping is kept beside its registration, which is dropped first.
        let key = unsafe { pd.register(memory.address() as u64, length as u64, false, false, false) }?;
        let free = Mutex::new((receives..receives + SENDS).collect());
        let notifications = Notifications { key, memory, srq: Srq::new(pd, receives)?, free };
        (0..receives).try_for_each(|slot| notifications.feed(slot))?;
        Ok(notifications)
    }

    fn address(&self, slot: u32) -> u64 {
        self.memory.address() as u64 + slot as u64 * SLOT_BYTES as u64
    }

    /// Posts this slot to the receive queue.
    pub fn feed(&self, slot: u32) -> io::Result<()> {
        // SAFETY: the slot is in our own memory, which outlives the queue. Nothing reads the slot before its receive
        // has completed.
        unsafe { self.srq.post_receive(slot as u64, self.address(slot), SLOT_BYTES as u32, self.key.lkey()) }
    }

    /// Copies the content of a slot that was received into, and returns its length.
    pub fn read(&self, slot: u32, length: u32, into: &mut [u8; SLOT_BYTES]) -> usize {
        let length = (length as usize).min(SLOT_BYTES);
        self.memory.read(slot as usize * SLOT_BYTES, &mut into[..length]);
        length
    }

    /// Takes a free slot to send from, if there is one.
    pub fn take(&self) -> Option<u32> {
        self.free.lock().pop()
    }

    pub fn give_back(&self, slot: u32) {
        self.free.lock().push(slot);
    }

    /// Writes the content of a SEND into a slot. Returns its address, length and key.
    pub fn write(&self, slot: u32, body: &SendBody) -> (u64, u32, u32) {
        let mut bytes = [0; SLOT_BYTES];
        let length = body.encode(&mut bytes);
        self.memory.write(slot as usize * SLOT_BYTES, &bytes[..length]);
        (self.address(slot), length as u32, self.key.lkey())
    }
}

/// A buffer for `read`.
pub fn buffer() -> [u8; SLOT_BYTES] {
    [0; SLOT_BYTES]
}

impl<'a> SendBody<'a> {
    fn encode(&self, into: &mut [u8; SLOT_BYTES]) -> usize {
        let (kind, number) = match self {
            SendBody::Notify(number, _) => (NOTIFY, *number),
            SendBody::Skip(number) => (SKIP, *number),
            SendBody::Acks(numbers) => (ACKS, numbers.len() as u64),
        };
        into[0] = kind;
        into[1..HEADER_BYTES].copy_from_slice(&number.to_le_bytes());
        let body = &mut into[HEADER_BYTES..];
        HEADER_BYTES
            + match self {
                SendBody::Notify(_, bytes) => {
                    body[..bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                }
                SendBody::Skip(_) => 0,
                SendBody::Acks(numbers) => {
                    let places = body.chunks_exact_mut(8).zip(numbers);
                    places.for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
                    numbers.len() * 8
                }
            }
    }

    /// Returns None if the bytes are not valid.
    pub fn decode(bytes: &'a [u8]) -> Option<SendBody<'a>> {
        let (header, body) = bytes.split_at_checked(HEADER_BYTES)?;
        let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
        let first = number(&header[1..])?;
        match header[0] {
            NOTIFY => Some(SendBody::Notify(first, body)),
            SKIP if body.is_empty() => Some(SendBody::Skip(first)),
            ACKS if body.len() as u64 == first.checked_mul(8)? => {
                Some(SendBody::Acks(body.chunks_exact(8).filter_map(number).collect()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_round_trip_and_nonsense_is_none() {
        let longest = [7; RDMA_NOTIFY_BYTES_MAX];
        for body in [
            SendBody::Notify(u64::MAX, &longest),
            SendBody::Notify(0, &[]),
            SendBody::Skip(5),
            SendBody::Acks((0..ACKS_MAX as u64).collect()),
        ] {
            let mut bytes = buffer();
            let length = body.encode(&mut bytes);
            assert_eq!(SendBody::decode(&bytes[..length]), Some(body));
            assert_eq!(SendBody::decode(&bytes[..HEADER_BYTES - 1]), None);
        }
        assert_eq!(SendBody::decode(&[4, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(SendBody::decode(&[ACKS, 1, 0, 0, 0, 0, 0, 0, 0, 7]), None);
        assert_eq!(SendBody::decode(&[SKIP, 0, 0, 0, 0, 0, 0, 0, 0, 1]), None);
    }
}
