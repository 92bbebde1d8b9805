//! TCP: data lanes, driven directly on their sockets.
//!
//! ```text
//! path ─ picks lanes ─▶ lane ┬ tx   fills and sends batches          } any thread: submitter,
//!                            └ rx   receives, `incoming`s, `landing`    } waiter, or `worker`
//! service ─ opens the lanes that queued work needs, as `opening` decides; `greetings` dials them
//! `control` polls the connections until they are lanes, and accepts those of the peer.
//! ```

pub mod admit;
pub mod answer;
#[cfg(test)]
mod debts_tests;
#[cfg(test)]
mod drain_tests;
pub mod filler;
pub mod flight;
mod greetings;
pub mod incoming;
pub mod landing;
pub mod lane;
pub mod lanes;
#[cfg(test)]
mod lease_tests;
pub mod opening;
pub mod path;
pub mod rx;
pub mod service;
pub mod tx;
pub mod wire;
pub mod worker;
