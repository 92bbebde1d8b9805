//! ferry as the subject: a server that holds memory, a client that moves it, and both at once for comparisons and
//! `selftest`.
//!
//! The two ends communicate by ferry's own notifications (`channel`, `wire`), so that a test between two machines
//! needs one port and one secret. The same server serves `ferry-bench TEST` and the child process of `Pair`.

mod beside;
mod channel;
mod client;
mod drive;
mod pair;
mod pingpong;
mod rally;
mod registered;
mod secret;
mod server;
mod setup;
mod terms;
mod wire;

pub use client::{unavailable, Client};
pub use pair::{Pair, PairConfig, Role, IN_FLIGHT};
pub use secret::SecretFile;
pub use server::{serve, serve_child};
pub use setup::Setup;
pub use terms::{accept, Term};
pub use wire::{Area, Flight, Listening, Manner, Origin, PingPong};
