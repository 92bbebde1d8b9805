//! The model: what each application was promised and what it was told. Application threads write it before and after
//! their calls; `checks` compares it with what the kernel saw. No access to it contains a point.
//!
//! ```text
//! slot    a place in the plan, with the life that is there now
//! life    one process with one engine: its memory, its peers, whether it is frozen or dead
//! memory  a range that is registered, and its claims: parts that belong to one transfer at a time (`memory`)
//! ```

use crate::calls::Calls;
use crate::kv::Desk;
use crate::memory::{Block, Memory, MemoryId};
use crate::notes::Note;
use crate::outside::Hole;
use crate::pool;
use ferry::types::{Op, PeerId};
use ferry::{Notification, State, TransferCore, TransferResult};
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::process::ProcessId;
use ferry_sim_kernel::trace;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

pub type LifeId = usize;
pub type TransferId = usize;

/// The ledger, as all tasks of a run share it.
#[derive(Clone, Default)]
pub struct Book(Rc<RefCell<Ledger>>);

impl Book {
    /// Borrows the ledger. `act` must contain no point.
    pub fn with<R>(&self, act: impl FnOnce(&mut Ledger) -> R) -> R {
        act(&mut self.0.borrow_mut())
    }
}

#[derive(Default)]
pub struct Ledger {
    pub slots: Vec<Slot>,
    pub lives: Vec<Life>,
    pub memories: Vec<Memory>,
    pub transfers: Vec<Transfer>,
    pub notes: Vec<Note>,
    /// Late writes that the target must be told of.
    pub lates: Vec<Late>,
    /// When a life was last told of late writes of another.
    pub told_ns: BTreeMap<(LifeId, LifeId), u64>,
    /// Accesses that only the result of a transfer can justify.
    pub suspects: Vec<Suspect>,
    /// Counts the calls of all applications: a call that returned before another began has the lower tick.
    pub tick: u64,
    pub has_failed: bool,
    /// Faults are over: everything must work again.
    pub is_calm: bool,
    pub calm_ns: u64,
    /// The network alters data at times.
    pub is_altered: bool,
    /// Clocks are more wrong than the contracts assume.
    pub beyond: Option<Beyond>,
    /// How much longer or shorter waits are than they should be, on the host where that is most.
    pub slew_ppm_max: u64,
    /// Each pair's exam that was passed.
    pub passed: BTreeSet<(LifeId, usize)>,
    pub holes: Vec<Hole>,
    /// The handoffs of KV caches.
    pub kv: Desk,
    /// The calls of a pool.
    pub pool: pool::Desk,
}

#[derive(Default)]
pub struct Slot {
    pub life: Option<LifeId>,
    pub address: String,
    /// Transfers that are yet to be accepted.
    pub left: usize,
    pub is_slow: bool,
}

/// The only breach allowed when clocks are more wrong than the contracts assume: a target takes a frame although the
/// frame's lease is over by the initiator's clock, and the target does not know that the frame is late.
pub struct Beyond {
    pub gain_ppm_max: u64,
    /// By slot.
    pub lease_ns: Vec<u64>,
}

/// One life's view of another engine's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Connecting,
    Up,
    Lost,
    Fenced,
    Closing,
}

pub struct Life {
    pub slot: usize,
    pub process: ProcessId,
    pub incarnation: u64,
    pub is_alive: bool,
    /// Its engine is open.
    pub is_ready: bool,
    /// It is told to close its engine.
    pub leaves: bool,
    pub memories: Vec<MemoryId>,
    /// A transfer found no place in its memory, which is full (`room`).
    pub lacks_room: bool,
    /// The lives behind its handles.
    pub handles: BTreeMap<u64, LifeId>,
    /// The handle that its program uses for a slot.
    pub peers: BTreeMap<usize, PeerId>,
    /// Slots to which a thread connects, or whose peer it closes or fences.
    pub busy: BTreeSet<usize>,
    pub views: BTreeMap<usize, View>,
    /// The handles whose loss it was told.
    pub lost: BTreeSet<u64>,
    /// When it was told that the session of a handle stands; missing while the session is down.
    pub up_ns: BTreeMap<u64, u64>,
    /// Lives that were fenced, and to which it has not connected since.
    pub fenced: BTreeSet<LifeId>,
    /// Lives with which a session has ended: what was delivered to or from them may be lost.
    pub parted: BTreeSet<LifeId>,
    pub unregistering: usize,
    /// A probe is under way.
    pub probes: bool,
    pub calls: Calls,
    freezes: u32,
    frozen_at: u64,
    frozen_ns: u64,
    /// Its tasks that must end before its engine is closed, and have not ended.
    pub threads_left: usize,
    /// Its task that plays a rank of caches, or a node of a pool, has not ended.
    pub has_rank: bool,
}

impl Life {
    pub fn new(slot: usize, process: ProcessId) -> Life {
        Life {
            slot,
            process,
            incarnation: 0,
            is_alive: true,
            is_ready: false,
            leaves: false,
            memories: Vec::new(),
            lacks_room: false,
            handles: BTreeMap::new(),
            peers: BTreeMap::new(),
            busy: BTreeSet::new(),
            views: BTreeMap::new(),
            lost: BTreeSet::new(),
            up_ns: BTreeMap::new(),
            fenced: BTreeSet::new(),
            parted: BTreeSet::new(),
            unregistering: 0,
            probes: false,
            calls: Calls::default(),
            freezes: 0,
            frozen_at: 0,
            frozen_ns: 0,
            threads_left: 0,
            has_rank: false,
        }
    }

    /// A stop of the process or a suspension of its host begins or ends.
    pub fn freeze(&mut self, begins: bool) {
        if begins {
            if self.freezes == 0 {
                self.frozen_at = virtual_ns();
            }
            self.freezes += 1;
        } else {
            self.freezes -= 1;
            if self.freezes == 0 {
                self.frozen_ns += virtual_ns() - self.frozen_at;
            }
        }
    }

    /// Returns for how long the process could not run until now.
    pub fn frozen_ns(&self) -> u64 {
        self.frozen_ns + if self.freezes > 0 { virtual_ns() - self.frozen_at } else { 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Good,
    /// Its region is of an earlier registration, or of a dead engine.
    Stale,
    /// The region does not grant it.
    Denied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Submitting,
    Refused,
    Live,
    /// The application has seen its end.
    Seen,
    /// The initiator's process has died.
    Orphan,
}

/// An application's request for a transfer.
#[derive(Clone)]
pub struct Wish {
    pub from: LifeId,
    pub to: LifeId,
    pub handle: PeerId,
    pub op: Op,
    pub kind: Kind,
    /// It names no region: what is registered at the moment is meant.
    pub names_none: bool,
    pub ordered: bool,
    pub checksum: bool,
    pub queued: bool,
    pub deadline_ns: Option<u64>,
    pub note: Option<usize>,
}

pub struct Piece {
    /// Block and offset in it, at each side.
    pub at: u64,
    pub block: usize,
    pub length: u64,
}

pub struct Transfer {
    pub wish: Wish,
    pub pieces: Vec<Piece>,
    /// By block: local, remote.
    pub blocks: Vec<[Block; 2]>,
    pub phase: Phase,
    pub core: Option<Arc<TransferCore>>,
    pub result: Option<TransferResult>,
    /// A call without a handle has failed: it has a status, but no result.
    pub is_over: bool,
    pub events: u32,
    /// Earlier ORDERED transfers that were not final when this one began.
    pub needs: Vec<TransferId>,
    pub invoked: u64,
    pub returned: u64,
    pub invoked_ns: u64,
    pub returned_ns: u64,
    /// On the initiator's clock.
    pub returned_own_ns: u64,
    /// When it was cancelled, or its peer closed.
    pub struck_ns: Option<u64>,
    pub frozen_before_ns: u64,
    /// Accesses that the kernel saw.
    pub accesses: u64,
}

pub struct Late {
    pub from: LifeId,
    pub to: LifeId,
    pub transfer: TransferId,
    pub is_told: bool,
}

/// An access that is judged when the application sees the end of `until`.
pub struct Suspect {
    pub until: TransferId,
    pub transfer: TransferId,
    /// True: the access came after the end of its own transfer. False: it came before an earlier ORDERED transfer was
    /// known to be DONE.
    pub is_late: bool,
    pub write: bool,
    pub at_ns: u64,
    pub told: String,
}

impl Ledger {
    /// Records a violation. The run ends soon.
    pub fn fail(&mut self, text: impl Into<String>) {
        self.has_failed = true;
        ferry_sim_kernel::fail(text);
    }

    pub fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    pub fn life_of(&self, slot: usize) -> Option<LifeId> {
        self.slots[slot].life.filter(|life| self.lives[*life].is_ready && self.lives[*life].is_alive)
    }

    pub fn life_named(&self, incarnation: u64) -> Option<LifeId> {
        self.lives.iter().position(|life| life.incarnation == incarnation)
    }

    /// Names a transfer for people.
    pub fn told(&self, id: TransferId) -> String {
        let transfer = &self.transfers[id];
        let wish = &transfer.wish;
        let [from, to] = [wish.from, wish.to].map(|life| self.named(life));
        let ordered = if wish.ordered { "ORDERED " } else { "" };
        let end = transfer.result.as_ref().map(|it| (it.status, it.fence, it.notification));
        format!(
            "transfer {id} ({ordered}{:?} of {from} at {to}, {:?}, {:?}, {end:?})",
            wish.op, wish.kind, transfer.phase
        )
    }

    pub fn named(&self, life: LifeId) -> String {
        format!("e{}.{life}", self.lives[life].slot)
    }

    /// Begins a transfer: its ranges are reserved and filled.
    pub fn begin(&mut self, wish: Wish, blocks: Vec<[Block; 2]>, pieces: Vec<Piece>) -> TransferId {
        let id = self.transfers.len();
        let needs = if wish.ordered { self.open_ordered(wish.from, wish.handle) } else { Vec::new() };
        for pair in &blocks {
            for (side, block) in pair.iter().enumerate() {
                let refuses = side == 1 && wish.kind != Kind::Good;
                self.memories[block.memory].claim(id, *block, side == 1, refuses);
            }
        }
        let invoked = self.tick();
        let frozen_before_ns = self.lives[wish.from].frozen_ns();
        self.transfers.push(Transfer {
            wish,
            pieces,
            blocks,
            phase: Phase::Submitting,
            core: None,
            result: None,
            is_over: false,
            events: 0,
            needs,
            invoked,
            returned: u64::MAX,
            invoked_ns: virtual_ns(),
            returned_ns: u64::MAX,
            returned_own_ns: u64::MAX,
            struck_ns: None,
            frozen_before_ns,
            accesses: 0,
        });
        self.fill(id);
        trace::event("submits", &[id as u64], || format!("submits {}", self.told(id)));
        id
    }

    /// Returns the ORDERED transfers to a peer that were accepted and whose end nobody has seen.
    fn open_ordered(&self, from: LifeId, handle: PeerId) -> Vec<TransferId> {
        let all = self.transfers.iter().enumerate();
        let open = all.filter(|(_, it)| {
            it.wish.ordered && it.wish.from == from && it.wish.handle == handle && it.phase == Phase::Live
        });
        open.map(|(id, _)| id).collect()
    }

    pub fn accepted(&mut self, id: TransferId, core: Arc<TransferCore>, own_ns: u64) {
        let tick = self.tick();
        let transfer = &mut self.transfers[id];
        let numbers = [id as u64, transfer.wish.from as u64, transfer.wish.to as u64];
        transfer.core = Some(core);
        (transfer.phase, transfer.returned, transfer.returned_own_ns) = (Phase::Live, tick, own_ns);
        transfer.returned_ns = virtual_ns();
        if let Some(note) = transfer.wish.note {
            self.notes[note].returned = tick;
        }
        trace::event("submitted", &numbers, || self.told(id));
    }

    /// A submit failed: nothing was started.
    pub fn refused(&mut self, id: TransferId, why: &ferry::status::Error) {
        trace::event("refused", &[id as u64], || format!("{} is refused: {why}", self.told(id)));
        self.transfers[id].phase = Phase::Refused;
        if let Some(note) = self.transfers[id].wish.note {
            self.note_ended(note, Notification::NotSent);
        }
        if self.transfers[id].accesses > 0 {
            self.fail(format!("{} was refused ({why}) and moved", self.told(id)));
        }
        self.release(id, true);
    }

    /// A process has died: its transfers are seen by nobody, and may land until their targets hear of it.
    pub fn died(&mut self, life: LifeId) {
        self.lives[life].is_alive = false;
        for transfer in self.transfers.iter_mut().filter(|it| it.wish.from == life) {
            if matches!(transfer.phase, Phase::Live | Phase::Submitting) {
                transfer.phase = Phase::Orphan;
            }
        }
        for other in 0..self.lives.len() {
            self.part(life, other);
        }
    }

    /// Notes that what is under way between two lives may get lost.
    pub fn part(&mut self, a: LifeId, b: LifeId) {
        self.lives[a].parted.insert(b);
        self.lives[b].parted.insert(a);
    }

    /// Returns the transfers whose end nobody has seen, with what tells their state.
    pub fn live(&self, of: impl Fn(&Transfer) -> bool) -> Vec<(TransferId, Arc<TransferCore>)> {
        let all = self.transfers.iter().enumerate().filter(|(_, it)| it.phase == Phase::Live && of(it));
        all.filter_map(|(id, it)| Some((id, it.core.clone()?))).collect()
    }

    /// True if a frame of this transfer may have been given up by its lease by now, and may land later, because clocks
    /// are wrong beyond the bound. Such a transfer may have gone on to be DONE.
    pub fn may_land_untold(&self, id: TransferId) -> bool {
        let Some(Beyond { gain_ppm_max, lease_ns }) = &self.beyond else { return false };
        let transfer = &self.transfers[id];
        let lease_ns = lease_ns[self.lives[transfer.wish.from].slot];
        virtual_ns() - transfer.invoked_ns >= lease_ns * 1_000_000 / (1_000_000 + gain_ppm_max)
    }

    /// Returns by how much a wait may be longer than it should be, because clocks are wrong beyond the bound or slewed.
    pub fn stretch_ns(&self, ns: u64) -> u64 {
        let ppm = self.beyond.as_ref().map_or(0, |beyond| beyond.gain_ppm_max) + self.slew_ppm_max;
        ns * ppm / (1_000_000 - ppm)
    }

    /// True if a transfer's end was seen and it was DONE.
    pub fn is_done(&self, id: TransferId) -> bool {
        self.transfers[id].result.as_ref().is_some_and(|result| result.state == State::Done)
    }
}
