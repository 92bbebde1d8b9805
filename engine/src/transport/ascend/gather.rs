//! Decides which copies a batch between host and device becomes. A copy across the bus costs about as much for 4 KiB
//! as for 1 MiB. So small blocks that are adjacent in host memory cross as one copy, and are gathered or spread on the
//! device through a scratch buffer. Imported memory can only be copied on the device, so copies between it and the
//! host use the scratch buffer too, whatever their size.
//!
//! ```text
//! device  [a]   [c]  [b]          to the host: three copies on the device, one across
//!           ╲    │   ╱
//! scratch   [a][b][c]
//! host      [a][b][c]
//! ```

use crate::device::Piece;

/// Blocks of at least this size are copied singly.
const GATHER_BELOW: u64 = 2 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    ToDevice,
    ToHost,
}

/// The device's own buffer. Copies run in order, so each use of it may begin at its start.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    pub address: u64,
    pub length: u64,
}

/// A copy that begins after the step before it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStep {
    Across(Piece),
    OnDevice(Piece),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Copies directly across, in any order.
    pub direct: Vec<Piece>,
    pub steps: Vec<CopyStep>,
}

/// A part of a piece, with its addresses by side.
#[derive(Clone, Copy)]
struct PiecePart {
    host: u64,
    device: u64,
    length: u64,
}

/// Parts that are adjacent in host memory and together fit into the scratch buffer.
#[derive(Default)]
struct Run {
    parts: Vec<PiecePart>,
    length: u64,
    has_imported: bool,
}

pub fn plan(across: Across, pieces: &[Piece], scratch: Scratch, is_imported: impl Fn(u64) -> bool) -> Plan {
    let (mut plan, mut run) = (Plan::default(), Run::default());
    for piece in pieces.iter().filter(|piece| piece.length > 0) {
        let (host, device) = match across {
            Across::ToDevice => (piece.from, piece.to),
            Across::ToHost => (piece.to, piece.from),
        };
        let imported = is_imported(device);
        if !imported && piece.length >= GATHER_BELOW {
            plan.direct.push(*piece);
            continue;
        }
        let mut done = 0;
        while done < piece.length {
            let length = scratch.length.min(piece.length - done);
            let part = PiecePart { host: host + done, device: device + done, length };
            if !run.takes(part, scratch.length) {
                run.finish(across, scratch, &mut plan);
            }
            run.parts.push(part);
            run.length += length;
            run.has_imported |= imported;
            done += length;
        }
    }
    run.finish(across, scratch, &mut plan);
    plan
}

impl Run {
    fn takes(&self, part: PiecePart, room: u64) -> bool {
        let adjacent = self.parts.last().is_none_or(|last| last.host + last.length == part.host);
        adjacent && self.length + part.length <= room
    }

    /// Adds the copies of this run to the plan, and begins a new run.
    fn finish(&mut self, across: Across, scratch: Scratch, plan: &mut Plan) {
        let run = std::mem::take(self);
        let Some(first) = run.parts.first() else { return };
        if run.parts.len() == 1 && !run.has_imported {
            plan.direct.push(piece(across, first.host, first.device, first.length));
            return;
        }
        let whole = CopyStep::Across(piece(across, first.host, scratch.address, run.length));
        if across == Across::ToDevice {
            plan.steps.push(whole);
        }
        let mut place = scratch.address;
        for part in &run.parts {
            plan.steps.push(CopyStep::OnDevice(piece(across, place, part.device, part.length)));
            place += part.length;
        }
        if across == Across::ToHost {
            plan.steps.push(whole);
        }
    }
}

fn piece(across: Across, host: u64, device: u64, length: u64) -> Piece {
    match across {
        Across::ToDevice => Piece { to: device, from: host, length },
        Across::ToHost => Piece { to: host, from: device, length },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const SCRATCH: Scratch = Scratch { address: 0x5000_0000, length: 4 * MIB };
    const HOST: u64 = 0x1000_0000;
    const DEVICE: u64 = 0x2000_0000;
    const IMPORTED: u64 = 0x9000_0000;

    fn is_imported(address: u64) -> bool {
        address >= IMPORTED
    }

    fn made(across: Across, host: u64, device: u64, length: u64) -> Piece {
        piece(across, host, device, length)
    }

    #[test]
    fn small_neighbours_go_across_as_one() {
        for across in [Across::ToDevice, Across::ToHost] {
            let pieces = [
                made(across, HOST, DEVICE + MIB, 4 * KIB + 1),
                made(across, HOST + 4 * KIB + 1, DEVICE, 8 * KIB),
            ];
            let plan = plan(across, &pieces, SCRATCH, is_imported);
            let whole = CopyStep::Across(made(across, HOST, SCRATCH.address, 12 * KIB + 1));
            let first = CopyStep::OnDevice(made(across, SCRATCH.address, DEVICE + MIB, 4 * KIB + 1));
            let second = CopyStep::OnDevice(made(across, SCRATCH.address + 4 * KIB + 1, DEVICE, 8 * KIB));
            let expected = match across {
                Across::ToDevice => vec![whole, first, second],
                Across::ToHost => vec![first, second, whole],
            };
            assert_eq!(plan, Plan { direct: vec![], steps: expected });
        }
    }

    #[test]
    fn large_ones_and_lone_ones_go_straight() {
        let at = |host, length| made(Across::ToHost, host, DEVICE, length);
        let large = [at(HOST, 2 * MIB), at(HOST + 2 * MIB, 2 * MIB)];
        assert_eq!(plan(Across::ToHost, &large, SCRATCH, is_imported).direct, large);
        // A gap of a byte separates two blocks.
        let lone = [at(HOST, KIB), at(HOST + KIB + 1, KIB)];
        let found = plan(Across::ToHost, &lone, SCRATCH, is_imported);
        assert_eq!(found, Plan { direct: lone.to_vec(), steps: vec![] });
        // A block below the threshold is gathered with its neighbour; a block at the threshold is not.
        let mixed = [at(HOST, 2 * MIB - 1), at(HOST + 2 * MIB - 1, KIB)];
        assert_eq!(plan(Across::ToHost, &mixed, SCRATCH, is_imported).direct, []);
    }

    #[test]
    fn a_run_ends_where_the_scratch_buffer_does() {
        let blocks: Vec<Piece> =
            (0..5).map(|at| made(Across::ToHost, HOST + at * MIB, DEVICE + at * 2 * MIB, MIB)).collect();
        let found = plan(Across::ToHost, &blocks, SCRATCH, is_imported);
        let across = |step: &&CopyStep| matches!(step, CopyStep::Across(_));
        assert_eq!(found.steps.iter().filter(across).count(), 1);
        assert_eq!(found.direct, [blocks[4]]);
    }

    #[test]
    fn imported_memory_never_goes_across() {
        let one = [made(Across::ToDevice, HOST, IMPORTED, 9 * MIB)];
        let found = plan(Across::ToDevice, &one, SCRATCH, is_imported);
        let part = |at: u64, length| {
            let place = SCRATCH.address;
            let whole = made(Across::ToDevice, HOST + at, place, length);
            [
                CopyStep::Across(whole),
                CopyStep::OnDevice(made(Across::ToDevice, place, IMPORTED + at, length)),
            ]
        };
        let steps = [part(0, 4 * MIB), part(4 * MIB, 4 * MIB), part(8 * MIB, MIB)].concat();
        assert_eq!(found, Plan { direct: vec![], steps });
    }

    #[test]
    fn nothing_is_no_copy() {
        let none = [made(Across::ToHost, HOST, DEVICE, 0)];
        assert_eq!(plan(Across::ToHost, &none, SCRATCH, is_imported), Plan::default());
        assert_eq!(plan(Across::ToHost, &[], SCRATCH, is_imported), Plan::default());
    }
}
