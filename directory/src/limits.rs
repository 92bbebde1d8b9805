//! The bounds of a directory. Entries of etcd may be written by anyone who has its address.

/// Bytes of a name, and of a prefix.
pub const NAME_BYTES_MAX: usize = 127;
/// Bytes of an entry's value in etcd.
pub const VALUE_BYTES_MAX: usize = 512;
/// Entries of a directory. Later ones are left out and counted.
pub const ENTRIES_MAX: usize = 65_536;
/// Names whose changes wait to be taken. With more, the program lists anew.
pub const CHANGES_MAX: usize = 4_096;
/// Names that one directory registers.
pub const REGISTRATIONS_MAX: usize = 1_024;
/// Servers of an `etcd:` URL.
pub const SERVERS_MAX: usize = 16;
/// Bytes of a URL, or of the file that a `static:` URL names.
pub const LIST_BYTES_MAX: usize = 16 << 20;
/// Bytes of an answer of etcd, and of a message of a watch. A list is asked for in smaller pages, down to one entry.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The shortest and the longest lease.
pub const TTL_SECONDS: std::ops::RangeInclusive<u64> = 1..=3_600;
