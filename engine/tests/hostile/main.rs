//! Hostile peers with the secret: any messages, in any order and amount, harm only the hostile peer.
//! `common/hostile` is such a peer; `common/proxy` harms the traffic between two correct engines.

#[path = "../common/hostile/mod.rs"]
mod hostile;
#[path = "../common/proxy/mod.rs"]
mod proxy;
mod support;

mod anew;
mod answers;
mod dials;
mod fences;
mod frames;
mod lanes;
mod leases;
mod losses;
mod messages;
mod numbers;
mod opening;
mod proofs;
mod rights;
mod smoke;
mod storm;
