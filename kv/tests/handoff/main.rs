//! Handoffs between caches in a world without engines (`world`): every order of messages, ends of transfers, deaths and
//! calls that a seed draws. `storm` draws whole stories, `metrics` counts what they did; `model` goes to every state of one
//! offer and one take; `named` has the stories that are known to be easily broken.

mod caches;
mod metrics;
mod model;
mod named;
mod retracts;
mod storm;
mod world;
