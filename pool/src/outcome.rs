//! How one key of a call ended.

/// How one key of a call ended. The numbers are the C ABI's, and go over the wire: they are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Outcome {
    /// The value is in the caller's memory; it is stored; it exists; it is removed.
    Ok = 0,
    /// A put: the value was stored already, and no byte was moved.
    Here = 1,
    /// No node has it.
    Absent = 2,
    /// Not found, and it cannot be said that no node has it: the index is being rebuilt, or nodes cannot be asked.
    Unknown = 3,
    /// The index named an owner, and the owner does not have it any more.
    Evicted = 4,
    /// Each owner that had it is lost or silent.
    OwnerLost = 5,
    /// The bytes of each owner that had it did not match their checksum. Bad bytes are dropped where they lay.
    Corrupt = 6,
    /// A put: no node has room, even after eviction.
    Full = 7,
    /// A put: the value is longer than the memory of any node.
    TooLong = 8,
    /// A get: the caller's memory has another length than the value.
    Length = 9,
    /// The transfer failed: the caller's memory was unregistered, or cannot be read or written.
    Failed = 10,
    /// The pool was closed.
    Closed = 11,
}

impl Outcome {
    pub const ALL: [Outcome; 12] = [
        Outcome::Ok,
        Outcome::Here,
        Outcome::Absent,
        Outcome::Unknown,
        Outcome::Evicted,
        Outcome::OwnerLost,
        Outcome::Corrupt,
        Outcome::Full,
        Outcome::TooLong,
        Outcome::Length,
        Outcome::Failed,
        Outcome::Closed,
    ];

    pub fn from_number(number: u32) -> Option<Outcome> {
        Outcome::ALL.get(number as usize).copied()
    }

    /// Whether the call did what it was to do for this key.
    pub fn is_ok(self) -> bool {
        matches!(self, Outcome::Ok | Outcome::Here)
    }

    pub fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "OK",
            Outcome::Here => "HERE",
            Outcome::Absent => "ABSENT",
            Outcome::Unknown => "UNKNOWN",
            Outcome::Evicted => "EVICTED",
            Outcome::OwnerLost => "OWNER_LOST",
            Outcome::Corrupt => "CORRUPT",
            Outcome::Full => "FULL",
            Outcome::TooLong => "TOO_LONG",
            Outcome::Length => "LENGTH",
            Outcome::Failed => "FAILED",
            Outcome::Closed => "CLOSED",
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_stands_at_its_number() {
        for (number, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!((outcome as usize, Outcome::from_number(number as u32)), (number, Some(outcome)));
        }
        assert_eq!(Outcome::from_number(Outcome::ALL.len() as u32), None);
    }
}
