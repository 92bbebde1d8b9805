//! Times of engines in the virtual machine.

/// For an emulated machine that shares its two cores; they follow those of `support::QUICK`. The lease is longer than a
/// queue pair takes to give up (about 0.5 s), and longer than the network may hold packets (1 s).
pub const EMULATED: [(&str, &str); 7] = [
    ("lease_ms", "1500"),
    ("drain_ms", "100"),
    ("progress_timeout_ms", "3000"),
    ("connect_timeout_ms", "10000"),
    ("reconnect_timeout_ms", "3000"),
    ("handshake_timeout_ms", "5000"),
    ("workers", "1"),
];
