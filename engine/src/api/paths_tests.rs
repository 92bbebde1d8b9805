//! `peer_paths` and the router's decision, compared with transfers that are made at the same version of the facts.
//! Prints its seed; FERRY_TEST_SEED repeats a run.

use super::*;
use crate::command::Command;
use crate::notify::WHAT_NOTIFICATIONS;
use crate::peer::outbox::Class;
use crate::peer::After;
use crate::stage::tests::{options, request, until, Place, Two};
use crate::status::Status;
use crate::sys::random_u64;
use crate::types::Monotonic;
use std::sync::atomic::{AtomicUsize, Ordering};

const MIB: usize = 1 << 20;
/// The version may change while a transfer is made: paths break, slots are registered.
const ATTEMPTS: usize = 200;

/// xorshift64*.
struct Dice(u64);

impl Dice {
    fn new() -> Dice {
        let seed = std::env::var("FERRY_TEST_SEED").ok().map(|text| text.parse().unwrap());
        let seed = seed.unwrap_or_else(random_u64);
        println!("FERRY_TEST_SEED={seed}");
        Dice(seed | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A transfer to be made.
struct Wish {
    op: Op,
    requests: Vec<Request>,
    options: TransferOptions<'static>,
    /// Both ends are memory of devices.
    both: bool,
    /// The transfer has no option that `peer_paths` does not cover.
    is_plain: bool,
    /// Made by the call that may copy at once.
    waits: bool,
}

const MASKS: [u64; 8] = [
    0,
    0,
    Transport::Tcp.bit(),
    Transport::Local.bit(),
    Transport::Tcp.bit() | Transport::Local.bit(),
    Transport::Rdma.bit() | Transport::Tcp.bit(),
    Transport::Rdma.bit(),
    Transport::Cuda.bit() | Transport::Local.bit(),
];

fn wish(dice: &mut Dice, here: &[Place; 2], there: &[Place; 2]) -> Wish {
    let (local, remote) = (dice.below(2), dice.below(2));
    let op = dice.pick(&[Op::Write, Op::Read]);
    let count = dice.pick(&[1, 1, 3]);
    let bytes = dice.pick(&[1, 64, 4096, 100_000, 300_000]);
    let at = |nth: usize| (nth * 300_001, nth * 300_003);
    let one = |nth| request(&here[local], &there[remote], at(nth), bytes);
    let notify = (op == Op::Write && dice.below(4) == 0).then_some(&b"word"[..]);
    let options = TransferOptions {
        transports_allowed: dice.pick(&MASKS),
        checksum: dice.below(4) == 0,
        ordered: dice.below(4) == 0,
        notify,
        ..options()
    };
    let host = local + remote == 0;
    let is_plain = host && options.transports_allowed == 0 && !options.checksum;
    let requests = (0..count).map(one).collect();
    Wish { op, requests, options, both: local + remote == 2, is_plain, waits: dice.below(2) == 0 }
}

/// The report on a transfer: the version, the path that carries the transfer or its parts (either of two for devices
/// that failed to reach each other before), and the text.
fn told(two: &Two, wish: &Wish) -> (u64, [Transport; 2], Vec<PathInfo>) {
    let context = two.a.whole();
    let peer = context.peers.get(two.peer).unwrap();
    let facts = begin_facts(context, &peer, &wish.options);
    let (local, remote) = (context.registry.snapshot(), peer.remote.snapshot());
    let plan = plan::plan(&PlanInput {
        op: wish.op,
        requests: &wish.requests,
        coalesce: true,
        local: &local,
        remote: &remote,
        remote_tag: peer.identity.tag,
    })
    .unwrap();
    let facts = gather(&peer, facts, &plan.ranges, &plan.local_regions, &remote);
    let paths = two.a.peer_paths(two.peer).unwrap();
    let path = match route::decide(&facts).path {
        Transport::Staged => {
            let parts = begin_facts(context, &peer, &wish.options);
            let hosts = route::decide(&ask_paths(&peer, parts, |_, _| true)).path;
            let same_host = peer.path(Transport::Local).is_some();
            let kinds = (MemoryKind::Cuda, MemoryKind::Cuda);
            let between = route::between_devices(&facts.asked, kinds, same_host, false).0;
            let over = wish.both && between == Between::Mapped;
            // A region whose mapping failed while a path broke is not tried again in that session, and the last reason
            // is reported from then on.
            let cuda = paths.iter().find(|path| path.transport == Transport::Cuda);
            let is_refused = cuda.is_some_and(|path| path.why.contains("through the hosts"));
            if !over {
                [hosts; 2]
            } else if is_refused {
                [Transport::Cuda, hosts]
            } else {
                [Transport::Cuda; 2]
            }
        }
        path => [path; 2],
    };
    (facts.version, path, paths)
}

fn version(two: &Two) -> u64 {
    let context = two.a.whole();
    begin_facts(context, &context.peers.get(two.peer).unwrap(), &options()).version
}

/// Makes the transfer and returns the path that carried it, or the status of its failure.
fn done(two: &Two, wish: &Wish) -> std::result::Result<Transport, Status> {
    let Wish { op, requests, options, .. } = wish;
    let result = match (wish.waits, op) {
        (true, Op::Write) => two.a.write(two.peer, requests, options),
        (true, Op::Read) => two.a.read(two.peer, requests, options),
        (false, _) => two.a.submit(two.peer, *op, requests, options).and_then(|it| it.wait_done()),
    };
    result.map(|result| result.transport).map_err(|error| error.status)
}

#[test]
fn what_is_told_is_what_is_done() {
    let mut dice = Dice::new();
    for transports in ["auto", "tcp", "local", "tcp,local", "cuda,tcp"] {
        let two = Two::new(&[("transports", transports)]);
        two.fake.shares.store(true, Ordering::SeqCst);
        let queue = two.b.queue(WHAT_NOTIFICATIONS, 16).unwrap();
        let here = [None, Some(0)].map(|device| two.place(&two.a, device, MIB));
        let there = [None, Some(1)].map(|device| two.place(&two.b, device, MIB));
        let breaks = two.a.whole().peers.get(two.peer).unwrap().path(Transport::Local).is_some();
        for round in 0..200 {
            if breaks && dice.below(20) == 0 {
                let broken = Command::PathBroken { peer: two.peer, transport: Transport::Local };
                two.a.whole().commands.push(broken);
            }
            let wish = wish(&mut dice, &here, &there);
            let attempt = |_: &usize| {
                let (at, path, paths) = told(&two, &wish);
                let done = done(&two, &wish);
                queue.drain(&mut Vec::new(), 16);
                let is_same = version(&two) == at;
                if !is_same {
                    return false;
                }
                let expected = path.map(|path| match path {
                    Transport::None => Err(Status::Unavailable),
                    path => Ok(path),
                });
                let text =
                    format!("{transports}, {round}: {done:?} {expected:?} {paths:?} {:?}", wish.requests);
                assert!(expected.contains(&done), "{text}");
                let is_told = |path: &&PathInfo| path.chosen || path.why.contains("transfers wait for it");
                let named = paths.iter().find(is_told).map(|path| path.transport);
                assert!(!wish.is_plain || named == done.ok(), "{text}");
                true
            };
            assert!((0..ATTEMPTS).find(attempt).is_some(), "the version never stood still");
        }
    }
}

/// An RDMA path that was idle for a while.
#[derive(Default)]
struct Sleeper {
    roused: AtomicUsize,
}

impl Path for Sleeper {
    fn carries(&self, _ranges: &[Range], _known: &RemoteMap, _alone: bool) -> bool {
        panic!("an idle path must not be asked");
    }
    fn post(&self, _: Class, _: Option<Monotonic>, _: &mut After) {}
    fn nudge(&self, _: &mut After) {}
    fn condition(&self) -> Condition {
        Condition::Idle
    }
    fn rouse(&self) {
        self.roused.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn asking_wakes_no_idle_path_and_a_transfer_does() {
    let two = Two::new(&[("transports", "tcp,rdma")]);
    let peer = two.a.whole().peers.get(two.peer).unwrap();
    let sleeper = Arc::new(Sleeper::default());
    peer.set_path(Transport::Rdma, PathStatus::Open(sleeper.clone(), "over rva0".into()));
    let roused = || sleeper.roused.swap(0, Ordering::SeqCst);
    let here = [None, Some(0)].map(|device| two.place(&two.a, device, MIB));
    let there = two.place(&two.b, None, MIB);
    let run = |from: &Place, options: &TransferOptions| {
        let requests = [request(from, &there, (0, 0), 64)];
        let transfer = two.a.submit(two.peer, Op::Write, &requests, options).unwrap();
        transfer.wait_done().unwrap().transport
    };
    let paths = two.a.peer_paths(two.peer).unwrap();
    let told = |transport| paths.iter().find(|path| path.transport == transport).unwrap();
    assert!(told(Transport::Tcp).chosen && !told(Transport::Rdma).chosen);
    assert!(told(Transport::Rdma).why.contains("idle") && !told(Transport::Rdma).why.contains("wait"));
    assert_eq!(roused(), 0);

    assert_eq!((run(&here[0], &options()), roused()), (Transport::Tcp, 1));
    // A transfer that would not use the path does not wake it.
    let tcp = TransferOptions { transports_allowed: Transport::Tcp.bit(), ..options() };
    let summed = TransferOptions { checksum: true, ..options() };
    assert_eq!((run(&here[0], &tcp), roused()), (Transport::Tcp, 0));
    assert_eq!((run(&here[0], &summed), roused()), (Transport::Tcp, 0));
    // A staged transfer submits its part after the copy from the device.
    assert_eq!((run(&here[1], &summed), roused()), (Transport::Tcp, 0));

    // If no other path exists, the transfer waits for this path.
    let alone = TransferOptions { transports_allowed: Transport::Rdma.bit(), ..options() };
    let requests = [request(&here[0], &there, (0, 0), 64)];
    let transfer = two.a.submit(two.peer, Op::Write, &requests, &alone).unwrap();
    assert_eq!(roused(), 1);
    peer.set_path(Transport::Rdma, PathStatus::Shut("its devices are gone".into()));
    assert_eq!(transfer.wait_done().unwrap_err().status, Status::Unavailable);
    let error = two.a.submit(two.peer, Op::Write, &requests, &alone).err().unwrap();
    let text = "rdma: its devices are gone";
    assert!(error.status == Status::Unavailable && error.message.contains(text), "{error}");
    until("each is over", || peer.active() == 0);
}
