//! Handing sequences over: offers of producers, takes of consumers, and who may free and write their blocks.
//!
//! ```text
//! calls ─▶ machine ─┬ producer  offers, their takers          lists     checks of block lists
//!                   ├ consumer  takes, their parts            flow      moves the data of both: posts it, counts it
//!                   ├ remote    other caches                  progress  what was posted, what has arrived
//!                   │                                         silence   what theirs means, and tombs: ids that have ended
//!                   ├ waiting   takes before their offer      limits    bounds
//!                   └ wire      messages                      metrics   what is counted
//!                                                     record    what happened when
//! ```
//! Nothing here does I/O or looks at a clock.

mod cause;
mod consumer;
mod flow;
mod id;
pub mod limits;
mod lists;
mod machine;
mod metrics;
mod producer;
mod progress;
mod record;
mod regions;
mod remote;
mod silence;
mod tombs;
mod types;
mod waiting;
#[doc(hidden)]
pub mod wire;

#[doc(hidden)]
pub use flow::Address;
pub use id::HandoffId;
#[doc(hidden)]
pub use machine::{Action, Machine, PostId};
pub use metrics::{Ends, Stats};
#[doc(hidden)]
pub use progress::Work;
pub use record::{Entry, Moved, What, MARK_COMPUTE};
#[doc(hidden)]
pub use regions::Regions;
#[doc(hidden)]
pub use remote::Hello;
#[doc(hidden)]
pub use remote::{Handoff, Owner};
pub use types::{BlockList, End, Event, HandoffState, Mode, OfferSpec, Other, TakeSpec};
#[doc(hidden)]
pub use wire::MemoryRange;
