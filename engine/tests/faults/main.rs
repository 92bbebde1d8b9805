//! Faults: peers stopped, killed and restarted, lanes cut and altered, strangers at the port, regions that go away,
//! limits of the system. Each contract about failure (docs/contracts.md) has its test here, against real processes and
//! sockets on loopback.
//!
//! `support` has configurations, positional patterns and bounded waiting; `child` has other processes (this binary
//! again, see `child::child_role`); `proxy` is a TCP proxy that does harm on request. The tests run one at a time
//! (`support::alone`), because most of them bound times.

mod child;
#[path = "../common/proxy/mod.rs"]
mod proxy;
#[path = "../common/role.rs"]
mod role;
mod support;

mod anew;
mod channels;
mod containers;
mod exhaustion;
mod fences;
mod floods;
mod fork;
mod heard;
mod killed;
mod lanes;
mod local;
mod opening;
mod regions;
mod replay;
mod rights;
mod sessions;
mod stopped;
mod strangers;
