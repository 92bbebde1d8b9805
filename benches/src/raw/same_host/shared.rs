//! Maps the target's memory: this process copies by itself, with ferry's own kernel or `memcpy`, whichever is faster
//! for the workload.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;

/// ferry's own, the best copy that we know of.
use ferry::sys::copy;
pub use ferry::sys::copy::Piece;
use ferry::sys::memory::page_bytes;

use super::{Kind, Mover, Place, Scratch};
use crate::memory::{Memory, Store};
use crate::walk::Walk;
use crate::workload::Operation;

pub struct Shared {
    remote: Memory,
}

const TUNED: usize = 0;
const PLAIN: usize = 1;

impl Mover for Shared {
    const NAME: &'static str = "raw shared mapping";
    const KIND: Kind = Kind::Shared;
    const SETTINGS: &'static [usize] = &[TUNED, PLAIN];

    fn reach(pid: u32, place: Place, bytes: usize) -> io::Result<Shared> {
        let fd = place.fd.ok_or(io::ErrorKind::InvalidData)?;
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"))?;
        let remote = Memory::of(file.as_fd(), bytes, true)?;
        // Touch the pages before any run.
        (0..bytes).step_by(page_bytes()).for_each(|offset| remote.copy_out(offset, &mut [0]));
        Ok(Shared { remote })
    }

    fn carry(
        &self,
        walk: &Walk,
        memory: &Memory,
        number: u64,
        setting: usize,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let length = walk.workload().block_bytes;
        let pieces = &mut scratch.pieces;
        pieces.clear();
        pieces.extend(walk.offsets(number).map(|(own, other)| {
            let (here, there) =
                (memory.address().wrapping_add(own), self.remote.address().wrapping_add(other));
            match walk.workload().operation {
                Operation::Write => Piece { from: here, to: there, length },
                Operation::Read => Piece { from: there, to: here, length },
            }
        }));
        if setting == PLAIN {
            for piece in pieces {
                // SAFETY: a walk stays within both mappings, which are distinct and outlive the run.
                unsafe { std::ptr::copy_nonoverlapping(piece.from, piece.to, piece.length) };
            }
        } else if let [piece] = pieces[..] {
            // SAFETY: as above.
            unsafe { copy::copy(piece.from, piece.to, piece.length) };
        } else {
            // SAFETY: as above.
            unsafe { copy::copy_all(pieces) };
        }
        Ok(())
    }

    fn describe(setting: usize) -> String {
        if setting == PLAIN { "memcpy" } else { "streaming copies" }.to_owned()
    }
}
