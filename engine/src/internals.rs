//! The parts of the engine that its own tests, ferry-bench and the references of ferry-compare use. No part of the
//! library: programs do not switch the feature `internals` on, and every name here may change at any time.

pub mod api {
    use crate::api::Engine;
    use crate::notify::{Event, EventBody};
    use crate::status::Result;
    use crate::types::{PeerId, RegionId};

    /// Breaks an engine as a bug in one of its calls does. Returns what the call returns: PANIC.
    pub fn break_engine(engine: &Engine) -> Result<()> {
        engine.call("being broken by a test", || std::panic::resume_unwind(Box::new("a planted bug")))
    }

    /// Tells the engine's queues of bytes that a peer's transfer had applied late.
    pub fn late_apply(
        engine: &Engine,
        peer: PeerId,
        region: RegionId,
        address: u64,
        length: u64,
    ) -> Result<()> {
        engine.hub()?.peer_event(Event::new(peer, EventBody::LateApply { region, address, length }));
        Ok(())
    }
}

pub mod command {
    pub use crate::command::{Command, Commands};
}

pub mod complete {
    use crate::complete::Transfer;
    use crate::sys::atomic::Ordering;
    use crate::types::{Monotonic, TransferId};
    use std::sync::Arc;
    use std::task::Waker;

    pub use crate::complete::transfer::Strike;
    pub use crate::complete::{Failure, Table, TransferFlags, TransferSpec};

    /// Makes a transfer that no table has.
    pub fn transfer(handle: TransferId, spec: TransferSpec) -> Arc<Transfer> {
        Arc::new(Transfer::new(handle, spec))
    }

    /// Returns the number of a queued transfer's notification.
    pub fn notification_number(transfer: &Transfer) -> u64 {
        transfer.notify_sequence.load(Ordering::Relaxed)
    }

    /// Returns whether the transfer is neither struck nor final.
    pub fn is_pending(transfer: &Transfer) -> bool {
        transfer.is_pending()
    }

    /// Strikes a transfer that no outbox has.
    pub fn strike(transfer: &Transfer, strike: Strike) -> bool {
        transfer.strike(strike, &mut crate::notify::Wakers::default())
    }

    /// Returns the deadline that the transfer was submitted with.
    pub fn deadline(transfer: &Transfer) -> Monotonic {
        transfer.spec.deadline_ns
    }

    /// Drops the owner's handle. Returns whether the owner must forget the transfer.
    pub fn orphan(transfer: &Transfer) -> bool {
        transfer.orphan()
    }

    /// Sleeps until the transfer is final.
    pub fn wait(transfer: &Transfer) {
        transfer.waiter.wait_until(|| transfer.is_final(), None);
    }

    /// Sleeps until one of the transfers is final, and returns its place.
    pub fn wait_any(transfers: &[Arc<Transfer>]) -> Option<usize> {
        let find = || transfers.iter().position(|transfer| transfer.is_final());
        crate::notify::wait_any(transfers.iter().map(|transfer| &transfer.waiter), find, None)
    }

    /// Registers a task that is woken when the transfer is final, as the first poll of a future does.
    pub fn register_waker(transfer: &Transfer, waker: &Waker) {
        transfer.waiter.register(waker);
    }
}

pub mod config {
    use crate::config::Config;
    use crate::status::Result;
    use std::ffi::OsString;

    /// Returns whether some part of ferry reads a variable of this name.
    pub fn is_known(variable: &str) -> bool {
        crate::config::is_known(variable)
    }

    /// Reads the settings from these variables, as `Config::new` does from the environment.
    pub fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config> {
        Config::from_variables(lookup)
    }
}

pub mod context {
    pub use crate::context::Context;
}

pub mod control {
    pub use crate::control::announcer::rig as announce;
}

pub mod device {
    pub use crate::device::{
        Allocation, Batch, Borrowed, Direction, Driver, Job, Limits, Piece, Point, Queue, Worker,
    };
}

pub mod handle {
    pub use crate::handle::{make, next_generation, parse, Kind, Parts, Tag};
}

pub mod notify {
    use crate::handle::Tag;
    use crate::notify::{Event, Hub, Queue};
    use crate::status::Result;
    use std::sync::Arc;

    /// Returns the queues of an engine with this tag.
    pub fn hub(tag: Tag) -> Hub {
        Hub::new(tag)
    }

    /// Creates a queue for these kinds of events.
    pub fn create(hub: &Hub, what: u32, capacity: usize) -> Result<Arc<Queue>> {
        hub.create(what, capacity, 0)
    }

    /// Sleeps until the queue has events, and takes one. STALE if the queue was destroyed.
    pub fn wait_for_event(queue: &Queue) -> Result<Vec<Event>> {
        queue.wait_for_events(1, || Ok(()), None)
    }

    /// Takes room for the end of a transfer.
    pub fn reserve(queue: &Queue) -> Result<()> {
        queue.reserve()
    }

    /// Queues an event as the end of a transfer does. `publish` runs while the queue is locked.
    pub fn push(queue: &Queue, event: Event, publish: impl FnOnce()) -> Result<()> {
        queue.reserve()?;
        queue.push_reserved(event, publish);
        Ok(())
    }
}

pub mod peer {
    pub use crate::peer::inbox::{Accepted, Arrival, Inbox};
    pub use crate::peer::lease::LeaseClock;
    pub use crate::peer::outbox::{Class, PullLimits, Pulled};
    pub use crate::peer::{
        After, EngineParts, LaneNumbers, Path, PathStatus, Peer, PeerIdentity, Posted, What,
    };
}

pub mod plan {
    pub use crate::plan::{plan, Plan, PlanInput, Range};
}

pub mod region {
    pub use crate::region::grants::{Grant, Grants, Use};
    pub use crate::region::remote::RemoteRegions;
    pub use crate::region::{admit, Region, RegionMap, Registry, RemoteMap, RemoteRegion};
}

pub mod request_map {
    pub use crate::request_map::requests_of;
}

pub mod route {
    pub use crate::route::slice;
}

pub mod session {
    pub use crate::session::{channel, greeting, machine, message, order};

    pub mod handshake {
        pub use crate::session::handshake::wire::KIND_CONTROL;
        pub use crate::session::handshake::{
            derive_secret, peek_kind, preamble, refusal, Acceptor, Auth, AuthPolicy, Dialer, Established,
            HandshakeError, HandshakeStep, Identity, Key, Local, Next, Nonce, Peek, Proof, ProofTable,
            RefusalCode, KIND_LANE,
        };
    }
}

/// The simulated operating system, for ferry-kv on the simulated kernel (`kv/src/os/sim.rs`).
#[cfg(feature = "sim")]
pub mod simulated {
    pub use crate::sys::bare;
    pub use crate::sys::clock::{monotonic_ns, now};
    pub use crate::sys::eventfd::EventFd;
    pub use crate::sys::fd::{AsFd, BorrowedFd};
    pub use crate::sys::pause::sleep;
    pub use crate::sys::poller::Interest;
    pub use crate::sys::random::fill as random;
    pub use ferry_sim_kernel::poller::poll;
    pub use std::os::fd::AsRawFd;
}

pub mod stage {
    pub use crate::stage::wire;
}

pub mod sys {
    pub use crate::sys::{
        acl, clock, copy, cuda, host, mapping, memory, pages, poller, proven, random_bytes, random_u64,
        socket, unix, verbs, vm,
    };
}

pub mod transport {
    pub use crate::transport::{ascend, cuda};

    pub mod local {
        pub use crate::transport::local::attach;
    }

    pub mod rdma {
        pub use crate::transport::rdma::wire;
    }

    pub mod tcp {
        pub use crate::transport::tcp::{answer, flight, lane, rx, wire, worker};
    }
}

pub mod types {
    pub use crate::types::ids::{BridgeId, OperationId};
}
