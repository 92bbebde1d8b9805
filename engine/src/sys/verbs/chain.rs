//! Work requests in a row, which `Qp::post` hands over in one call. All memory is from `Chain::new`, and
//! all links are made there: building one sets only what differs from request to request.
//!
//! ```text
//! entries:   [ wr | sge ]→[ wr | sge ]→[ wr | sge ]→[ wr | sge ]→null
//!               └──↑         └──↑         └──↑   cut here while 3 are posted, then mended
//! ```

use rdma_mummy_sys as ffi;
use std::ptr::{addr_of_mut, NonNull};

/// A work request, and the one piece of local memory that it names.
#[repr(C)]
struct Entry {
    wr: ffi::ibv_send_wr,
    sge: ffi::ibv_sge,
}

/// Up to `capacity` requests. Building one is safe: nobody follows the addresses before `Qp::post`.
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

/// What requests have in common.
struct Part {
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

    /// Forgets all requests.
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

    #[inline]
    pub fn is_full(&self) -> bool {
        self.length == self.capacity
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// RDMA WRITE from `local` to `remote`. Inline: the bytes are copied while posting, and no key is
    /// needed; only up to `Qp::inline_bytes`. Panics, like the others, if the chain is full.
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
        let part = Part { id, local, lkey, length, flags: if inline { INLINE } else { 0 } };
        self.push(part, ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE, Some((remote, rkey)), None);
    }

    /// RDMA READ from `remote` to `local`.
    #[inline]
    pub fn read(&mut self, id: u64, local: u64, lkey: u32, remote: u64, rkey: u32, length: u32) {
        let part = Part { id, local, lkey, length, flags: 0 };
        self.push(part, ffi::ibv_wr_opcode::IBV_WR_RDMA_READ, Some((remote, rkey)), None);
    }

    /// SEND, into the next receive of the peer's SRQ.
    #[inline]
    pub fn send(&mut self, id: u64, local: u64, lkey: u32, length: u32, inline: bool) {
        let part = Part { id, local, lkey, length, flags: if inline { INLINE } else { 0 } };
        self.push(part, ffi::ibv_wr_opcode::IBV_WR_SEND, None, None);
    }

    /// As `write`; it also takes a receive from the peer's SRQ, whose completion carries `immediate`.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub fn write_immediate(
        &mut self,
        id: u64,
        local: u64,
        lkey: u32,
        remote: u64,
        rkey: u32,
        length: u32,
        immediate: u32,
        inline: bool,
    ) {
        let part = Part { id, local, lkey, length, flags: if inline { INLINE } else { 0 } };
        let opcode = ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        self.push(part, opcode, Some((remote, rkey)), Some(immediate));
    }

    /// The last request, which there must be, gets a completion. Others get one only if they fail.
    #[inline]
    pub fn signal_last(&mut self) {
        assert!(self.length > 0, "no request to signal");
        // SAFETY: an entry of the box, to which `&mut self` is the only way.
        unsafe { (*self.entry(self.length - 1)).wr.send_flags |= SIGNALED };
    }

    #[inline(always)]
    fn push(&mut self, part: Part, opcode: u32, remote: Option<(u64, u32)>, immediate: Option<u32>) {
        assert!(self.length < self.capacity, "the chain is full");
        // SAFETY: an entry of the box (checked above), to which `&mut self` is the only way.
        let entry = unsafe { &mut *self.entry(self.length) };
        entry.wr.wr_id = part.id;
        entry.wr.opcode = opcode;
        entry.wr.send_flags = part.flags;
        // A piece of no bytes is no piece: some devices take a length of 0 for 2 GiB.
        entry.wr.num_sge = libc::c_int::from(part.length != 0);
        if let Some((address, rkey)) = remote {
            entry.wr.wr.rdma = ffi::rdma_t { remote_addr: address, rkey };
        }
        if let Some(immediate) = immediate {
            entry.wr.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
        }
        entry.sge = ffi::ibv_sge { addr: part.local, length: part.length, lkey: part.lkey };
        self.length += 1;
    }

    /// The address of an entry, which must be below the capacity to be used.
    #[inline(always)]
    fn entry(&self, index: usize) -> *mut Entry {
        self.first.as_ptr().wrapping_add(index)
    }

    /// Makes the entry point to the next one, if there is one.
    #[inline]
    fn link(&self, index: usize) {
        let next = if index + 1 < self.capacity { self.entry(index + 1) } else { std::ptr::null_mut() };
        // SAFETY: the callers name an entry of the box, and are the only ones at it.
        unsafe { (*self.entry(index)).wr.next = next.cast() };
    }

    /// Calls `post` with the first request of a list that ends with the last one. None if it is empty.
    #[inline]
    pub(super) fn with_list<T>(&mut self, post: impl FnOnce(*mut ffi::ibv_send_wr) -> T) -> Option<T> {
        let last = self.length.checked_sub(1)?;
        // SAFETY: an entry of the box, to which `&mut self` is the only way.
        unsafe { (*self.entry(last)).wr.next = std::ptr::null_mut() };
        let result = post(self.first.as_ptr().cast());
        self.link(last);
        Some(result)
    }

    /// Which entry a request of this chain is.
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
