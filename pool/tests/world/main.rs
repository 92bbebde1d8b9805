//! Nodes of a pool in a world without engines (`world`): every order of messages, ends of transfers, losses and deaths
//! that a seed draws. `sessions` has the faults of nodes, `program` the calls and what must be true of them, `storm`
//! whole stories, `tier` and `drain` short ones.

mod drain;
mod keys;
mod program;
mod sessions;
mod storm;
mod tier;
mod world;
