//! Handles as types, so that different kinds of numbers cannot be confused. `raw` is the number in the C ABI and on the
//! wire.

use std::fmt;

macro_rules! id {
    ($(#[$what:meta])* $Name:ident($Number:ident)) => {
        $(#[$what])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $Name($Number);

        impl $Name {
            /// No handle.
            pub const NONE: $Name = $Name(0);

            #[inline]
            pub const fn from_raw(raw: $Number) -> $Name {
                $Name(raw)
            }

            #[inline]
            pub const fn raw(self) -> $Number {
                self.0
            }
        }

        impl From<$Name> for $Number {
            #[inline]
            fn from(id: $Name) -> $Number {
                id.0
            }
        }

        impl fmt::Debug for $Name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        }

        impl fmt::LowerHex for $Name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, out)
            }
        }
    };
}

id! {
    /// This engine's handle of a peer.
    PeerId(u64)
}

id! {
    /// The handle of a region, as the engine that registered the memory gave it.
    ///
    /// ```compile_fail,E0308
    /// use ferry::types::{PeerId, RegionId};
    /// assert!(PeerId::NONE == RegionId::NONE);
    /// ```
    RegionId(u64)
}

id! {
    /// This engine's handle of a transfer.
    TransferId(u64)
}

id! {
    /// This engine's handle of an event queue.
    QueueId(u64)
}

id! {
    /// The number of a lane in its session.
    LaneId(u32)
}

impl LaneId {
    /// Returns the number after this one; the last number follows itself.
    pub const fn next(self) -> LaneId {
        LaneId(self.0.saturating_add(1))
    }
}

id! {
    /// The number of an operation of staging, which the initiator of the transfer draws.
    OperationId(u64)
}

id! {
    /// The number of a bridge of staging, which the initiator draws.
    BridgeId(u64)
}

macro_rules! drawn {
    ($(#[$what:meta])* $Name:ident) => {
        $(#[$what])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $Name(pub [u8; 16]);

        impl fmt::Debug for $Name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{:032x}", u128::from_be_bytes(self.0))
            }
        }
    };
}

drawn! {
    /// The id of an engine, drawn when the engine opens.
    EngineId
}

drawn! {
    /// The id of a session, which both of its sides take from the hash of their handshake.
    SessionId
}

drawn! {
    /// The id of the place at which an engine listens. Only one engine listens at a place at a time.
    PlaceId
}

/// An engine's id and its incarnation number, both drawn when the engine opens.
pub type Incarnation = (EngineId, u64);
