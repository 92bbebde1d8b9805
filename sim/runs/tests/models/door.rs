//! The door of the same-host path: a process copies by its grant while the owner of the memory unregisters it, ends
//! the session, or registers other memory in its place. Contracts 2, 7, 9 and 12.

use crate::rig::*;
use ferry::internals::handle::Tag;
use ferry::internals::region::{Grant, Grants, Registry};
use ferry::types::{Access, RegionId};
use ferry::{RegionSpec, Status};
use ferry_sim_kernel::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 4096;

struct Rig {
    registry: Registry,
    grants: Arc<Grants>,
    grant: Grant,
    region: RegionId,
    /// How many are in the memory that the region names. Its owner adds `OWNER` when the memory is its own again.
    users: AtomicU64,
}

const OWNER: u64 = 1 << 32;

fn spec(at: u64, access: Access) -> RegionSpec {
    RegionSpec { address: at, length: SIZE, access, ..RegionSpec::default() }
}

fn rig() -> Rc<Rig> {
    let grants = Arc::new(Grants::new().unwrap());
    let registry = Registry::new(Tag::from_random(9), Some(grants.clone()));
    let (_tally, fd) = grants.admit(7).unwrap();
    let grant = Grant::new(grants.board(), &fd).unwrap();
    let region = registry.register(&[spec(0x10000, Access::REMOTE_WRITE)]).unwrap()[0].id;
    Rc::new(Rig { registry, grants, grant, region, users: AtomicU64::new(0) })
}

impl Rig {
    /// Acts as an initiator in another process. Returns whether it got in.
    fn copy(&self) -> bool {
        let inside = match self.grant.enter(self.region) {
            Ok(inside) => inside,
            Err(error) => {
                assert_eq!(error.status, Status::Stale);
                return false;
            }
        };
        assert!(self.users.fetch_add(1, Relaxed) < OWNER, "a copy into memory that is its owner's again");
        assert_eq!(inside.region(), (0x10000, SIZE, Access::REMOTE_WRITE), "another region's properties");
        assert!(self.users.fetch_sub(1, Relaxed) & !OWNER > 0);
        true
    }

    /// The memory is the owner's again.
    fn reuse(&self) {
        let inside = self.users.fetch_add(OWNER, Relaxed);
        assert_eq!(inside, 0, "a copy runs while the owner has its memory back");
    }
}

/// After unregister has returned, no copy runs, and the next region in the slot is another one.
#[test]
fn no_copy_outlasts_an_unregister() {
    explore(3, || {
        let rig = rig();
        let copies = start(&rig, "copies", |rig| {
            rig.copy();
            rig.copy();
        });
        rig.registry.unregister(rig.region, None).unwrap();
        rig.reuse();
        let next = rig.registry.register(&[spec(0x20000, Access::REMOTE_READ)]).unwrap();
        join([copies]);
        assert_ne!(next[0].id, rig.region);
        assert!(!rig.copy());
    });
}

/// With a timeout of 0 the region is unregistered, or nothing has changed: a copy that was refused proves the first.
#[test]
fn a_trial_unregisters_or_changes_nothing() {
    explore(3, || {
        let rig = rig();
        let copies = start(&rig, "copies", |rig| {
            if !rig.copy() {
                assert!(is_shut(rig), "an initiator found shut what was never shut");
            }
        });
        match rig.registry.unregister(rig.region, Some(Duration::ZERO)) {
            Ok(()) => rig.reuse(),
            Err(error) => assert_eq!(error.status, Status::Busy),
        }
        join([copies]);
        let stands = rig.registry.get(rig.region).is_ok();
        assert_eq!(rig.copy(), stands, "shut for good without being unregistered");
    });
}

/// The region is unregistered, or about to be.
fn is_shut(rig: &Rig) -> bool {
    rig.registry.get(rig.region).map_or(true, |region| region.is_revoked())
}

/// Two threads unregister one region while a third copies: one OK, and only when the copy is over.
#[test]
fn of_two_that_unregister_one_succeeds() {
    explore(2, || {
        let rig = rig();
        let copies = start(&rig, "copies", |rig| {
            rig.copy();
        });
        let rival = start(&rig, "rival", |rig| match rig.registry.unregister(rig.region, None) {
            Ok(()) => rig.reuse(),
            Err(error) => assert_eq!(error.status, Status::Stale),
        });
        match rig.registry.unregister(rig.region, None) {
            Ok(()) => rig.reuse(),
            Err(error) => assert_eq!(error.status, Status::Stale),
        }
        join([copies, rival]);
        assert_eq!(rig.users.load(Relaxed), OWNER, "one thread has the memory back");
    });
}

/// When the session has ended and is quiet, nothing of that process lands here any more.
#[test]
fn no_copy_outlasts_a_closed_session() {
    explore(3, || {
        let rig = rig();
        let copies = start(&rig, "copies", |rig| {
            rig.copy();
            rig.copy();
        });
        rig.grants.close_all();
        while !rig.grants.all_quiet() {
            ferry_sim_kernel::task::yield_now();
        }
        rig.reuse();
        join([copies]);
        assert!(rig.grant.is_closed());
    });
}
