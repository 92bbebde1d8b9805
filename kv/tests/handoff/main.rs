//! Handoffs between caches in a world without engines (`world`): every order of messages, ends of transfers, deaths and
//! calls that a seed draws. `storm` draws whole stories; `named` has the ones that are known to be easily broken.

mod caches;
mod model;
mod named;
mod storm;
mod world;
