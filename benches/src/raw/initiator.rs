//! The active side of one connection: keeps a window of transfers under way, or times them one by one.

use std::collections::VecDeque;
use std::io;

use super::pieces::Pieces;
use super::socket::{Link, Wait};
use super::target::push_blocks;
use super::wire::{Header, Kind, HEADER_BYTES};
use crate::dispense::Dispenser;
use crate::memory::Memory;
use crate::walk::{End, Walk};
use crate::workload::Operation;

/// One connection's part of a run.
pub struct Lane<'a> {
    pub link: &'a Link,
    pub walk: &'a Walk,
    pub memory: &'a Memory,
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
                self.finish_oldest(&mut under_way, &mut pieces)?;
            }
        }
        while !under_way.is_empty() {
            self.finish_oldest(&mut under_way, &mut pieces)?;
        }
        self.link.end(self.wait)
    }

    /// Carries out one synchronous transfer.
    pub fn carry(&self, number: u64, pieces: &mut Pieces) -> io::Result<()> {
        self.start(number, pieces)?;
        self.finish(number, pieces)
    }

    fn start(&self, number: u64, pieces: &mut Pieces) -> io::Result<()> {
        match self.walk.workload().operation {
            Operation::Write => {
                let mut header = Header { kind: Kind::Write, number }.encode();
                pieces.clear();
                // SAFETY: `header` outlives the send below, which uses these pieces up.
                unsafe { pieces.push(header.as_mut_ptr(), HEADER_BYTES) };
                push_blocks(pieces, self.walk, End::Initiator, self.memory, number);
                self.link.send(pieces)
            }
            Operation::Read => self.link.send_header(&Header { kind: Kind::Read, number }),
        }
    }

    fn finish(&self, number: u64, pieces: &mut Pieces) -> io::Result<()> {
        match self.walk.workload().operation {
            Operation::Write => self.link.receive_header(self.wait)?.expect(Kind::Done).map(drop),
            Operation::Read => {
                pieces.clear();
                push_blocks(pieces, self.walk, End::Initiator, self.memory, number);
                self.link.receive(pieces, 0, self.wait)
            }
        }
    }

    fn finish_oldest(&self, under_way: &mut VecDeque<u64>, pieces: &mut Pieces) -> io::Result<()> {
        match under_way.pop_front() {
            Some(number) => self.finish(number, pieces),
            None => Ok(()),
        }
    }
}
