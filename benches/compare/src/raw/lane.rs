//! Both sides of one connection in a run: the active side keeps a window of transfers under way, or carries them out
//! one by one; the passive side answers.

use std::collections::VecDeque;
use std::io;

use ferry_bench::cpu::Pinned;
use ferry_bench::dispense::Dispenser;
use ferry_bench::walk::End;
use ferry_bench::workload::Operation;

use super::pieces::{Pieces, HEADER_BYTES};
use super::reference::Ground;
use super::socket::{header, number, Link, Wait, END};

/// One connection's part of a run.
pub struct Lane<'a> {
    pub link: &'a Link,
    pub ground: Ground<'a>,
    pub wait: Wait,
}

impl Lane<'_> {
    /// Keeps `window` transfers under way until the dispenser is empty and all have ended.
    pub fn run(&self, window: usize, dispenser: &Dispenser) -> io::Result<()> {
        let mut pieces = Pieces::default();
        let mut under_way = VecDeque::with_capacity(window);
        while let Some(number) = dispenser.take() {
            self.start(number, &mut pieces)?;
            under_way.push_back(number);
            if under_way.len() == window {
                under_way.pop_front().map_or(Ok(()), |oldest| self.finish(oldest, &mut pieces))?;
            }
        }
        under_way.into_iter().try_for_each(|number| self.finish(number, &mut pieces))?;
        self.link.end(self.wait)
    }

    /// Carries out one synchronous transfer.
    pub fn carry(&self, number: u64, pieces: &mut Pieces) -> io::Result<()> {
        self.start(number, pieces)?;
        self.finish(number, pieces)
    }

    fn operation(&self) -> Operation {
        self.ground.walk.workload().operation
    }

    fn start(&self, number: u64, pieces: &mut Pieces) -> io::Result<()> {
        match self.operation() {
            Operation::Write => {
                let mut header = header(number);
                pieces.clear();
                // SAFETY: `header` outlives the send below, which uses these pieces up.
                unsafe { pieces.push(header.as_mut_ptr(), HEADER_BYTES) };
                push_blocks(pieces, End::Initiator, self.ground, number);
                self.link.send(pieces)
            }
            Operation::Read => self.link.send_header(number),
        }
    }

    fn finish(&self, number: u64, pieces: &mut Pieces) -> io::Result<()> {
        match self.operation() {
            Operation::Write => self.link.expect_header(number, self.wait),
            Operation::Read => {
                pieces.clear();
                push_blocks(pieces, End::Initiator, self.ground, number);
                self.link.receive(pieces, 0, self.wait)
            }
        }
    }
}

/// Answers one connection until END. Receives the next header in the same call as the end of a payload: with pipelined
/// transfers the header has usually arrived.
pub fn answer(link: &Link, ground: Ground, wait: Wait, cpu: Option<usize>) -> io::Result<()> {
    let _pinned = cpu.map(Pinned::to).transpose()?;
    let mut pieces = Pieces::default();
    let mut next = [0; HEADER_BYTES];
    let mut current = link.receive_header(wait)?;
    while current != END {
        pieces.clear();
        push_blocks(&mut pieces, End::Target, ground, current);
        current = match ground.walk.workload().operation {
            Operation::Write => {
                // SAFETY: `next` outlives the receives below, which use these pieces up.
                unsafe { pieces.push(next.as_mut_ptr(), HEADER_BYTES) };
                link.receive(&mut pieces, HEADER_BYTES, wait)?;
                link.send_header(current)?;
                link.receive(&mut pieces, 0, wait)?;
                number(&next)?
            }
            Operation::Read => {
                link.send(&mut pieces)?;
                link.receive_header(wait)?
            }
        };
    }
    link.send_header(END)
}

/// Appends the blocks of transfer `number` at `end`, in order.
fn push_blocks(pieces: &mut Pieces, end: End, Ground { walk, memory }: Ground, number: u64) {
    for offset in walk.offsets_at(end, number) {
        // SAFETY: the walk was made for at most the bytes of `memory`, so each block lies inside it; the
        // mapping outlives the scoped threads that use the pieces.
        unsafe { pieces.push(memory.address().add(offset), walk.workload().block_bytes) };
    }
}
