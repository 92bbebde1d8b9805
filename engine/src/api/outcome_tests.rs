//! Tests the error text of a refused transfer, for each rule of a target. The initiator forgets the target's regions
//! first: otherwise it would refuse most of these requests itself.

use crate::api::{Engine, RegionOptions, TransferOptions};
use crate::region::RemoteRegion;
use crate::status::{Error, Status};
use crate::types::{Access, Op, PeerId, RegionId, Request, Transport};
use crate::{Config, Memory};
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(20);
const LENGTH: u64 = 4 * FRAME;
/// The most bytes of a piece.
const FRAME: u64 = 64 << 10;

struct Rig {
    a: Engine,
    b: Engine,
    peer: PeerId,
    local: Memory,
    over: Transport,
}

impl Rig {
    fn new(over: Transport) -> Rig {
        let engine = || {
            let mut config = Config::default();
            config.set("transports", over.name()).unwrap();
            config.set("frame_bytes_max", &FRAME.to_string()).unwrap();
            Engine::open(config).unwrap()
        };
        let (a, b) = (engine(), engine());
        let peer = a.connect(b.address(), Some(BOUND)).unwrap();
        let local = a.alloc(LENGTH as usize, &RegionOptions::default()).unwrap();
        Rig { a, b, peer, local, over }
    }

    /// Memory of the target that the initiator has heard of and forgotten.
    fn target(&self, access: Access) -> Memory {
        let memory =
            self.b.alloc(LENGTH as usize, &RegionOptions { access, ..RegionOptions::default() }).unwrap();
        let end = std::time::Instant::now() + BOUND;
        let is_known =
            || self.a.peer_regions(self.peer).unwrap().iter().any(|it| it.region == memory.region());
        while !is_known() {
            assert!(std::time::Instant::now() < end, "the region is not announced");
            std::thread::yield_now();
        }
        self.a.whole().peers.get(self.peer).unwrap().remote.remove(&[memory.region()]);
        memory
    }

    fn refused(&self, op: Op, remote: u64, length: u64, named: RegionId) -> Error {
        let request = Request { local: self.local.address(), remote, length, remote_region: named };
        let transfer = self.a.submit(self.peer, op, &[request], &TransferOptions::default()).unwrap();
        let error = transfer.wait_done().unwrap_err();
        assert_eq!((error.transport, error.request_index), (self.over, Some(0)), "{error}");
        error
    }
}

fn says(error: &Error, status: Status, sentence: &str) {
    let expected = format!("1 of 1 requests failed, the first with {status}; the peer: {sentence}");
    assert_eq!((error.status, error.message.as_str()), (status, expected.as_str()), "{error:?}");
}

#[test]
fn a_refusal_names_the_side_and_the_range() {
    for over in [Transport::Tcp, Transport::Local] {
        let rig = Rig::new(over);
        let readable = rig.target(Access::REMOTE_READ);
        let (at, id) = (readable.address(), readable.region());
        let write = |remote, length, named| rig.refused(Op::Write, remote, length, named);
        let sentence = format!("remote {at:#x} + 4096 is in region {id:#x}, which does not grant WRITE");
        says(&write(at, 4096, id), Status::Access, &sentence);
        let sentence = format!(
            "remote {:#x} + 4097 is not inside region {id:#x}, which the request names",
            at + LENGTH - 4096
        );
        says(&write(at + LENGTH - 4096, 4097, id), Status::Invalid, &sentence);
        drop(readable);
        let gone = rig.target(Access::BOTH);
        let (at, id) = (gone.address(), gone.region());
        gone.free(Some(BOUND)).map_err(|(_, error)| error).unwrap();
        let sentence =
            format!("remote {at:#x} + 64 names region {id:#x}, which is no longer registered there");
        says(&write(at, 64, id), Status::Stale, &sentence);
    }
}

/// Requests that name no region go over TCP: only the target can look the address up.
#[test]
fn a_refusal_without_a_region_names_the_range() {
    let rig = Rig::new(Transport::Tcp);
    let readable = rig.target(Access::REMOTE_READ);
    let at = readable.address();
    let error = rig.refused(Op::Write, at, 4096, RegionId::NONE);
    says(&error, Status::Access, &format!("remote {at:#x} + 4096 is in a region that does not grant WRITE"));
    let error = rig.refused(Op::Read, at + LENGTH - 4096, 4097, RegionId::NONE);
    let sentence = format!("remote {:#x} + 4097 is in no region registered there", at + LENGTH - 4096);
    says(&error, Status::NotRegistered, &sentence);
    let region = rig.b.whole().registry.snapshot().get(readable.region()).unwrap().clone();
    assert!(region.enter());
    let (readable, busy) = readable.free(Some(Duration::from_millis(1))).unwrap_err();
    assert_eq!(busy.status, Status::Busy);
    let error = rig.refused(Op::Read, at, 64, RegionId::NONE);
    let sentence = format!("remote {at:#x} + 64 is in a region that is being unregistered there");
    says(&error, Status::Stale, &sentence);
    region.leave();
    readable.free(Some(BOUND)).map_err(|(_, error)| error).unwrap();
}

/// The error names the first refused request of many, by the range of the piece that carried the request.
#[test]
fn a_refusal_names_the_piece_of_the_first_refused_request() {
    let rig = Rig::new(Transport::Tcp);
    let good = rig.target(Access::BOTH);
    // A region that the initiator knows and the target does not: of the next generation of the same index.
    let known = rig.a.whole().peers.get(rig.peer).unwrap();
    let gone = RegionId::from_raw(good.region().raw() ^ 1 << crate::handle::INDEX_BITS);
    let at = good.address() + LENGTH;
    let location = crate::types::Location::HOST;
    known.remote.add(vec![RemoteRegion {
        id: gone,
        address: at,
        length: LENGTH,
        access: Access::BOTH,
        name: String::new(),
        location,
        staging: false,
        order: 0,
    }]);
    let request = |local, remote, named| Request {
        local: rig.local.address() + local,
        remote,
        length: 64,
        remote_region: named,
    };
    // The second and third requests are one piece; the fourth is another.
    let requests = [
        request(0, good.address(), good.region()),
        request(128, at, gone),
        request(192, at + 64, gone),
        request(512, at + 1024, gone),
    ];
    let transfer = rig.a.submit(rig.peer, Op::Write, &requests, &TransferOptions::default()).unwrap();
    let error = transfer.wait_done().unwrap_err();
    let expected = format!(
        "3 of 4 requests failed, the first with STALE; the peer: remote {at:#x} + 128 names region {gone:#x}, which is \
         no longer registered there"
    );
    assert_eq!((error.status, error.message, error.request_index), (Status::Partial, expected, Some(1)));
    // If one request has several pieces, the error names the first piece.
    let sentence =
        format!("remote {at:#x} + {FRAME} names region {gone:#x}, which is no longer registered there");
    says(&rig.refused(Op::Write, at, 3 * FRAME, gone), Status::Stale, &sentence);
}
