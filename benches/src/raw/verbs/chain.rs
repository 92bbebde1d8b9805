//! A list of WRITEs or READs as verbs takes it: work requests that point at each other, made once and aimed
//! anew for each transfer.
//!
//! ```text
//! WRITE ─▶ WRITE ─▶ … ─▶ WRITE ─▶ READ of 8 bytes, signalled      proven visible
//! WRITE ─▶ WRITE ─▶ … ─▶ WRITE, signalled                         acknowledged only
//! ```

use std::mem::MaybeUninit;

use rdma_mummy_sys as verbs;

use crate::workload::Operation;

/// What is read back to prove that everything before it is in place.
pub const FLUSH_BYTES: u32 = 8;

/// What all work requests of a chain have in common.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub operation: Operation,
    pub blocks: usize,
    pub block_bytes: u32,
    pub inline: bool,
    pub lkey: u32,
    /// Of the memory that is flushed to.
    pub flush_lkey: u32,
    pub rkey: u32,
    /// Where `FLUSH_BYTES` are read to, and from where.
    pub flush: Option<(u64, u64)>,
}

/// Stays where it is made: its parts point at each other on the heap.
pub struct Chain {
    requests: Box<[verbs::ibv_send_wr]>,
    pieces: Box<[verbs::ibv_sge]>,
}

impl Chain {
    /// `number` comes back when it is done.
    pub fn new(shape: &Shape, number: u64) -> Chain {
        let count = shape.blocks + usize::from(shape.flush.is_some());
        let piece = verbs::ibv_sge { addr: 0, length: shape.block_bytes, lkey: shape.lkey };
        let mut pieces = vec![piece; count].into_boxed_slice();
        // SAFETY: integers and pointers, for which 0 is none.
        let blank = || unsafe { MaybeUninit::<verbs::ibv_send_wr>::zeroed().assume_init() };
        let mut requests: Box<[_]> = (0..count).map(|_| blank()).collect();
        let flags = if shape.inline { verbs::ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        for (request, piece) in requests.iter_mut().zip(pieces.iter_mut()) {
            request.wr_id = number;
            request.sg_list = piece;
            request.num_sge = 1;
            request.opcode = match shape.operation {
                Operation::Write => verbs::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
                Operation::Read => verbs::ibv_wr_opcode::IBV_WR_RDMA_READ,
            };
            request.send_flags = flags;
            request.wr.rdma = verbs::rdma_t { remote_addr: 0, rkey: shape.rkey };
        }
        if let (Some((to, from)), [.., request], [.., piece]) = (shape.flush, &mut *requests, &mut *pieces) {
            *piece = verbs::ibv_sge { addr: to, length: FLUSH_BYTES, lkey: shape.flush_lkey };
            request.opcode = verbs::ibv_wr_opcode::IBV_WR_RDMA_READ;
            request.send_flags = 0;
            request.wr.rdma = verbs::rdma_t { remote_addr: from, rkey: shape.rkey };
        }
        let mut next = std::ptr::null_mut();
        for request in requests.iter_mut().rev() {
            request.next = next;
            next = request;
        }
        if let Some(last) = requests.last_mut() {
            last.send_flags |= verbs::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        Chain { requests, pieces }
    }

    /// At these addresses here and there, one pair for each block.
    pub fn aim(&mut self, blocks: impl Iterator<Item = (u64, u64)>) {
        for ((request, piece), (here, there)) in self.requests.iter_mut().zip(&mut *self.pieces).zip(blocks) {
            piece.addr = here;
            request.wr.rdma.remote_addr = there;
        }
    }

    pub fn first(&mut self) -> *mut verbs::ibv_send_wr {
        self.requests.as_mut_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a device would find: operation, from here, bytes, to there, flags.
    fn walk(chain: &mut Chain) -> Vec<(u32, u64, u32, u64, u32)> {
        let mut found = Vec::new();
        let mut next = chain.first();
        while !next.is_null() {
            // SAFETY: the chain is alive, and its pointers lead to its own parts.
            let (request, piece) = unsafe { (&*next, &*(*next).sg_list) };
            assert_eq!((request.wr_id, request.num_sge, piece.lkey), (7, 1, 3));
            // SAFETY: every chain is of WRITEs and READs, whose part of the union this is.
            let remote = unsafe { request.wr.rdma };
            assert_eq!(remote.rkey, 4);
            found.push((request.opcode, piece.addr, piece.length, remote.remote_addr, request.send_flags));
            next = request.next;
        }
        found
    }

    #[test]
    fn only_the_last_reports_and_only_writes_are_flushed_and_inline() {
        let (write, read) = (verbs::ibv_wr_opcode::IBV_WR_RDMA_WRITE, verbs::ibv_wr_opcode::IBV_WR_RDMA_READ);
        let shape = Shape {
            operation: Operation::Write,
            blocks: 2,
            block_bytes: 64,
            inline: true,
            lkey: 3,
            flush_lkey: 3,
            rkey: 4,
            flush: Some((1_000, 2_000)),
        };
        let blocks = || [(10, 20), (11, 21)].into_iter();
        let mut chain = Chain::new(&shape, 7);
        chain.aim(blocks());
        let flush = (read, 1_000, FLUSH_BYTES, 2_000, 2);
        assert_eq!(walk(&mut chain), [(write, 10, 64, 20, 8), (write, 11, 64, 21, 8), flush]);
        let mut chain = Chain::new(&Shape { flush: None, inline: false, ..shape }, 7);
        chain.aim(blocks());
        assert_eq!(walk(&mut chain), [(write, 10, 64, 20, 0), (write, 11, 64, 21, 2)]);
        let shape = Shape { operation: Operation::Read, flush: None, inline: false, ..shape };
        let mut chain = Chain::new(&shape, 7);
        chain.aim(blocks());
        assert_eq!(walk(&mut chain), [(read, 10, 64, 20, 0), (read, 11, 64, 21, 2)]);
    }
}
