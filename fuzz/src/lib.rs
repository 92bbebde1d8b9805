//! The fuzz targets: each takes any bytes, drives one parser or state machine that reads from a peer, and asserts what
//! must hold, whatever the bytes are. `main.rs` runs a target under libFuzzer, `tests/corpus.rs` replays the corpora.
//!
//! ```text
//! bytes ──arbitrary──▶ frames, messages or steps ──▶ the engine's code ┐
//!                                              └──▶ a simple model     ┴▶ compare
//! ```
//! The targets that make frames seal them with the right keys, so that contents are reached.

mod announce;
mod blocks;
mod config;
mod descriptor;
mod directory;
mod flight;
mod handshake;
mod inbox;
mod kv_handoff;
mod kv_layout;
mod lane;
mod lane_numbers;
mod lease;
mod machine;
mod memory;
mod message;
mod order;
mod outbox;
mod peer;
mod plan;
mod pool;
mod remote;
mod words;

/// A fuzz target: its name, which is also the folder of its corpus, and its body.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    /// True if the target drives a state machine, false if it drives a parser or arithmetic.
    pub has_state: bool,
    pub run: fn(&[u8]),
}

const fn parser(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, has_state: false, run }
}

const fn states(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, has_state: true, run }
}

/// All targets, in the order of the data path.
pub const TARGETS: &[Target] = &[
    parser("config", config::run),
    parser("descriptor", descriptor::run),
    states("handshake", handshake::run),
    parser("greeting", words::greeting),
    parser("message", message::run),
    states("order", order::run),
    states("machine", machine::run),
    states("announce", announce::run),
    states("remote", remote::run),
    parser("blocks", blocks::run),
    parser("plan", plan::run),
    states("outbox", outbox::run),
    states("inbox", inbox::run),
    states("lane_numbers", lane_numbers::run),
    states("lease", lease::run),
    parser("header", words::header),
    states("lane", lane::run),
    states("flight", flight::run),
    parser("rdma_words", words::rdma),
    parser("local_packets", words::packets),
    parser("stage_words", words::stage),
    parser("kv_layout", kv_layout::run),
    states("kv_handoff", kv_handoff::run),
    states("pool", pool::run),
    states("directory", directory::run),
];
