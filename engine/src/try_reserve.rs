//! Allocates lists as long as the caller's requests, or fails with NO_MEMORY: `plan` and `route` must not abort the
//! process because a large transfer was submitted.

use crate::status::{Error, Result, Status};

/// Reserves room for exactly `additional` more items, or fails with NO_MEMORY. For every list as long as the caller's.
pub(crate) fn reserve<T>(list: &mut Vec<T>, additional: usize) -> Result<()> {
    list.try_reserve_exact(additional).map_err(|_| no_memory::<T>(additional))
}

/// Appends an item, growing the list by doubling; NO_MEMORY if that fails.
pub(crate) fn push<T>(list: &mut Vec<T>, item: T) -> Result<()> {
    if list.len() == list.capacity() {
        list.try_reserve(1).map_err(|_| no_memory::<T>(list.len() + 1))?;
    }
    list.push(item);
    Ok(())
}

#[cold]
fn no_memory<T>(count: usize) -> Error {
    let bytes = count.saturating_mul(size_of::<T>());
    Error::new(Status::NoMemory, format!("no memory for {bytes} bytes of the transfer's plan"))
}
