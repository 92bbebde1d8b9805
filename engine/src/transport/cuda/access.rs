//! The memory that work of one device may touch: its own, that of other devices with peer access, and imported memory.
//! The driver's copy calls refuse a wrong address. A kernel with a wrong address destroys the context, and the
//! program's work with it. So each allocation is checked before a kernel starts.

use super::contexts::Contexts;
use super::locate;
use crate::status::{Error, Result};
use crate::sys::cuda::Context;
use crate::sys::map::HashMap;
use crate::types::MemoryKind;
use std::sync::Arc;

pub struct Reach {
    contexts: Arc<Contexts>,
    /// Other devices, with their context if peer access is possible.
    peers: HashMap<i32, Option<Arc<Context>>>,
    /// Allocations checked for the current batch only: freed memory may become another device's.
    known: Vec<(u64, u64, bool)>,
}

impl Reach {
    pub fn new(contexts: &Arc<Contexts>) -> Reach {
        Reach { contexts: contexts.clone(), peers: HashMap::default(), known: Vec::new() }
    }

    /// Forgets the allocations that were checked for the batch before.
    pub fn begin(&mut self) {
        self.known.clear();
    }

    /// Returns whether a kernel in `context` may touch this range. INVALID if no device owns it.
    pub fn includes(&mut self, context: &Context, address: u64, length: u64) -> Result<bool> {
        let within = |start: u64, end: u64| {
            address >= start && end.checked_sub(address).is_some_and(|room| room >= length)
        };
        if let Some((.., reached)) = self.known.iter().rev().find(|(start, end, _)| within(*start, *end)) {
            return Ok(*reached);
        }
        let found = locate::locate(&self.contexts, address)?;
        let Some(found) = found.filter(|found| within(found.base, found.base.saturating_add(found.length)))
        else {
            let text =
                format!("the {length} bytes at {address:#x} are not, or no longer, memory of a CUDA device");
            return Err(Error::invalid(text));
        };
        let reached = match found.location.kind {
            MemoryKind::Managed => true,
            // Registered memory may have another address on the device.
            MemoryKind::Pinned => false,
            _ => found.location.device == context.ordinal || self.peer(context, found.location.device)?,
        };
        self.known.push((found.base, found.base.saturating_add(found.length), reached));
        Ok(reached)
    }

    fn peer(&mut self, context: &Context, device: i32) -> Result<bool> {
        if let Some(peer) = self.peers.get(&device) {
            return Ok(peer.is_some());
        }
        let peer = self.contexts.get(device)?;
        let can = context.enable_peer(&peer)?;
        self.peers.insert(device, can.then_some(peer));
        Ok(can)
    }
}
