//! Pages of the program's memory in transfers of an engine to itself, at either end: one that faults fails its request
//! and raises no signal; one that never comes holds up no other transfer.

use crate::common::data::{check, pattern};
use crate::common::{engine, request, PATIENCE};
use crate::pages::{page_bytes, Loss, Pages};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Deadline, Engine, RegionOptions, State, Status, TransferOptions};
use std::time::Duration;

const BYTES: usize = 1 << 20;

struct Own {
    engine: Engine,
    peer: PeerId,
    local: Pages,
    remote: Pages,
    regions: [RegionId; 2],
}

impl Own {
    fn new() -> Own {
        let engine = engine(&[("listen_address", "")]);
        let peer = engine.own_peer().unwrap();
        let [local, remote] = [(); 2].map(|()| Pages::new(2 * BYTES / page_bytes()));
        let regions = [&local, &remote].map(|pages| pages.register(&engine));
        Own { engine, peer, local, remote, regions }
    }

    fn request(&self, at: usize, length: usize) -> Request {
        let (local, remote) = (self.local.address() + at as u64, self.remote.address() + at as u64);
        Request { local, remote, length: length as u64, remote_region: self.regions[1] }
    }

    fn ends(&self, op: Op) -> [&Pages; 2] {
        let ends = [&self.local, &self.remote];
        if op == Op::Write {
            ends
        } else {
            [ends[1], ends[0]]
        }
    }
}

fn faults(op: Op, length: usize, loss: Loss, at_source: bool) {
    let own = Own::new();
    let [from, to] = own.ends(op);
    from.write(0, &pattern(1, 2 * BYTES));
    to.write(0, &pattern(2, 2 * BYTES));
    // The request ends in the last page, where a file can be truncated.
    let page = 2 * BYTES - page_bytes();
    let bad = own.request(page - length / 2, length / 2 + 50);
    if at_source { from } else { to }.lose(page, loss);
    let requests = [own.request(0, 64), bad, own.request(128, 64)];
    let options = TransferOptions { no_coalesce: true, ..TransferOptions::default() };
    let transfer = own.engine.submit(own.peer, op, &requests, &options).unwrap();
    let result = transfer.wait(Some(PATIENCE)).unwrap();
    let what = format!("{op:?} {length} {loss:?} at the source: {at_source}");
    assert_eq!((result.state, result.status), (State::Failed, Status::Partial), "{what}");
    let seen: Vec<_> = transfer.results().iter().map(|it| (it.status, it.os_error)).collect();
    assert_eq!(seen, [(Status::Ok, 0), (Status::System, libc::EFAULT), (Status::Ok, 0)], "{what}");
    check(&what, &to.read(0, 64), &pattern(1, 64));
    assert_eq!(own.engine.write(own.peer, &[own.request(0, 64)], &options).unwrap().status, Status::Ok);
}

#[test]
fn a_page_that_faults_fails_its_request_alone() {
    for op in [Op::Write, Op::Read] {
        for loss in [Loss::Unmapped, Loss::Truncated] {
            for at_source in [true, false] {
                faults(op, 100, loss, at_source);
                faults(op, BYTES, loss, at_source);
            }
        }
        faults(op, 100, Loss::ReadOnly, false);
    }
}

/// Memory of ferry at one end does not make the other end safe.
#[test]
fn a_page_that_faults_beside_memory_of_ferry_raises_no_signal() {
    let own = Own::new();
    let ours = own.engine.alloc(BYTES, &RegionOptions::default()).unwrap();
    own.local.lose(0, Loss::Unmapped);
    let there = Request { local: own.local.address(), ..request(&ours, 0, &ours, 0, 4096) };
    let back = Request {
        local: ours.address(),
        remote: own.local.address(),
        length: 4096,
        remote_region: own.regions[0],
    };
    for op in [Op::Write, Op::Read] {
        for request in [there, back] {
            let transfer = own.engine.submit(own.peer, op, &[request], &TransferOptions::default()).unwrap();
            let result = transfer.wait(Some(PATIENCE)).unwrap();
            assert_eq!((result.status, result.os_error), (Status::System, libc::EFAULT), "{op:?}");
        }
    }
}

/// The page is at the far end: the submitter leaves the copy to another thread, and the transfer drains.
#[test]
fn a_page_that_never_comes_holds_up_its_transfer_alone() {
    for op in [Op::Write, Op::Read] {
        for length in [4096, BYTES] {
            let own = Own::new();
            let Some(blocked) = own.remote.block(0) else { return };
            let deadline = Deadline::After(Duration::from_millis(100));
            let options = TransferOptions { deadline, ..TransferOptions::default() };
            let transfer = own.engine.submit(own.peer, op, &[own.request(0, length)], &options).unwrap();
            blocked.wait();
            let ours = own.engine.alloc(BYTES, &RegionOptions::default()).unwrap();
            for length in [64, BYTES / 2] {
                let beside = [request(&ours, 0, &ours, BYTES / 2, length)];
                own.engine.write(own.peer, &beside, &TransferOptions::default()).unwrap();
            }
            while transfer.state() != State::Draining {
                std::thread::yield_now();
            }
            for region in own.regions {
                let error = own.engine.unregister(region, Some(Duration::ZERO)).unwrap_err();
                assert_eq!(error.status, Status::Busy, "a thread is in the memory");
            }
            drop(blocked);
            let result = transfer.wait(Some(PATIENCE)).unwrap();
            // A page of a piece that was begun: its bytes were copied after all.
            assert!(matches!(result.state, State::TimedOut | State::Done), "{:?}", result.state);
            for region in own.regions {
                own.engine.unregister(region, Some(PATIENCE)).unwrap();
            }
        }
    }
}
