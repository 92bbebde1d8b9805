//! The memory that ferry_memory_alloc returned, by region. The engine keeps it, because C has no destructor
//! that unmaps memory.

use crate::handles::ferry_region;
use engine::status::Result;
use engine::{Error, Memory, Status};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The lock is held for look-ups only, never while a call waits for a region's last user.
#[derive(Default)]
pub struct Allocations(Mutex<HashMap<ferry_region, Allocation>>);

enum Allocation {
    Held(Memory),
    /// A call is freeing this memory; the entry becomes `Held` again if the call fails.
    Freeing,
}

impl Allocations {
    fn lock(&self) -> MutexGuard<'_, HashMap<ferry_region, Allocation>> {
        // No code panics between two changes of the map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has(&self, region: ferry_region) -> bool {
        self.lock().contains_key(&region)
    }

    pub fn add(&self, memory: Memory) -> Result<()> {
        let mut map = self.lock();
        map.try_reserve(1)
            .map_err(|_| Error::new(Status::NoMemory, "no memory for the record of the allocation"))?;
        map.insert(memory.region().raw(), Allocation::Held(memory));
        Ok(())
    }

    /// Unregisters and unmaps the memory. Returns false if the region has none here; BUSY while another call
    /// frees it.
    pub fn free(&self, region: ferry_region, timeout: Option<Duration>) -> Result<bool> {
        let Some(memory) = self.take(region)? else { return Ok(false) };
        let outcome = memory.free(timeout);
        let mut map = self.lock();
        match outcome {
            Ok(()) => {
                map.remove(&region);
                Ok(true)
            }
            Err((memory, error)) => {
                map.insert(region, Allocation::Held(memory));
                Err(error)
            }
        }
    }

    fn take(&self, region: ferry_region) -> Result<Option<Memory>> {
        let mut map = self.lock();
        let Some(entry) = map.get_mut(&region) else { return Ok(None) };
        match std::mem::replace(entry, Allocation::Freeing) {
            Allocation::Held(memory) => Ok(Some(memory)),
            Allocation::Freeing => Err(Error::new(Status::Busy, "another call is freeing this memory")),
        }
    }
}
