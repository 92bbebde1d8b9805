//! The models' common parts: a peer without an engine's threads, transfers, a target that takes notifications in order,
//! and tasks.

use ferry::internals::command::{Command, Commands};
use ferry::internals::complete::{transfer, Strike, Table, TransferFlags, TransferSpec};
use ferry::internals::handle::Tag;
use ferry::internals::notify::hub;
use ferry::internals::peer::{
    Accepted, After, Class, EngineParts, Inbox, Path, Peer, PeerIdentity, PullLimits, Pulled,
};
use ferry::internals::plan::Range;
use ferry::internals::region::{Region, RemoteMap};
use ferry::internals::sys::pages::Pages;
use ferry::limits::{FRAME_DESCRIPTORS_MAX, NOTIFY_BYTES_MAX};
use ferry::notify::Queue;
use ferry::types::{
    EngineId, Monotonic, Op, PeerId, RegionId, Request, Slice, SliceRange, TransferId, Transport,
};
use ferry::{Fence, Notification, Status, TransferCore};
use ferry_sim_kernel::explore::{self, Bounds};
use ferry_sim_kernel::task::{spawn, JoinHandle};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

pub const CANCEL: Strike = Strike { status: Status::Cancelled, os_error: 0 };
pub const SLICE_BYTES: u32 = 1000;
/// Far more than a model has; one that grows beyond it is told.
const SCHEDULES_MAX: u64 = 5_000_000;

/// Runs every schedule with at most so many preemptions, and prints how many there were.
pub fn explore(preemptions_max: u32, body: impl Fn()) {
    let set = std::env::var("MODEL_PREEMPTIONS").ok().map(|text| text.parse().expect("a number"));
    let preemptions_max = set.unwrap_or(preemptions_max);
    let begun = Instant::now();
    let explored = explore::explore(Bounds { preemptions_max, schedules_max: SCHEDULES_MAX }, body);
    let name = std::thread::current().name().unwrap_or("a model").to_owned();
    println!(
        "{name}: {} schedules of at most {} steps, {preemptions_max} preemptions, {:.1} s",
        explored.schedules,
        explored.steps_max,
        begun.elapsed().as_secs_f64()
    );
    assert!(explored.schedules > 20, "the tasks of the model do not meet");
}

/// Starts a task with a share of the rig.
pub fn start<T: 'static>(rig: &Rc<T>, name: &str, body: impl FnOnce(&T) + 'static) -> JoinHandle<()> {
    let rig = rig.clone();
    spawn(name, move || body(&rig)).unwrap()
}

pub fn join<const N: usize>(tasks: [JoinHandle<()>; N]) {
    for task in tasks {
        task.join().unwrap();
    }
}

/// A path that posts nothing by itself: the model's tasks pull.
struct Silent;

impl Path for Silent {
    fn carries(&self, _: &[Range], _: &RemoteMap, _: bool) -> bool {
        true
    }
    fn post(&self, _: Class, _: Option<Monotonic>, _: &mut After) {}
    fn nudge(&self, _: &mut After) {}
}

/// Returns a peer that is reached by TCP.
pub fn peer() -> Peer {
    let tag = Tag::from_random(1);
    let engine = EngineParts {
        commands: Arc::new(Commands::default()),
        hub: Arc::new(hub(tag)),
        stats: Arc::default(),
        conversation: Arc::default(),
        transfers: Arc::new(Table::new(tag, 16)),
        lease_ns: 1_000_000_000,
        express_bytes_max: 4000,
        pages: Arc::new(Pages::of(None)),
    };
    let identity = PeerIdentity {
        engine_id: EngineId([1; 16]),
        incarnation: 1,
        address: String::new(),
        tag: Tag::from_random(1),
        same_host: true,
        hosts: (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()),
        frame_bytes_max: 1 << 20,
        lanes_max: 1,
        reads_max: 16,
    };
    let peer = Peer::new(PeerId::from_raw(7), identity, 1, engine);
    peer.set_tcp_path(Some(Arc::new(Silent)));
    peer
}

/// A WRITE that is to be made.
#[derive(Default)]
pub struct Wish {
    pub slices: u32,
    pub notify: bool,
    pub ordered: bool,
    pub region: Option<Arc<Region>>,
    pub queue: Option<Arc<Queue>>,
}

impl Wish {
    pub fn spec(self) -> TransferSpec {
        let at = |nth: u32| u64::from(nth * SLICE_BYTES);
        let length = SLICE_BYTES;
        let request = |nth| Request {
            local: at(nth),
            remote: at(nth),
            length: length.into(),
            remote_region: RegionId::NONE,
        };
        let slice = |nth| Slice {
            local: at(nth),
            remote: at(nth),
            region: RegionId::NONE,
            first_offset: 0,
            length,
            first: nth,
        };
        TransferSpec {
            peer: PeerId::from_raw(7),
            op: Op::Write,
            requests: (0..self.slices).map(request).collect(),
            order: Vec::new(),
            slices: (0..self.slices).map(slice).collect(),
            regions: self.region.into_iter().collect(),
            bytes: at(self.slices),
            flags: TransferFlags::ORDERED.when(self.ordered),
            priority: 0,
            notify: self.notify.then(|| Box::from(&b"word"[..])),
            channel: 0,
            submitted_ns: Monotonic::ZERO,
            deadline_ns: Monotonic::NEVER,
            user_data: 5,
            queue: self.queue,
            transport: Transport::Tcp,
            allowed: u64::MAX,
        }
    }

    pub fn transfer(self, handle: u64) -> Arc<TransferCore> {
        transfer(TransferId::from_raw(handle), self.spec())
    }
}

/// Pulls the next frame of so many slices at most.
pub fn pull(peer: &Peer, slices: u32) -> Option<Pulled> {
    let limits = PullLimits {
        frame_bytes_max: slices * SLICE_BYTES,
        descriptors_max: FRAME_DESCRIPTORS_MAX,
        notification_bytes_max: Some(NOTIFY_BYTES_MAX),
        read: true,
        write: true,
    };
    peer.pull(Transport::Tcp, true, limits)
}

pub fn confirm(peer: &Peer, transfer: &Arc<TransferCore>, range: SliceRange, notified: bool) {
    let bytes = u64::from(range.count() * SLICE_BYTES);
    peer.confirm(transfer, range, bytes, &[], notified, &mut peer.after());
}

/// The target's side: it takes what is posted, in any order, and answers at once.
#[derive(Default)]
pub struct Target {
    inbox: Option<Inbox>,
    /// The numbers of the notifications that its application got, and of those that were given up.
    pub delivered: Vec<u64>,
    pub skipped: Vec<u64>,
}

impl Target {
    pub fn take(&mut self, number: u64, is_skip: bool) {
        let body = (!is_skip).then(|| Box::from(number.to_le_bytes()));
        if is_skip {
            self.skipped.push(number);
        }
        match self.inbox.get_or_insert_with(Inbox::new).accept(number, body) {
            Accepted::Deliver(bodies) => {
                let numbers = bodies.iter().map(|body| u64::from_le_bytes(body[..].try_into().unwrap()));
                self.delivered.extend(numbers);
            }
            Accepted::Duplicate => {}
            Accepted::Overrun => panic!("number {number} is above the granted limit"),
        }
    }

    /// Returns whether the target has each number below `count`, and none above.
    pub fn accept_all(&mut self, count: u64) -> bool {
        let inbox = self.inbox.get_or_insert_with(Inbox::new);
        let first_is_old = count == 0 || inbox.accept(count - 1, None) == Accepted::Duplicate;
        first_is_old && inbox.accept(count, None) == Accepted::Deliver(Vec::new())
    }
}

/// Does what the control loop does with the requests to sweep. Returns whether the loop was told that the lost peer is
/// idle.
pub fn control(peer: &Peer) -> bool {
    let mut idle = false;
    while let Some(command) = {
        let mut taken = peer.engine().commands.take();
        let first = taken.pop_front();
        taken.into_iter().for_each(|later| peer.engine().commands.push(later));
        first
    } {
        match command {
            Command::Sweep { .. } => while peer.sweep(Monotonic::ZERO) {},
            Command::PeerIdle { .. } => idle = true,
            _ => {}
        }
    }
    idle
}

/// Checks what holds for each transfer of a peer on which nothing is queued or posted any more.
pub fn check_end(peer: &Peer, all: &[&Arc<TransferCore>]) {
    assert_eq!(peer.active(), 0, "transfers that are counted as not final");
    let counts = peer.engine().stats.counts();
    let ends = counts.transfers_done
        + counts.transfers_failed
        + counts.transfers_cancelled
        + counts.transfers_timed_out;
    assert_eq!(ends, all.len() as u64, "each transfer ends once");
    assert!(pull(peer, 1).is_none(), "work of transfers that are final is still queued");
    for transfer in all {
        let result = transfer.result().expect("a transfer that is not final");
        let confirmed = result.bytes_confirmed == transfer.progress().bytes_total;
        assert!(result.status != Status::Ok || confirmed, "DONE without its bytes");
        if result.fence == Fence::Confirmed && result.status == Status::Ok {
            assert!(matches!(result.notification, Notification::None | Notification::Delivered));
        }
    }
}
