//! A device for tests. Its addresses are invalid in this process, and its copies take time and can be made to fail or
//! hang. All engines of the process share the device, like a real library.

use crate::device::{
    Allocation, Attachment, Batch, Borrowed, Direction, Driver, Exposed, Hold, Library, Piece, Point, Queue,
    Start,
};
use crate::status::{Error, Result, Status};
use crate::types::{Location, MemoryKind};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Addresses that are canonical on no machine: every access faults.
const FIRST: u64 = 0x0100_0000_0000_0000;

#[derive(Default)]
pub struct Fake {
    memories: Mutex<BTreeMap<u64, (i32, Vec<u8>)>>,
    locked: Mutex<Vec<(u64, u64)>>,
    next: AtomicU64,
    /// Duration of each batch.
    pub delay_us: AtomicU64,
    /// The number of batches before the one that fails; below 0 no batch fails.
    pub fail_in: AtomicI32,
    pub hangs: AtomicBool,
    /// How often a batch was asked for its end, and hung.
    pub hung: AtomicU64,
    /// Whether `abort` can tell that everything has stopped.
    pub aborts: AtomicBool,
    /// The number of batches begun.
    pub begun: AtomicU64,
    /// The number of pieces copied.
    pub copies: AtomicU64,
    /// The number of pieces copied from device to device.
    pub crossings: AtomicU64,
    /// Pinning host memory waits while this is true.
    pub lock_waits: AtomicBool,
    /// Looks at events wait while this is true; below, the number that wait.
    pub look_waits: AtomicBool,
    pub looking: AtomicI32,
    /// The events that have fired. FAILED is the event of work that failed.
    pub events: Mutex<Vec<u64>>,
    /// Whether other processes can map memory.
    pub shares: AtomicBool,
    /// The status with which the next import fails.
    pub import_fails: Mutex<Option<Status>>,
    /// The real address of imported memory, by the address of the import.
    pub mapped: Mutex<BTreeMap<u64, u64>>,
    /// The number of exports that were not withdrawn.
    pub exported: AtomicI32,
    /// Withdrawals wait while this is true; below, the number that wait.
    pub withdraw_waits: AtomicBool,
    pub withdrawing: AtomicI32,
    /// Streams that are held.
    pub streams: Mutex<Vec<u64>>,
    /// Whether devices reach devices of other hosts.
    pub crosses: AtomicBool,
    /// Copies to devices of other hosts do not end while this is true.
    pub crossing_hangs: AtomicBool,
    /// The number of pieces of memory that are exposed, and that are attached.
    pub shown: AtomicI32,
    pub attached: AtomicI32,
    /// How often memory was attached, and exposed.
    pub attachments: AtomicU64,
    pub exposures: AtomicU64,
    /// The number of copies under way to or from devices of other hosts.
    pub crossing: AtomicI32,
    /// Attaching waits while this is true; below, the number of queues that wait.
    pub attach_waits: AtomicBool,
    pub waiting_to_attach: AtomicI32,
    /// The number of threads that wait to pin host memory.
    pub waiting: AtomicI32,
}

/// An event of work that fails.
pub const FAILED: u64 = 13;

struct FakePoint(Arc<Fake>, u64);

impl Point for FakePoint {
    fn is_reached(&self) -> Result<bool> {
        if self.0.look_waits.load(Ordering::SeqCst) {
            self.0.looking.fetch_add(1, Ordering::SeqCst);
            while self.0.look_waits.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            self.0.looking.fetch_sub(1, Ordering::SeqCst);
        }
        if self.1 == FAILED {
            return Err(Error::new(Status::System, "the work before the event failed"));
        }
        Ok(lock(&self.0.events).contains(&self.1))
    }
}

struct FakeHold(Arc<Fake>, u64);

impl Hold for FakeHold {
    fn release(&self) {
        lock(&self.0.streams).retain(|stream| *stream != self.1);
    }
}

pub const CODE: i32 = 719;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static KNOWN: Mutex<Option<Arc<Fake>>> = Mutex::new(None);

pub fn library() -> Library {
    Library { kind: MemoryKind::Cuda, is_loaded: Box::new(|| true), open: Box::new(|| Ok(Fake::get())) }
}

impl Fake {
    pub fn get() -> Arc<Fake> {
        let fresh = || Arc::new(Fake { fail_in: AtomicI32::new(-1), ..Fake::default() });
        lock(&KNOWN).get_or_insert_with(fresh).clone()
    }

    /// Allocates memory of a device, filled with a byte.
    pub fn alloc(&self, device: i32, bytes: usize, fill: u8) -> u64 {
        let address = FIRST + self.next.fetch_add(1 << 32, Ordering::Relaxed);
        lock(&self.memories).insert(address, (device, vec![fill; bytes]));
        address
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        let mut memories = lock(&self.memories);
        let (base, (_, memory)) = memories.range_mut(..=address).next_back().unwrap();
        memory[(address - base) as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let memories = lock(&self.memories);
        let (base, (_, memory)) = memories.range(..=address).next_back().unwrap();
        memory[(address - base) as usize..][..length].to_vec()
    }

    fn is_locked(&self, address: u64, length: u64) -> bool {
        lock(&self.locked).iter().any(|(base, all)| address >= *base && address + length <= base + all)
    }

    /// Returns the real address of imported memory.
    fn behind(&self, address: u64) -> u64 {
        let mapped = lock(&self.mapped);
        match mapped.range(..=address).next_back() {
            Some((alias, real)) if address - alias < 1 << 32 => real + (address - alias),
            _ if address >= FIRST * 2 => panic!("nothing is mapped at {address:#x}"),
            _ => address,
        }
    }

    fn carry_out(&self, direction: Direction, piece: &Piece) {
        let Piece { to, from, length } = *piece;
        match direction {
            Direction::DeviceToHost => {
                assert!(self.is_locked(to, length), "a copy to host memory that is not locked");
                let bytes = self.read(from, length as usize);
                // SAFETY: the host side of a batch is memory of the engine's that is kept until it has ended.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
            }
            Direction::HostToDevice => {
                assert!(self.is_locked(from, length), "a copy from host memory that is not locked");
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, length as usize) };
                self.write(to, bytes);
            }
            Direction::DeviceToDevice => {
                let (to, from) = (self.behind(to), self.behind(from));
                self.write(to, &self.read(from, length as usize));
            }
        }
    }

    fn count(&self, direction: Direction) {
        let crosses = u64::from(direction == Direction::DeviceToDevice);
        self.crossings.fetch_add(crosses, Ordering::Relaxed);
        self.copies.fetch_add(1, Ordering::Relaxed);
    }
}

impl Driver for Fake {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Cuda
    }

    fn locate(&self, address: u64) -> Result<Option<Allocation>> {
        let memories = lock(&self.memories);
        let found = memories.range(..=address).next_back();
        Ok(found.filter(|(base, (_, memory))| address - **base < memory.len() as u64).map(
            |(base, (device, memory))| Allocation {
                location: Location { kind: MemoryKind::Cuda, device: *device },
                base: *base,
                length: memory.len() as u64,
            },
        ))
    }

    fn pin(&self, address: u64, length: usize) -> Result<()> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while self.lock_waits.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        lock(&self.locked).push((address, length as u64));
        Ok(())
    }

    fn unpin(&self, address: u64) {
        lock(&self.locked).retain(|(base, _)| *base != address);
    }

    fn open(&self, device: i32, _batch_bytes: usize, depth: usize) -> Result<Box<dyn Queue>> {
        if device > 1 {
            return Err(Error::new(Status::Unavailable, format!("there is no device {device}")));
        }
        Ok(Box::new(FakeQueue::new(depth, None)))
    }

    fn crosses(&self) -> bool {
        self.crosses.load(Ordering::SeqCst)
    }

    fn attach(&self, device: i32, length: u64, offer: &[u8], host: IpAddr) -> Result<Attachment> {
        assert!(host.is_loopback());
        self.waiting_to_attach.fetch_add(1, Ordering::SeqCst);
        while self.attach_waits.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let remote = u64::from_le_bytes(offer.try_into().unwrap());
        let local = self.alloc(device, length as usize, 0xdd);
        self.attached.fetch_add(1, Ordering::SeqCst);
        self.attachments.fetch_add(1, Ordering::SeqCst);
        self.waiting_to_attach.fetch_sub(1, Ordering::SeqCst);
        Ok(Attachment { queue: Box::new(FakeQueue::new(4, Some(local))), local, remote })
    }

    fn point(&self, at: Start) -> Result<Box<dyn Point>> {
        match at {
            Start::Event(event) => Ok(Box::new(FakePoint(Fake::get(), event))),
            Start::Stream(_) => Err(Error::new(Status::Unsupported, "no streams")),
        }
    }

    fn capture(&self, event: u64) -> Result<Box<dyn Point>> {
        self.point(Start::Event(event))
    }

    fn hold(&self, stream: u64) -> Result<Box<dyn Hold>> {
        lock(&self.streams).push(stream);
        Ok(Box::new(FakeHold(Fake::get(), stream)))
    }
}

struct FakeQueue {
    fake: Arc<Fake>,
    depth: usize,
    next: u64,
    running: VecDeque<(u64, Instant, Direction, Vec<Piece>, bool)>,
    /// The address of the memory here that is attached to a device of another host.
    attached: Option<u64>,
    /// The addresses that this queue exposes.
    exposed: Vec<u64>,
}

impl FakeQueue {
    fn new(depth: usize, attached: Option<u64>) -> FakeQueue {
        FakeQueue {
            fake: Fake::get(),
            depth,
            next: 0,
            running: VecDeque::new(),
            attached,
            exposed: Vec::new(),
        }
    }

    fn hangs(&self) -> bool {
        let hangs = if self.attached.is_some() { &self.fake.crossing_hangs } else { &self.fake.hangs };
        hangs.load(Ordering::SeqCst)
    }
}

impl Drop for FakeQueue {
    fn drop(&mut self) {
        self.fake.shown.fetch_sub(self.exposed.len() as i32, Ordering::SeqCst);
        if let Some(local) = self.attached {
            assert!(self.running.is_empty() || self.fake.aborts.load(Ordering::SeqCst));
            lock(&self.fake.memories).remove(&local);
            self.fake.attached.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Queue for FakeQueue {
    fn copy(&mut self, direction: Direction, pieces: &[Piece]) -> Result<Batch> {
        assert!(self.running.len() < self.depth);
        if let Some(local) = self.attached {
            let ours = if direction == Direction::DeviceToHost { pieces[0].from } else { pieces[0].to };
            self.fake.crossing.fetch_add(1, Ordering::SeqCst);
            assert!(direction != Direction::DeviceToDevice && (local..local + (1 << 32)).contains(&ours));
        }
        self.fake.begun.fetch_add(1, Ordering::SeqCst);
        let fails = self.fake.fail_in.fetch_sub(1, Ordering::SeqCst) == 0;
        let due = Instant::now() + Duration::from_micros(self.fake.delay_us.load(Ordering::Relaxed));
        self.next += 1;
        self.running.push_back((self.next, due, direction, pieces.to_vec(), fails));
        Ok(Batch(self.next))
    }

    fn poll_done(&mut self, batch: Batch) -> Result<bool> {
        while let Some((at, due, direction, pieces, fails)) = self.running.front() {
            if *at > batch.0 {
                break;
            }
            if self.hangs() {
                self.fake.hung.fetch_add(1, Ordering::SeqCst);
                return Ok(false);
            }
            if Instant::now() < *due {
                return Ok(false);
            }
            if *fails {
                let this = *at == batch.0;
                self.running.pop_front();
                let error = Error { vendor_error: CODE, ..Error::new(Status::System, "the copy failed") };
                return if this { Err(error) } else { Ok(false) };
            }
            for piece in pieces {
                // A copy between slots is not counted as a copy of this device.
                if self.attached.is_some() {
                    self.fake.crossing.fetch_sub(1, Ordering::SeqCst);
                    self.fake.carry_out(Direction::DeviceToDevice, piece);
                } else {
                    self.fake.carry_out(*direction, piece);
                    self.fake.count(*direction);
                }
            }
            self.running.pop_front();
        }
        Ok(true)
    }

    fn abort(&mut self) -> bool {
        let stopped = self.fake.aborts.load(Ordering::SeqCst);
        if stopped {
            let crossing = if self.attached.is_some() { self.running.len() as i32 } else { 0 };
            self.fake.crossing.fetch_sub(crossing, Ordering::SeqCst);
            self.running.clear();
        }
        stopped
    }

    fn export(&mut self, address: u64, _length: u64, pid: i32) -> Result<Vec<u8>> {
        assert_eq!(pid, std::process::id() as i32);
        if !self.fake.shares.load(Ordering::SeqCst) {
            return Err(Error::new(Status::Unavailable, "nothing is shared"));
        }
        self.fake.exported.fetch_add(1, Ordering::SeqCst);
        Ok(address.to_le_bytes().to_vec())
    }

    fn withdraw(&mut self, exported: &[u8]) {
        assert_eq!(exported.len(), 8);
        self.fake.withdrawing.fetch_add(1, Ordering::SeqCst);
        while self.fake.withdraw_waits.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.fake.withdrawing.fetch_sub(1, Ordering::SeqCst);
        self.fake.exported.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns an address other than that of the memory itself.
    fn import(&mut self, borrowed: &Borrowed<'_>) -> Result<u64> {
        assert!(borrowed.owner.is_self());
        if let Some(status) = lock(&self.fake.import_fails).take() {
            return Err(Error::new(status, "it can't be mapped"));
        }
        let address = u64::from_le_bytes(borrowed.exported.try_into().unwrap());
        let alias = FIRST * 2 + self.fake.next.fetch_add(1 << 32, Ordering::Relaxed);
        lock(&self.fake.mapped).insert(alias, address);
        Ok(alias)
    }

    fn close(&mut self, imported: u64) -> Result<()> {
        let inside = |address: u64| address >= imported && address - imported < 1 << 32;
        let used = |piece: &Piece| inside(piece.to) || inside(piece.from);
        assert!(
            !self.running.iter().any(|(.., pieces, _)| pieces.iter().any(used)),
            "closed while it is copied"
        );
        lock(&self.fake.mapped).remove(&imported).map(drop).ok_or_else(|| Error::invalid("nothing is mapped"))
    }

    fn expose(&mut self, length: u64, host: IpAddr) -> Result<Exposed> {
        assert!(host.is_loopback());
        if !self.fake.crosses.load(Ordering::SeqCst) {
            return Err(Error::new(Status::Unsupported, "nothing is exposed"));
        }
        self.fake.shown.fetch_add(1, Ordering::SeqCst);
        self.fake.exposures.fetch_add(1, Ordering::SeqCst);
        let address = self.fake.alloc(0, length as usize, 0xcc);
        self.exposed.push(address);
        Ok(Exposed { address, offer: address.to_le_bytes().to_vec() })
    }

    /// The memory stays, because another device may be attached.
    fn conceal(&mut self, address: u64) {
        let before = self.exposed.len();
        self.exposed.retain(|exposed| *exposed != address);
        assert_eq!(self.exposed.len(), before - 1, "it was not exposed, or is concealed twice");
        self.fake.shown.fetch_sub(1, Ordering::SeqCst);
    }
}
