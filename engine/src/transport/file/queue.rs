//! Batches of pieces as calls on files. Pieces that are neighbours both in the file and in the slot make one call. A
//! call that moved less than asked is continued, and each piece gets the result of its own bytes.

use super::calls::Calls;
use super::files::{Files, OpenFile};
use crate::device::{Batch, Direction, Piece, PieceFault, Queue};
use crate::status::{Error, Result, Status};
use crate::sys::file::{FileCall, FileOp};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The pauses between two looks at a disk.
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(1);

pub struct FileQueue {
    files: Arc<Files>,
    calls: Calls,
    /// All calls that have not ended, by number. None: a free number.
    all: Vec<Option<FileWork>>,
    free: Vec<usize>,
    /// Calls that wait for room.
    waiting: VecDeque<usize>,
    under_way: usize,
    /// The batches from the first on that was not reported, and its number. None: reported.
    batches: VecDeque<Option<FileBatch>>,
    first: u64,
    /// The faults of the batch that ended last.
    faults: Vec<PieceFault>,
    /// A list that all looks reuse.
    ended: Vec<(u64, i32)>,
}

/// What one call, or more than one after short ones, has to do.
struct FileWork {
    file: Arc<OpenFile>,
    op: FileOp,
    batch: u64,
    memory: u64,
    address: u64,
    length: u32,
    moved: u32,
    pieces: Range<usize>,
    /// The call under way.
    begun: Option<FileCall>,
}

struct FileBatch {
    lengths: Vec<u64>,
    /// Calls that have not ended.
    left: usize,
    faults: Vec<PieceFault>,
    /// The files that it writes, with the pieces in each, if they are to be synced before the end.
    unsynced: Vec<(Arc<OpenFile>, Vec<Range<usize>>)>,
    /// It makes no further call.
    given_up: bool,
}

impl FileQueue {
    pub fn open(files: Arc<Files>) -> Result<FileQueue> {
        let calls = Calls::new(&files)?;
        Ok(FileQueue {
            files,
            calls,
            all: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            under_way: 0,
            batches: VecDeque::new(),
            first: 0,
            faults: Vec::new(),
            ended: Vec::new(),
        })
    }

    /// Makes the calls of a batch.
    fn plan(&self, direction: Direction, pieces: &[Piece]) -> Result<Vec<FileWork>> {
        let batch = self.first + self.batches.len() as u64;
        let mut all: Vec<FileWork> = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            let (op, memory, address) = match direction {
                Direction::HostToDevice => (FileOp::Write, piece.from, piece.to),
                Direction::DeviceToHost => (FileOp::Read, piece.to, piece.from),
                Direction::DeviceToDevice => {
                    return Err(Error::new(Status::Unsupported, "files are copied through host memory"));
                }
            };
            let gone = || Error::new(Status::Stale, format!("{address:#x} is in no registered file"));
            let length = u32::try_from(piece.length).map_err(|_| gone())?;
            let follows = |last: &&mut FileWork| {
                last.memory + u64::from(last.length) == memory
                    && last.address + u64::from(last.length) == address
                    && last.file.contains(last.address, u64::from(last.length) + piece.length)
                    && last.length.checked_add(length).is_some_and(|all| all <= i32::MAX as u32)
            };
            if let Some(last) = all.last_mut().filter(follows) {
                last.length += length;
                last.pieces.end += 1;
                continue;
            }
            let file = self.files.find(address, piece.length).ok_or_else(gone)?;
            let (moved, pieces, begun) = (0, at..at + 1, None);
            all.push(FileWork { file, op, batch, memory, address, length, moved, pieces, begun });
        }
        Ok(all)
    }

    fn start(&mut self, direction: Direction, pieces: &[Piece], durable: bool) -> Result<Batch> {
        let all = self.plan(direction, pieces)?;
        let mut unsynced: Vec<(Arc<OpenFile>, Vec<Range<usize>>)> = Vec::new();
        for work in all.iter().filter(|work| durable && work.op == FileOp::Write) {
            match unsynced.iter_mut().find(|(file, _)| file.base == work.file.base) {
                Some((_, pieces)) => pieces.push(work.pieces.clone()),
                None => unsynced.push((work.file.clone(), vec![work.pieces.clone()])),
            }
        }
        let lengths = pieces.iter().map(|piece| piece.length).collect();
        let number = self.first + self.batches.len() as u64;
        let (left, faults, given_up) = (all.len(), Vec::new(), false);
        self.batches.push_back(Some(FileBatch { lengths, left, faults, unsynced, given_up }));
        all.into_iter().for_each(|work| self.add(work));
        self.advance();
        Ok(Batch(number))
    }

    fn add(&mut self, work: FileWork) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.all[number] = Some(work);
        self.waiting.push_back(number);
    }

    /// Begins calls, and takes in ended ones.
    fn advance(&mut self) {
        self.begin();
        let mut ended = std::mem::take(&mut self.ended);
        self.calls.reap(&mut ended);
        self.take_in(&mut ended);
        self.ended = ended;
        self.begin();
    }

    fn begin(&mut self) {
        for _ in 0..self.waiting.len() {
            if self.under_way >= self.calls.depth() {
                break;
            }
            let Some(number) = self.waiting.pop_front() else { break };
            let Some(work) = &mut self.all[number] else { break };
            if work.op == FileOp::Sync && !work.file.begin_sync() {
                self.waiting.push_back(number);
                continue;
            }
            let call = work.call();
            // SAFETY: the caller of `copy` keeps slot and region until the batch has ended, which is not before this
            // call's result was reaped. `work` keeps the file open.
            if !unsafe { self.calls.begin(&call, number as u64) } {
                if work.op == FileOp::Sync {
                    work.file.end_sync();
                }
                self.waiting.push_front(number);
                break;
            }
            work.begun = Some(call);
            self.under_way += 1;
        }
        self.calls.flush();
    }

    fn take_in(&mut self, ended: &mut Vec<(u64, i32)>) {
        for (number, result) in ended.drain(..) {
            self.under_way -= 1;
            self.end_call(number as usize, result);
        }
    }

    /// Takes in the result of a call: continues what is left of it, or ends it.
    fn end_call(&mut self, number: usize, result: i32) {
        let Some(work) = self.all.get_mut(number).and_then(Option::as_mut) else { return };
        let begun = work.begun.take();
        if begun.is_some() && work.op == FileOp::Sync {
            work.file.end_sync();
        }
        let ended = (begun.unwrap_or_else(|| work.call()), Cell::new(result));
        self.files.hooks.ended.call(&ended);
        let (result, left) = (ended.1.get(), work.length - work.moved);
        let errno = match (result, work.op) {
            (errno, _) if errno < 0 && work.file.retries(&ended.0, -errno) => None,
            (errno, _) if errno < 0 => Some(-errno),
            (_, FileOp::Sync) => Some(0),
            (0, FileOp::Read) => Some(libc::ENODATA),
            (0, FileOp::Write) => Some(libc::ENOSPC),
            (moved, _) => {
                work.moved += (moved as u32).min(left);
                (work.moved == work.length).then_some(0)
            }
        };
        let batch = self.batches.get((work.batch - self.first) as usize).and_then(Option::as_ref);
        let given_up = batch.is_some_and(|batch| batch.given_up);
        let errno = errno.or(given_up.then_some(libc::ECANCELED));
        let Some(errno) = errno else { return self.waiting.push_back(number) };
        if let Some(work) = self.all[number].take() {
            self.free.push(number);
            self.end_work(work, errno);
        }
    }

    fn end_work(&mut self, work: FileWork, errno: i32) {
        let index = (work.batch - self.first) as usize;
        let Some(batch) = self.batches.get_mut(index).and_then(Option::as_mut) else { return };
        batch.left -= 1;
        match work.op {
            FileOp::Sync => {
                let errno = if errno == libc::ECANCELED { errno } else { work.file.synced(errno) };
                let written = batch.unsynced.iter().position(|(file, _)| file.base == work.file.base);
                let written = written.map_or_else(Vec::new, |at| batch.unsynced.swap_remove(at).1);
                if errno != 0 {
                    written.into_iter().flatten().for_each(|piece| batch.fail(piece, errno));
                }
            }
            _ if errno != 0 => batch.fail_from(&work, errno),
            _ => {}
        }
        if batch.left == 0 && batch.given_up {
            let unsynced = std::mem::take(&mut batch.unsynced);
            unsynced.into_iter().flat_map(|(_, pieces)| pieces).flatten().for_each(|piece| {
                batch.fail(piece, libc::ECANCELED);
            });
        }
        // All is written: sync once for each file.
        if batch.left == 0 && work.op != FileOp::Sync {
            batch.left = batch.unsynced.len();
            let files: Vec<_> = batch.unsynced.iter().map(|(file, _)| file.clone()).collect();
            for file in files {
                let (batch, address) = (work.batch, file.base);
                let (op, pieces, begun) = (FileOp::Sync, 0..0, None);
                self.add(FileWork {
                    file,
                    op,
                    batch,
                    memory: 0,
                    address,
                    length: 0,
                    moved: 0,
                    pieces,
                    begun,
                });
            }
        }
    }
}

impl FileWork {
    /// The call for what is left.
    fn call(&self) -> FileCall {
        let moved = u64::from(self.moved);
        self.file.call(self.op, self.memory + moved, self.address + moved, self.length - self.moved)
    }
}

impl FileBatch {
    fn fail(&mut self, piece: usize, errno: i32) {
        if !self.faults.iter().any(|fault| fault.piece == piece) {
            let text = std::io::Error::from_raw_os_error(errno);
            self.faults.push(PieceFault { piece, error: Error::system("a file", &text) });
        }
    }

    /// Fails the pieces that a call has not moved as a whole.
    fn fail_from(&mut self, work: &FileWork, errno: i32) {
        let mut end = 0;
        for piece in work.pieces.clone() {
            end += self.lengths[piece];
            if end > u64::from(work.moved) {
                self.fail(piece, errno);
            }
        }
    }
}

impl Queue for FileQueue {
    fn copy(&mut self, direction: Direction, pieces: &[Piece]) -> Result<Batch> {
        self.start(direction, pieces, false)
    }

    fn copy_durably(&mut self, direction: Direction, pieces: &[Piece]) -> Result<Batch> {
        self.start(direction, pieces, true)
    }

    fn poll_done(&mut self, batch: Batch) -> Result<bool> {
        self.advance();
        let place = batch.0.checked_sub(self.first).and_then(|at| self.batches.get_mut(at as usize));
        match place {
            Some(Some(batch)) if batch.left > 0 => return Ok(false),
            Some(place) => self.faults = place.take().map_or_else(Vec::new, |batch| batch.faults),
            None => {}
        }
        while self.batches.front().is_some_and(Option::is_none) {
            self.batches.pop_front();
            self.first += 1;
        }
        Ok(true)
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn take_faults(&mut self) -> Vec<PieceFault> {
        std::mem::take(&mut self.faults)
    }

    /// Begins nothing more. What the kernel does already can't be stopped.
    fn abort(&mut self) -> bool {
        self.batches.iter_mut().flatten().for_each(|batch| batch.given_up = true);
        let mut ended = Vec::new();
        self.calls.cancel(&mut ended);
        self.take_in(&mut ended);
        while let Some(number) = self.waiting.pop_front() {
            self.end_call(number, -libc::ECANCELED);
        }
        if self.under_way == 0 {
            self.first += self.batches.len() as u64;
            self.batches.clear();
        }
        self.under_way == 0
    }

    /// A disk may answer after all.
    fn recovers(&self) -> bool {
        true
    }

    fn pause(&self, quiet: Duration) -> Duration {
        (quiet / 8).clamp(PAUSE_MIN, PAUSE_MAX)
    }
}
