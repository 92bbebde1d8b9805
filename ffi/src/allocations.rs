//! The memory that ferry_memory_alloc returned, by region. The engine keeps it, because C has no destructor
//! that unmaps memory.

use crate::handles::ferry_region;
use engine::status::Result;
use engine::{Error, Memory, Status};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type Map = HashMap<ferry_region, Allocation>;

#[derive(Default)]
pub struct Allocations {
    /// Locked for look-ups only, never while a call waits for a region's last user.
    map: Mutex<Map>,
    /// Notified when an entry is no longer `Freeing`.
    freed: Condvar,
}

enum Allocation {
    Held(Memory),
    /// A call is freeing or unregistering this memory; the entry becomes `Held` again unless the memory is freed.
    Freeing,
}

impl Allocations {
    fn lock(&self) -> MutexGuard<'_, Map> {
        // No code panics between two changes of the map.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, memory: Memory) -> Result<()> {
        let mut map = self.lock();
        map.try_reserve(1)
            .map_err(|_| Error::new(Status::NoMemory, "no memory for the record of the allocation"))?;
        map.insert(memory.region().raw(), Allocation::Held(memory));
        Ok(())
    }

    /// Unregisters and unmaps the memory. Returns false if the region has none here, or has none any more after a wait
    /// for another call that freed it. BUSY if that call does not end in time.
    pub fn free(&self, region: ferry_region, timeout: Option<Duration>) -> Result<bool> {
        let Some((memory, left)) = self.take(region, timeout)? else { return Ok(false) };
        let mut turn = Turn { allocations: self, region, kept: None };
        match memory.free(left) {
            Ok(()) => Ok(true),
            Err((memory, error)) => {
                turn.kept = Some(memory);
                Err(error)
            }
        }
    }

    /// Unregisters the memory, which stays mapped until `free`. Returns false as `free` does.
    pub fn unregister(&self, region: ferry_region, timeout: Option<Duration>) -> Result<bool> {
        let Some((memory, left)) = self.take(region, timeout)? else { return Ok(false) };
        let turn = Turn { allocations: self, region, kept: Some(memory) };
        turn.kept.as_ref().map_or(Ok(()), |memory| memory.unregister(left))?;
        Ok(true)
    }

    /// Returns the memory, whose entry is `Freeing` from now on, and what is left of the timeout.
    fn take(
        &self,
        region: ferry_region,
        timeout: Option<Duration>,
    ) -> Result<Option<(Memory, Option<Duration>)>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut left = timeout;
        let mut map = self.lock();
        loop {
            let Some(entry) = map.get_mut(&region) else { return Ok(None) };
            if let Allocation::Held(memory) = std::mem::replace(entry, Allocation::Freeing) {
                return Ok(Some((memory, left)));
            }
            map = match left {
                Some(Duration::ZERO) => {
                    return Err(Error::new(Status::Busy, "another call is freeing this memory"));
                }
                Some(left) => self.freed.wait_timeout(map, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.freed.wait(map).unwrap_or_else(PoisonError::into_inner),
            };
            left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        }
    }
}

/// Ends the time in which one call frees a region's memory, after a panic of that call too: nobody may wait for ever.
struct Turn<'a> {
    allocations: &'a Allocations,
    region: ferry_region,
    /// The memory, if it is still there.
    kept: Option<Memory>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut map = self.allocations.lock();
        match self.kept.take() {
            Some(memory) => map.insert(self.region, Allocation::Held(memory)),
            None => map.remove(&self.region),
        };
        drop(map);
        self.allocations.freed.notify_all();
    }
}
