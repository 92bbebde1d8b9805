//! A whole lane: the real receiving and sending side of a TCP lane over a socket, against frames of a hostile peer that
//! has the keys. A model says which bytes land, which descriptors are refused, what is answered, and when the lane must
//! end. Nothing else may be written, no answer may differ, and no region may stay entered.

mod model;

use crate::memory::Arena;
use crate::peer::{identity, Wish};
use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::command::Command;
use ferry::internals::context::Context;
use ferry::internals::handle::Tag;
use ferry::internals::notify::hub;
use ferry::internals::peer::{Peer, Pulled, What};
use ferry::internals::region::Registry;
use ferry::internals::session::handshake::{AuthPolicy, Local};
use ferry::internals::sys::clock;
use ferry::internals::sys::poller::PollerKind;
use ferry::internals::transport::tcp::lane::{Lane, LaneSpec};
use ferry::internals::transport::tcp::rx::By;
use ferry::internals::transport::tcp::wire::{
    Descriptor, Fault, Header, Sealer, DESCRIPTOR_BYTES, FAULT_BYTES, HEADER_BYTES,
};
use ferry::internals::transport::tcp::worker::Workers;
use ferry::types::{Boottime, EngineId, LaneId, Monotonic, Op, PeerId, RegionId};
use ferry::{Config, RegionSpec, TransferCore};
use model::{Model, State};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The offsets in the arena of the regions, and of our READs' own memory.
pub const REGIONS: [(usize, usize, u32); 3] = [(4096, 8192, 3), (12288, 4096, 1), (16384, 4096, 2)];
pub const OWN: usize = 24576;
const ARENA_WORDS: usize = 5120;
const STEPS_MAX: usize = 60;
/// Pieces of one frame: each costs system calls.
const PIECES_MAX: usize = 32;

#[derive(Arbitrary, Debug)]
struct Input {
    /// The slices of our own WRITEs and READs that are under way.
    writes: Vec<u8>,
    reads: Vec<u8>,
    /// The pieces in which bytes arrive.
    pieces: Vec<u16>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Frame(Draft),
    Unregister(u8),
}

#[derive(Arbitrary, Debug)]
pub struct Draft {
    pub kind: u8,
    pub flags: u8,
    pub sequence: Sequence,
    pub lease: u8,
    pub places: Vec<Place>,
    /// The payload's length, relative to what the descriptors say.
    pub payload: i8,
    pub fill: u8,
    pub extra: Extra,
    pub is_checksum_wrong: bool,
    pub harm: Option<Harm>,
}

#[derive(Arbitrary, Debug)]
pub enum Sequence {
    Next,
    Off(i8),
    Any(u64),
}

#[derive(Arbitrary, Debug)]
pub struct Place {
    pub region: u8,
    pub offset: u16,
    pub length: u16,
    pub naming: u8,
}

#[derive(Arbitrary, Debug)]
pub enum Extra {
    None,
    Number(u8, Vec<u8>),
    AnyNumber(u64),
    /// Faults: the sequence relative to the frame's own, and the descriptor.
    Faults(Vec<(i8, u8)>),
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
pub enum Harm {
    /// A bit of the frame changes after it was sealed.
    Flip(u16),
    /// The frame is left out, or comes twice.
    Drop,
    Repeat,
}

/// The hostile peer's end, and the lane.
struct World {
    lane: Arc<Lane>,
    registry: Arc<Registry>,
    arena: Arena,
    socket: UnixStream,
    sealer: Sealer,
    opener: Sealer,
    received: Vec<u8>,
    model: Model,
    transfers: Vec<Arc<TransferCore>>,
    pieces: std::iter::Cycle<std::vec::IntoIter<usize>>,
}

/// A frame as it is sealed, for the model.
pub struct Sealed<'a> {
    pub header: Header,
    pub descriptors: Vec<Descriptor>,
    pub extra: Vec<u8>,
    pub payload: Vec<u8>,
    pub draft: &'a Draft,
}

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    let mut world = World::new(&input);
    let mut after_end = 0;
    for step in input.steps.iter().take(STEPS_MAX) {
        match step {
            Step::Frame(draft) => world.frame(draft),
            Step::Unregister(nth) => world.unregister(usize::from(*nth) % REGIONS.len()),
        }
        // Nothing of what comes behind the end may land.
        after_end += usize::from(world.model.state != State::Alive);
        if after_end > 3 {
            break;
        }
    }
    world.end();
}

fn workers() -> &'static Workers {
    static WORKERS: OnceLock<Workers> = OnceLock::new();
    WORKERS.get_or_init(|| Workers::new(1, PollerKind::Epoll, 0).unwrap())
}

fn local() -> Local {
    Local {
        engine_id: EngineId([2; 16]),
        incarnation: 1,
        address: String::new(),
        tag: 5,
        lanes_max: 1,
        frame_bytes_max: 1 << 20,
        reads_max: 64,
        notify_credits: 1024,
        unix_name: None,
        place: None,
        process: None,
        auth: AuthPolicy::default(),
    }
}

impl World {
    fn new(input: &Input) -> World {
        let (tag, arena) = (Tag::from_random(5), Arena::new(ARENA_WORDS));
        let registry = Arc::new(Registry::new(tag, None));
        let spec = |&(offset, length, access): &(usize, usize, u32)| RegionSpec {
            address: arena.address(offset),
            length: length as u64,
            access: ferry::types::Access(access),
            ..RegionSpec::default()
        };
        let regions = registry.register(&REGIONS.iter().map(spec).collect::<Vec<_>>()).unwrap();
        let ids: Vec<RegionId> = regions.iter().map(|region| region.id).collect();
        drop(regions);
        let context = Context::new(Config::default(), tag, local(), registry.clone(), Arc::new(hub(tag)));
        let peer = Arc::new(Peer::new(PeerId::from_raw(7), identity(), 1, context.engine_parts()));
        let (ours, socket) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let spec = LaneSpec {
            id: LaneId::from_raw(99),
            slot: 0,
            socket: ours.into(),
            send_key: [1; 32],
            receive_key: [2; 32],
            peer_reads_max: 16,
            frame_bytes_max: 1 << 20,
        };
        let lane = Lane::new(spec, peer, Arc::new(context), workers().of(0, 0).clone(), 77);
        let sizes: Vec<usize> = input.pieces.iter().map(|size| usize::from(*size) + 1).collect();
        let sizes = if sizes.is_empty() { vec![usize::MAX] } else { sizes };
        let mut world = World {
            lane: Arc::new(lane),
            registry,
            model: Model::new(ids),
            arena,
            socket,
            sealer: Sealer::new([2; 32]),
            opener: Sealer::new([1; 32]),
            received: Vec::new(),
            transfers: Vec::new(),
            pieces: sizes.into_iter().cycle(),
        };
        input.writes.iter().take(5).for_each(|size| world.post(Op::Write, u32::from(*size) % 20 + 1));
        input.reads.iter().take(5).for_each(|size| world.post(Op::Read, u32::from(*size) % 8 + 1));
        world
    }

    /// Posts a transfer of our own: the kernel has it whole, and the peer has not answered it.
    fn post(&mut self, op: Op, slices: u32) {
        let nth = self.transfers.len();
        let at = |slice: u32| (self.arena.address(OWN + nth * 1400 + slice as usize * 160), 100 + slice);
        let slices: Vec<(u64, u32)> = (0..slices.min(8)).map(at).collect();
        let transfer = Wish::new(op, slices.clone()).transfer(nth as u64 + 1);
        self.lane.peer.submit(transfer.clone()).unwrap();
        let pulled = self.lane.pull(self.lane.windows());
        let Some(Pulled::Slices { range, bytes, .. }) = pulled else { panic!("nothing is queued") };
        let what = What::Slices { transfer: transfer.clone(), range, bytes, notified: false };
        let mut flight = self.lane.flight.lock();
        let sequence = flight.launch(op, Monotonic::NEVER, what);
        let written = if op == Op::Write { [sequence, 0] } else { [0, sequence] };
        assert!(flight.end_send(written).unwrap().is_empty());
        drop(flight);
        self.model.posted(op, nth, slices);
        self.transfers.push(transfer);
    }

    fn frame(&mut self, draft: &Draft) {
        let frame = self.model.seal(draft, &self.arena);
        let mut bytes = Vec::new();
        self.sealer.seal(&frame.header, &mut bytes, |out| {
            frame.descriptors.iter().for_each(|descriptor| descriptor.encode(out));
            out.extend_from_slice(&frame.extra);
        });
        let head = bytes.len();
        bytes.extend_from_slice(&frame.payload);
        let mut payload = frame.payload.clone();
        match draft.harm {
            Some(Harm::Flip(bit)) => {
                let at = usize::from(bit) / 8 % bytes.len();
                bytes[at] ^= 1 << (bit % 8);
                match at.checked_sub(head) {
                    Some(at) => payload[at] ^= 1 << (bit % 8),
                    None => self.model.poison(),
                }
            }
            Some(Harm::Drop) => {
                self.model.lose_count();
                return;
            }
            _ => {}
        }
        self.model.frame(&frame, &payload, &mut self.arena);
        if matches!(draft.harm, Some(Harm::Repeat)) && self.model.state == State::Alive {
            // The whole frame comes first, and is handled.
            self.send(&bytes);
            self.model.end();
        }
        self.send(&bytes);
        self.check_end();
    }

    fn send(&mut self, bytes: &[u8]) {
        let (mut rest, mut pieces) = (bytes, 0);
        while !rest.is_empty() {
            pieces += 1;
            let wanted = if pieces < PIECES_MAX { self.pieces.next() } else { None };
            let size = wanted.unwrap_or(usize::MAX).min(rest.len());
            if self.socket.write_all(&rest[..size]).is_err() {
                return; // the lane has ended
            }
            rest = &rest[size..];
            while self.lane.drive_rx(By::Worker).again {}
            self.receive();
        }
    }

    /// Compares what the lane sends with what the model expects.
    fn receive(&mut self) {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = self.socket.read(&mut buffer) {
            self.received.extend_from_slice(&buffer[..count]);
        }
        loop {
            let Some(head) = self.received.first_chunk::<HEADER_BYTES>() else { return };
            let header = Header::decode(head).expect("the lane sends no frame");
            let whole = HEADER_BYTES + header.meta_bytes();
            if self.received.len() < whole + header.payload_bytes as usize {
                return;
            }
            self.opener.open(&self.received[..whole]).expect("the lane's frame does not verify");
            let extra_at = HEADER_BYTES + usize::from(header.descriptors) * DESCRIPTOR_BYTES;
            assert_eq!(header.extra_bytes as usize % FAULT_BYTES, 0);
            let faults =
                Fault::decode_all(&self.received[extra_at..][..header.extra_bytes as usize]).unwrap();
            let payload: Vec<u8> = self.received[whole..][..header.payload_bytes as usize].to_vec();
            self.received.drain(..whole + payload.len());
            self.model.sent(&header, &faults, &payload);
        }
    }

    fn check_end(&mut self) {
        let commands = self.lane.peer.engine().commands.take();
        let has_ended = commands.iter().any(|command| matches!(command, Command::LaneLost { .. }));
        self.model.check_end(has_ended);
        self.arena.check();
    }

    fn unregister(&mut self, nth: usize) {
        if let Some(id) = self.model.unregister(nth) {
            self.registry
                .unregister(id, Some(Duration::ZERO))
                .expect("a region stays entered between frames");
        }
    }

    fn end(mut self) {
        self.receive();
        let closing = self.lane.close();
        assert!(closing.is_quiet, "no thread holds the lane");
        for nth in 0..REGIONS.len() {
            self.unregister(nth);
        }
        self.arena.check();
        self.model.check_records(closing.records.iter().map(|posted| posted.sequence));
        for (nth, transfer) in self.transfers.iter().enumerate() {
            self.model.check_transfer(nth, transfer);
        }
    }
}

/// The end of a frame's lease: far, past, or none.
fn not_after(draft: &Draft) -> Boottime {
    match draft.lease % 16 {
        0 => Boottime::ZERO,
        1 => Boottime::from_ns(1),
        _ => clock::boottime_ns() + 3_600_000_000_000,
    }
}
