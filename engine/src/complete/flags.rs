//! What is true or not of a transfer from its beginning to its end.

use std::fmt;
use std::ops::BitOr;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct TransferFlags(u8);

impl TransferFlags {
    pub const NONE: TransferFlags = TransferFlags(0);
    /// The payload is verified end to end.
    pub const CHECKSUM: TransferFlags = TransferFlags(1);
    /// Done when the target's NIC has acknowledged it; visible to the target's CPU or not.
    pub const ACKED_ONLY: TransferFlags = TransferFlags(1 << 1);
    /// The caller waits for it at once, and will drive what carries it.
    pub const AWAITED: TransferFlags = TransferFlags(1 << 2);
    /// Of another transfer, in whose name it is counted.
    pub const PART: TransferFlags = TransferFlags(1 << 3);
    /// Waits, in its place in the outbox, until `Peer::start`.
    pub const HELD: TransferFlags = TransferFlags(1 << 4);
    /// Nothing of it is applied before earlier ones of these are done.
    pub const ORDERED: TransferFlags = TransferFlags(1 << 5);
    /// Some of it is memory of a device: out of reach for TCP.
    pub const DEVICE: TransferFlags = TransferFlags(1 << 6);
    /// Some of the peer's memory was in no region that was known here: it may turn out to be a device's.
    pub const UNKNOWN: TransferFlags = TransferFlags(1 << 7);

    const NAMES: [&str; 8] =
        ["CHECKSUM", "ACKED_ONLY", "AWAITED", "PART", "HELD", "ORDERED", "DEVICE", "UNKNOWN"];

    /// These, or none if it is not so.
    pub fn when(self, is_so: bool) -> TransferFlags {
        if is_so {
            self
        } else {
            TransferFlags::NONE
        }
    }

    /// Whether all of these are set.
    pub fn has(self, flags: TransferFlags) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for TransferFlags {
    type Output = TransferFlags;

    fn bitor(self, other: TransferFlags) -> TransferFlags {
        TransferFlags(self.0 | other.0)
    }
}

impl fmt::Debug for TransferFlags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = TransferFlags::NAMES.iter().enumerate().filter(|(bit, _)| self.0 & 1 << bit != 0);
        formatter.debug_list().entries(set.map(|(_, name)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_its_own() {
        use TransferFlags as F;
        let all =
            [F::CHECKSUM, F::ACKED_ONLY, F::AWAITED, F::PART, F::HELD, F::ORDERED, F::DEVICE, F::UNKNOWN];
        for (at, flag) in all.into_iter().enumerate() {
            assert_eq!(format!("{flag:?}"), format!("[{:?}]", F::NAMES[at]));
            assert!(flag.has(flag) && !F::NONE.has(flag) && flag.has(F::NONE));
            assert_eq!((flag.when(true), flag.when(false)), (flag, F::NONE));
            for (other, flags) in all.into_iter().enumerate() {
                assert_eq!(flags.has(flag), at == other);
                assert!((flag | flags).has(flag) && (flag | flags).has(flags));
                assert_eq!(flag.has(flag | flags), at == other, "not all of them");
            }
        }
    }
}
