//! Tests with devices: Soft-RoCE in the virtual machine of `scripts/rdma-vm.sh`, which sets FERRY_TEST_RDMA. Ends talk
//! over rva0 and rva1; the test that takes a cable down has rvb0 and rvb1 to itself. Numbers that only this driver can
//! give are printed, not asserted. `failures` has the tests of errors.

mod failures;

use super::*;
use crate::sys::clock::monotonic_ns;
use crate::sys::mapping::Mapping;
use std::sync::Arc;

const MEMORY: usize = 1 << 20;
/// Offsets in the second half: memory to send from, to read into, and to receive into.
const HALF: usize = MEMORY / 2;
const COOKIE: u64 = 0xfeed_0000_0000_cafe;
const DEADLINE_NS: u64 = 20_000_000_000;

fn skipped() -> bool {
    let skipped = std::env::var("FERRY_TEST_RDMA").as_deref() != Ok("1");
    if skipped {
        eprintln!("SKIPPED: FERRY_TEST_RDMA is not 1; scripts/rdma-vm.sh sets it where devices are");
    }
    skipped
}

/// One end of a connection, with its own memory. Fields are dropped in order, users before the objects they use.
struct End {
    chain: Chain,
    qp: Qp,
    srq: Arc<Srq>,
    cq: Arc<Cq>,
    channel: Arc<Channel>,
    /// Grants the peer all access. The range of `read_only` lies next to this one.
    mr: Option<Mr>,
    read_only: Mr,
    pd: Arc<Pd>,
    context: Arc<Context>,
    memory: Mapping,
    read_only_memory: Mapping,
}

#[derive(Clone, Copy)]
struct Patience {
    timeout: u8,
    retries: u8,
    rnr_retries: u8,
}

/// Six retries: this driver retries without end at 7, as InfiniBand prescribes for RNR retries.
const PATIENT: Patience = Patience { timeout: 14, retries: 6, rnr_retries: 7 };

impl End {
    fn new(name: &str) -> End {
        let context = Context::open(name).unwrap();
        let pd = Pd::new(&context).unwrap();
        let channel = Channel::new(&context).unwrap();
        let cq = Cq::new(&context, 256, Some(&channel), COOKIE).unwrap();
        let srq = Srq::new(&pd, 64).unwrap();
        let qp = Qp::new(&pd, &cq, (&srq, &cq), &QpSpec { send_wr: 64, inline_bytes: 64 }).unwrap();
        let memory = Mapping::private(MEMORY).unwrap();
        let read_only_memory = Mapping::private(4096).unwrap();
        let register = |memory: &Mapping, write: bool| {
            let (address, length) = (memory.address() as u64, memory.length() as u64);
            // SAFETY: the mapping is a field that goes after the registration.
            unsafe { pd.register(address, length, true, write, true) }.unwrap()
        };
        let (mr, read_only) = (Some(register(&memory, true)), register(&read_only_memory, false));
        let chain = Chain::new(32);
        End { chain, qp, srq, cq, channel, mr, read_only, pd, context, memory, read_only_memory }
    }

    fn gid(&self) -> Gid {
        let gids = self.context.gids(1);
        *gids.iter().find(|gid| gid.kind == GidKind::RoceV2 && gid.raw[10..12] == [0xff, 0xff]).unwrap()
    }

    fn connect(&self, to: &End, patience: Patience) {
        let (ours, theirs) = (self.gid(), to.gid());
        let remote = Remote {
            qp_number: to.qp.number(),
            psn: 0x123_456,
            mtu_bytes: self.context.port(1).unwrap().mtu_bytes,
            gid: theirs.raw,
            lid: 0,
            is_ethernet: true,
            gid_index: ours.index,
            port: 1,
            rd_atom: 4,
            min_rnr_timer: 1,
            traffic_class: 0,
        };
        let Patience { timeout, retries, rnr_retries } = patience;
        self.qp.to_init(1).unwrap();
        self.qp.to_rtr(&remote).unwrap();
        self.qp.to_rts(&LocalSide { psn: 0x123_456, rd_atom: 4, timeout, retries, rnr_retries }).unwrap();
    }

    fn address(&self, offset: usize) -> u64 {
        self.memory.address() as u64 + offset as u64
    }

    fn lkey(&self) -> u32 {
        self.mr.as_ref().unwrap().lkey()
    }

    fn rkey(&self) -> u32 {
        self.mr.as_ref().unwrap().rkey()
    }

    /// Each 8 bytes say where they belong.
    fn fill(&self, offset: usize, length: usize, salt: u64) {
        for at in (0..length).step_by(8) {
            self.memory.write(offset + at, &(salt ^ (at as u64)).to_le_bytes());
        }
    }

    fn check(&self, offset: usize, length: usize, salt: u64) {
        let mut word = [0; 8];
        for at in (0..length).step_by(8) {
            self.memory.read(offset + at, &mut word);
            assert_eq!(u64::from_le_bytes(word), salt ^ (at as u64), "at {offset} + {at}");
        }
    }

    fn post(&mut self) {
        // SAFETY: the chain names only `memory`, which outlives the QP.
        unsafe { self.qp.post(&mut self.chain) }.unwrap();
        self.chain.clear();
    }

    fn receive(&self, id: u64, offset: usize, length: u32) {
        // SAFETY: `memory` outlives the SRQ.
        unsafe { self.srq.post_receive(id, self.address(offset), length, self.lkey()) }.unwrap();
    }

    /// Waits for that many completions.
    fn completions(&self, count: usize) -> Vec<Completion> {
        let mut found = Vec::new();
        let mut slots = [Completion::default(); 8];
        let end_ns = monotonic_ns() + DEADLINE_NS;
        while found.len() < count {
            let new = self.cq.poll(&mut slots).unwrap();
            found.extend_from_slice(&slots[..new]);
            assert!(monotonic_ns() < end_ns, "{} of {count} completions: {found:?}", found.len());
            std::thread::yield_now();
        }
        assert_eq!(found.len(), count, "{found:?}");
        found
    }

    fn completion(&self) -> Completion {
        self.completions(1)[0]
    }

    /// Posts one WRITE of 4 KiB to this address, and returns its status.
    fn try_write(&mut self, remote: u64, rkey: u32) -> u32 {
        let (local, lkey) = (self.address(HALF), self.lkey());
        self.chain.write(1, local, lkey, remote, rkey, 4096, false);
        self.chain.signal_last();
        self.post();
        self.completion().status()
    }
}

fn pair_with(a: &str, b: &str, patience: Patience) -> (End, End) {
    let (a, b) = (End::new(a), End::new(b));
    a.connect(&b, patience);
    b.connect(&a, patience);
    (a, b)
}

fn pair() -> (End, End) {
    pair_with("rva0", "rva1", PATIENT)
}

/// Waits until the descriptor is readable; false if the time is over first.
fn readable(fd: std::os::fd::RawFd, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, on this stack for the duration of the call.
    unsafe { libc::poll(&mut poll, 1, timeout_ms) == 1 }
}

#[test]
fn devices_say_what_they_are() {
    if skipped() {
        return;
    }
    let names = device_names().unwrap();
    assert!(["rva0", "rva1", "rvb0", "rvb1"].iter().all(|name| names.iter().any(|have| have == name)));
    let context = Context::open("rva0").unwrap();
    let limits = context.limits();
    eprintln!("{limits:?}");
    assert_eq!((context.name(), limits.ports, limits.is_iwarp), ("rva0", 1, false));
    assert!(limits.qp_wr_max >= 64 && limits.srq_wr_max >= 64 && limits.rd_atom_target_max >= 4);
    let port = context.port(1).unwrap();
    eprintln!("{port:?}");
    assert_eq!((port.state, port.mtu_bytes, port.is_ethernet), (PortState::Active, 4096, true));
    assert!(context.port(2).is_err());
    assert!(context.gids(2).is_empty());
    let gids = context.gids(1);
    eprintln!("{gids:?}");
    let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 0, 1];
    let found = gids.iter().find(|gid| gid.raw == v4).unwrap();
    assert_eq!((found.kind, found.index), (GidKind::RoceV2, 1));
    let slow: Vec<_> = context.gids_one_by_one(1, port.gids).iter().map(|gid| (gid.index, gid.raw)).collect();
    assert_eq!(slow, gids.iter().map(|gid| (gid.index, gid.raw)).collect::<Vec<_>>());
    assert!(context.gids_one_by_one(1, port.gids).iter().all(|gid| gid.kind == GidKind::RoceV2));
    let missing = Context::open("rva9").unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
}

#[test]
fn what_a_queue_pair_gets() {
    if skipped() {
        return;
    }
    let context = Context::open("rva0").unwrap();
    let limits = context.limits().clone();
    let pd = Pd::new(&context).unwrap();
    let cq = Cq::new(&context, 16, None, 0).unwrap();
    let srq = Srq::new(&pd, limits.srq_wr_max).unwrap();
    for inline_bytes in [0, 64, 220, 512, 4096, 1 << 20] {
        for send_wr in [1, 16, 100, 1024] {
            let qp = Qp::new(&pd, &cq, (&srq, &cq), &QpSpec { send_wr, inline_bytes }).unwrap();
            eprintln!("asked {send_wr} {inline_bytes}: got {} bytes inline", qp.inline_bytes());
        }
    }
    let most = QpSpec { send_wr: limits.qp_wr_max, inline_bytes: 0 };
    assert!(Qp::new(&pd, &cq, (&srq, &cq), &most).is_ok());
    let more = QpSpec { send_wr: limits.qp_wr_max + 1, inline_bytes: 0 };
    eprintln!("one more: {:?}", Qp::new(&pd, &cq, (&srq, &cq), &more).unwrap_err());
    eprintln!("SRQ: {:?}", Srq::new(&pd, limits.srq_wr_max + 1).unwrap_err());
    eprintln!("CQ: {:?}", Cq::new(&context, limits.cqe_max + 1, None, 0).unwrap_err());
    let other = Pd::new(&context).unwrap();
    let mixed = Qp::new(&other, &cq, (&srq, &cq), &QpSpec { send_wr: 1, inline_bytes: 0 });
    assert_eq!(mixed.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    // SAFETY: nothing is there to be touched, and nothing is registered.
    let wild = unsafe { pd.register(0x1000, 4096, true, true, true) };
    assert_eq!(wild.unwrap_err().raw_os_error(), Some(libc::EFAULT));
    // SAFETY: as above.
    let dmabuf = unsafe { pd.register_dmabuf(-1, 0, 4096, 0, true, true) };
    eprintln!("dma-buf: {:?}", dmabuf.unwrap_err());
}

#[test]
fn bytes_go_there_and_come_back() {
    if skipped() {
        return;
    }
    let (mut a, mut b) = pair();
    const LENGTH: usize = 200_000;
    a.fill(HALF, LENGTH, 0xa11ce);
    let (local, lkey, remote, rkey) = (a.address(HALF), a.lkey(), b.address(64), b.rkey());
    // Two pieces, of which only the second completes: everything before it has arrived by then.
    a.chain.write(1, local, lkey, remote, rkey, 100_000, false);
    a.chain.write(2, local + 100_000, lkey, remote + 100_000, rkey, LENGTH as u32 - 100_000, false);
    a.chain.signal_last();
    a.post();
    let done = a.completion();
    assert!(done.is_success() && done.id() == 2);
    assert_eq!(done.qp_number(), a.qp.number());
    b.check(64, LENGTH, 0xa11ce);

    b.fill(64, LENGTH, 0xb0b);
    a.chain.read(3, a.address(0), lkey, remote, rkey, LENGTH as u32);
    a.chain.signal_last();
    a.post();
    assert!(a.completion().is_success());
    a.check(0, LENGTH, 0xb0b);

    // In the other direction, and inline: the source may change once it is posted, and needs no key.
    b.fill(HALF, 64, 0x1);
    b.chain.write(4, b.address(HALF), 0, a.address(64), a.rkey(), 64, true);
    b.chain.signal_last();
    b.post();
    b.fill(HALF, 64, 0x2);
    assert!(b.completion().is_success());
    a.check(64, 64, 0x1);
}

#[test]
fn sends_wake_a_sleeper() {
    if skipped() {
        return;
    }
    let (mut a, b) = pair();
    assert_eq!(b.channel.next().unwrap(), None);
    b.cq.arm().unwrap();
    assert_eq!(b.cq.poll(&mut [Completion::default(); 4]).unwrap(), 0);
    assert!(!readable(b.channel.fd(), 0));
    b.receive(70, HALF, 4096);
    b.receive(71, HALF + 4096, 4096);
    b.receive(72, HALF + 8192, 4096);
    a.fill(0, 4096, 0x5e9d);
    let (local, lkey, remote, rkey) = (a.address(0), a.lkey(), b.address(0), b.rkey());
    a.chain.send(1, local, lkey, 1000, false);
    a.chain.send(2, 0, 0, 0, false);
    a.chain.write(3, local, lkey, remote, rkey, 4096, false);
    a.chain.send(4, local, lkey, 4096, false);
    a.chain.signal_last();
    a.post();
    assert!(readable(b.channel.fd(), 30_000));
    assert_eq!(b.channel.next().unwrap(), Some(COOKIE));
    assert_eq!(b.channel.next().unwrap(), None);
    let received = b.completions(3);
    assert!(received.iter().all(|done| done.is_success()));
    assert_eq!(received.iter().map(Completion::id).collect::<Vec<_>>(), [70, 71, 72]);
    assert_eq!(received.iter().map(Completion::bytes).collect::<Vec<_>>(), [1000, 0, 4096]);
    b.check(HALF, 1000, 0x5e9d);
    b.check(HALF + 8192, 4096, 0x5e9d);
    b.check(0, 4096, 0x5e9d);
    assert!(a.completion().is_success());
    // A queue that is armed when it has a completion may raise no event, so a thread that arms it polls once more.
    b.receive(73, HALF, 4096);
    a.chain.send(5, local, lkey, 8, true);
    a.chain.signal_last();
    a.post();
    assert!(a.completion().is_success());
    b.cq.arm().unwrap();
    eprintln!("armed after the completion: event {}", readable(b.channel.fd(), 100));
    assert_eq!(b.completion().id(), 73);
}

#[test]
fn handles_go_in_any_order() {
    if skipped() {
        return;
    }
    let (a, b) = pair();
    let End { qp, srq, cq, channel, mr, pd, context, .. } = a;
    drop((context, pd, channel, cq, srq));
    drop(qp);
    drop(mr);
    drop(b);
}

#[test]
fn a_dropped_queue_pair_leaves_its_completions() {
    if skipped() {
        return;
    }
    let (mut a, b) = pair();
    let (local, lkey) = (a.address(0), a.lkey());
    // One SEND is done, and one waits for a receive.
    b.receive(1, 0, 64);
    a.cq.arm().unwrap();
    for id in [1, 2] {
        a.chain.send(id, local, lkey, 64, false);
        a.chain.signal_last();
    }
    a.post();
    assert!(readable(a.channel.fd(), 30_000));
    let End { qp, cq, channel, .. } = a;
    let number = qp.number();
    drop(qp);
    let mut slots = [Completion::default(); 4];
    let count = cq.poll(&mut slots).unwrap();
    eprintln!("left behind: {:?}", &slots[..count]);
    assert!(count <= 1 && slots[..count].iter().all(|done| done.qp_number() == number && done.id() == 1));
    // The event was never taken: the queue can be destroyed all the same.
    drop(cq);
    assert_eq!(channel.next().unwrap(), None);
}
