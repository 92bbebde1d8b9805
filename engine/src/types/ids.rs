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
