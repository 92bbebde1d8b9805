//! Peers that have the secret and mean harm: what they may say, in which order and how much of it, and that
//! nobody but themselves is harmed. `common/hostile` is such a peer; `common/proxy` harms what two
//! engines in good order say to each other.

#[path = "../common/hostile/mod.rs"]
mod hostile;
#[path = "../common/proxy/mod.rs"]
mod proxy;
mod support;

mod anew;
mod answers;
mod fences;
mod frames;
mod lanes;
mod leases;
mod losses;
mod numbers;
mod opening;
mod proofs;
mod rights;
mod smoke;
mod words;
