//! Properties of a transfer that hold from its beginning to its end.

use std::fmt;
use std::ops::BitOr;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct TransferFlags(u16);

impl TransferFlags {
    pub const NONE: TransferFlags = TransferFlags(0);
    /// The payload is verified end to end.
    pub const CHECKSUM: TransferFlags = TransferFlags(1);
    /// The transfer is done when the target's NIC has acknowledged it, whether or not the target's CPU sees the data.
    pub const ACKED_ONLY: TransferFlags = TransferFlags(1 << 1);
    /// The caller waits at once, and drives the transfer's path meanwhile.
    pub const AWAITED: TransferFlags = TransferFlags(1 << 2);
    /// A part of a staged transfer, which is counted instead of the part.
    pub const PART: TransferFlags = TransferFlags(1 << 3);
    /// The transfer keeps its place in the outbox and waits for `Peer::start`.
    pub const HELD: TransferFlags = TransferFlags(1 << 4);
    /// Nothing of the transfer is applied before earlier ORDERED transfers to the peer are done.
    pub const ORDERED: TransferFlags = TransferFlags(1 << 5);
    /// Some of the memory is a device's, which TCP does not reach.
    pub const DEVICE: TransferFlags = TransferFlags(1 << 6);
    /// Some of the peer's memory is in no region that this engine knew at submit: the memory may be a device's.
    pub const UNKNOWN: TransferFlags = TransferFlags(1 << 7);
    /// The transfer is done when what it wrote to files would survive a loss of power.
    pub const DURABLE: TransferFlags = TransferFlags(1 << 8);

    const NAMES: [&str; 9] =
        ["CHECKSUM", "ACKED_ONLY", "AWAITED", "PART", "HELD", "ORDERED", "DEVICE", "UNKNOWN", "DURABLE"];

    /// Returns these flags if `is_so` is true, otherwise none.
    pub fn when(self, is_so: bool) -> TransferFlags {
        if is_so {
            self
        } else {
            TransferFlags::NONE
        }
    }

    /// Returns whether all of `flags` are set.
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
        let first = [F::CHECKSUM, F::ACKED_ONLY, F::AWAITED, F::PART, F::HELD];
        let all = [&first[..], &[F::ORDERED, F::DEVICE, F::UNKNOWN, F::DURABLE]].concat();
        for (at, flag) in all.iter().copied().enumerate() {
            assert_eq!(format!("{flag:?}"), format!("[{:?}]", F::NAMES[at]));
            assert!(flag.has(flag) && !F::NONE.has(flag) && flag.has(F::NONE));
            assert_eq!((flag.when(true), flag.when(false)), (flag, F::NONE));
            for (other, flags) in all.iter().copied().enumerate() {
                assert_eq!(flags.has(flag), at == other);
                assert!((flag | flags).has(flag) && (flag | flags).has(flags));
                assert_eq!(flag.has(flag | flags), at == other, "not all of them");
            }
        }
    }
}
