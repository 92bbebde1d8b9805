//! A list of work requests that `Qp::post` posts in one call. `Chain::new` allocates all memory and sets all links;
//! adding a request sets only the fields that differ.
//!
//! ```text
//! entries:   [ wr | sge ]→[ wr | sge ]→[ wr | sge ]→[ wr | sge ]→null
//!               └──↑         └──↑         └──↑   cut here while 3 are posted, then mended
//! ```

use rdma_mummy_sys as ffi;
use std::ptr::{addr_of_mut, NonNull};

/// A work request, and the one piece of local memory that it uses.
#[repr(C)]
struct Entry {
    wr: ffi::ibv_send_wr,
    sge: ffi::ibv_sge,
}

/// Up to `capacity` requests. Adding a request is safe: nothing dereferences its addresses before `Qp::post`.
pub struct Chain {
    /// A boxed slice of `capacity` entries; by pointer, because they point to each other.
    first: NonNull<Entry>,
    capacity: usize,
    length: usize,
}

// SAFETY: a chain owns its entries, and nothing else points to them.
unsafe impl Send for Chain {}
// SAFETY: shared references give out only numbers.
unsafe impl Sync for Chain {}

/// The fields that all requests have.
struct WorkRequest {
    id: u64,
    local: u64,
    lkey: u32,
    length: u32,
    flags: u32,
}

const INLINE: u32 = ffi::ibv_send_flags::IBV_SEND_INLINE.0;
const SIGNALED: u32 = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;

impl Chain {
    pub fn new(capacity: usize) -> Chain {
        // SAFETY: numbers and pointers; all-zero is a valid value of each.
        let entries: Box<[Entry]> = (0..capacity).map(|_| unsafe { std::mem::zeroed() }).collect();
        // SAFETY: a box is not null.
        let first = unsafe { NonNull::new_unchecked(Box::into_raw(entries).cast::<Entry>()) };
        let chain = Chain { first, capacity, length: 0 };
        for index in 0..capacity {
            chain.link(index);
            let entry = chain.entry(index);
            // SAFETY: `entry` is inside the box, and nobody else looks at it yet.
            unsafe { (*entry).wr.sg_list = addr_of_mut!((*entry).sge) };
        }
        chain
    }

    /// Removes all requests.
    #[inline]
    pub fn clear(&mut self) {
        self.length = 0;
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds an RDMA WRITE from `local` to `remote`. Inline: posting copies the bytes, and no key is needed; only up to
    /// `Qp::inline_bytes`. Panics, like the other methods, if the chain is full.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub fn write(
        &mut self,
        id: u64,
        local: u64,
        lkey: u32,
        remote: u64,
        rkey: u32,
        length: u32,
        inline: bool,
    ) {
        let request = WorkRequest { id, local, lkey, length, flags: if inline { INLINE } else { 0 } };
        self.push(request, ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE, Some((remote, rkey)));
    }

    /// Adds an RDMA READ from `remote` to `local`.
    #[inline]
    pub fn read(&mut self, id: u64, local: u64, lkey: u32, remote: u64, rkey: u32, length: u32) {
        let request = WorkRequest { id, local, lkey, length, flags: 0 };
        self.push(request, ffi::ibv_wr_opcode::IBV_WR_RDMA_READ, Some((remote, rkey)));
    }

    /// Adds a SEND, which takes the next receive of the peer's SRQ.
    #[inline]
    pub fn send(&mut self, id: u64, local: u64, lkey: u32, length: u32, inline: bool) {
        let request = WorkRequest { id, local, lkey, length, flags: if inline { INLINE } else { 0 } };
        self.push(request, ffi::ibv_wr_opcode::IBV_WR_SEND, None);
    }

    /// Makes the last request signalled; panics if there is none. Other requests complete only if they fail.
    #[inline]
    pub fn signal_last(&mut self) {
        assert!(self.length > 0, "no request to signal");
        // SAFETY: an entry of the box, to which `&mut self` is the only way.
        unsafe { (*self.entry(self.length - 1)).wr.send_flags |= SIGNALED };
    }

    #[inline(always)]
    fn push(&mut self, request: WorkRequest, opcode: u32, remote: Option<(u64, u32)>) {
        assert!(self.length < self.capacity, "the chain is full");
        // SAFETY: an entry of the box (checked above), to which `&mut self` is the only way.
        let entry = unsafe { &mut *self.entry(self.length) };
        entry.wr.wr_id = request.id;
        entry.wr.opcode = opcode;
        entry.wr.send_flags = request.flags;
        // No bytes means no piece: some devices take a length of 0 for 2 GiB.
        entry.wr.num_sge = libc::c_int::from(request.length != 0);
        if let Some((address, rkey)) = remote {
            entry.wr.wr.rdma = ffi::rdma_t { remote_addr: address, rkey };
        }
        entry.sge = ffi::ibv_sge { addr: request.local, length: request.length, lkey: request.lkey };
        self.length += 1;
    }

    /// Returns the address of an entry. It may be dereferenced only below the capacity.
    #[inline(always)]
    fn entry(&self, index: usize) -> *mut Entry {
        self.first.as_ptr().wrapping_add(index)
    }

    /// Links the entry to the next one, if there is one.
    #[inline]
    fn link(&self, index: usize) {
        let next = if index + 1 < self.capacity { self.entry(index + 1) } else { std::ptr::null_mut() };
        // SAFETY: the callers name an entry of the box, and are the only ones at it.
        unsafe { (*self.entry(index)).wr.next = next.cast() };
    }

    /// Calls `post` with a list of exactly the chain's requests. Returns None if the chain is empty.
    #[inline]
    pub(super) fn with_list<T>(&mut self, post: impl FnOnce(*mut ffi::ibv_send_wr) -> T) -> Option<T> {
        let last = self.length.checked_sub(1)?;
        // SAFETY: an entry of the box, to which `&mut self` is the only way.
        unsafe { (*self.entry(last)).wr.next = std::ptr::null_mut() };
        let result = post(self.first.as_ptr().cast());
        self.link(last);
        Some(result)
    }

    /// Returns the index of a request of this chain.
    pub(super) fn index_of(&self, wr: *const ffi::ibv_send_wr) -> usize {
        (wr as usize - self.first.as_ptr() as usize) / size_of::<Entry>()
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        let entries = std::ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.capacity);
        // SAFETY: from `Box::into_raw` in `new`, with this length; drivers keep no pointer to a request.
        drop(unsafe { Box::from_raw(entries) });
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chain({} of {})", self.length, self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ffi::ibv_wr_opcode as opcode;

    /// Returns the ids that `post` would get.
    fn ids(chain: &mut Chain) -> Vec<u64> {
        let list = |first: *mut ffi::ibv_send_wr| {
            let (mut ids, mut next) = (Vec::new(), first);
            while !next.is_null() {
                // SAFETY: a list of the chain, which is being lent out.
                let wr = unsafe { &*next };
                ids.push(wr.wr_id);
                next = wr.next;
            }
            ids
        };
        chain.with_list(list).unwrap_or_default()
    }

    fn entries(chain: &Chain) -> &[Entry] {
        // SAFETY: inside the box; the borrow keeps others away.
        unsafe { std::slice::from_raw_parts(chain.first.as_ptr(), chain.length) }
    }

    #[test]
    fn lists_end_where_the_chain_does() {
        let mut chain = Chain::new(4);
        assert!(chain.is_empty() && ids(&mut chain).is_empty());
        // Each length after a different one, so that links must be restored.
        for length in [1, 4, 2, 3, 4, 1, 4] {
            chain.clear();
            for id in 0..length {
                chain.send(id, 0, 0, 8, false);
            }
            assert_eq!(chain.len() as u64, length);
            assert_eq!(ids(&mut chain), (0..length).collect::<Vec<_>>());
        }
        assert_eq!(ids(&mut Chain::new(0)), []);
    }

    #[test]
    fn requests_are_what_was_asked() {
        let mut chain = Chain::new(4);
        // Twice, so that leftovers of the first round would show.
        for _ in 0..2 {
            chain.clear();
            chain.write(1, 0x1000, 10, 0x2000, 20, 300, true);
            chain.read(2, 0x1001, 11, 0x2001, 21, 301);
            chain.write(3, 0x1002, 12, 0x2002, 22, 0, false);
            chain.signal_last();
            chain.send(4, 0x1003, 13, 303, false);
            let all = entries(&chain);
            let wr = |index: usize| &all[index].wr;
            let opcodes: Vec<_> = all.iter().map(|entry| entry.wr.opcode).collect();
            let expected = [
                opcode::IBV_WR_RDMA_WRITE,
                opcode::IBV_WR_RDMA_READ,
                opcode::IBV_WR_RDMA_WRITE,
                opcode::IBV_WR_SEND,
            ];
            assert_eq!(opcodes, expected);
            let flags: Vec<_> = all.iter().map(|entry| entry.wr.send_flags).collect();
            assert_eq!(flags, [INLINE, 0, SIGNALED, 0]);
            let pieces: Vec<_> = all.iter().map(|entry| entry.wr.num_sge).collect();
            assert_eq!(pieces, [1, 1, 0, 1]);
            for (index, entry) in all.iter().enumerate() {
                let at = index as u64;
                assert_eq!(entry.wr.sg_list.cast_const(), &raw const entry.sge);
                assert_eq!((entry.sge.addr, u64::from(entry.sge.lkey)), (0x1000 + at, 10 + at));
                assert_eq!(chain.index_of(&entry.wr), index);
            }
            for index in 0..3 {
                // SAFETY: bytes of a union whose fields are all numbers.
                let rdma = unsafe { wr(index).wr.rdma };
                let at = index as u64;
                assert_eq!((rdma.remote_addr, u64::from(rdma.rkey)), (0x2000 + at, 20 + at));
            }
        }
    }

    #[test]
    #[should_panic(expected = "full")]
    fn a_full_chain_takes_no_more() {
        let mut chain = Chain::new(1);
        chain.send(1, 0, 0, 0, false);
        chain.send(2, 0, 0, 0, false);
    }

    #[test]
    #[should_panic(expected = "no request")]
    fn an_empty_chain_has_no_last_request() {
        Chain::new(1).signal_last();
    }
}
