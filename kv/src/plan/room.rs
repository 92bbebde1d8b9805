//! Lists as long as a peer or the application says: NO_MEMORY instead of the end of the process. Below `blocks`,
//! `tokens` and `lower`. Not so what has small nodes, such as the map of the kinds of runs (`tokens`).

use std::fmt::Display;

use ferry::status::{Error, Result};
use ferry::Status;

/// Reserves room for exactly `additional` more items. `what` names them in the error.
pub(super) fn reserve<T>(list: &mut Vec<T>, additional: usize, what: impl Display) -> Result<()> {
    list.try_reserve_exact(additional).map_err(|_| lacking(list.len().saturating_add(additional), what))
}

/// Appends an item.
pub(super) fn push<T>(list: &mut Vec<T>, item: T, what: impl Display) -> Result<()> {
    if list.len() == list.capacity() {
        list.try_reserve(1).map_err(|_| lacking(list.len() + 1, what))?;
    }
    list.push(item);
    Ok(())
}

/// Returns a copy of block ids.
pub(super) fn copy(ids: &[u32], what: impl Display) -> Result<Vec<u32>> {
    let mut copy = Vec::new();
    reserve(&mut copy, ids.len(), what)?;
    copy.extend_from_slice(ids);
    Ok(copy)
}

#[cold]
fn lacking(count: usize, what: impl Display) -> Error {
    Error::new(Status::NoMemory, format!("no memory for {count} {what}"))
}
