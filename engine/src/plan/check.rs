//! Validates requests in order, and finds the regions of each. Remembers the last region found on either side, because
//! neighbours in a list mostly share a region. Feeds `coalesce`.

use super::PlanInput;
use crate::handle::{self, Kind};
use crate::region::tree::Place;
use crate::region::{Region, RegionMap, RemoteRegion};
use crate::status::{Error, Result, Status};
use crate::try_reserve::{push, reserve};
use crate::types::{end_of, RegionId, Request};
use std::sync::Arc;

/// In `Home::remote`: the address is in no known region.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// The regions of a valid request.
#[derive(Clone, Copy)]
pub(super) struct Home {
    /// The index of the local region's handle.
    pub local: u32,
    /// The place in the remote map of the region that the request names or, if the request names none, of a region
    /// found at the address; or UNKNOWN.
    pub remote: u32,
}

pub(super) struct Checker<'a> {
    pub(super) input: &'a PlanInput<'a>,
    bytes: u64,
    /// A request was in no remote region that the map knows.
    pub(super) has_unknown: bool,
    local: LocalSide<'a>,
    remote: RemoteSide<'a>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(input: &'a PlanInput<'a>) -> Checker<'a> {
        Checker {
            input,
            bytes: 0,
            has_unknown: false,
            local: LocalSide { map: input.local, last: None, seen: Vec::new(), touched: Vec::new() },
            remote: RemoteSide { input, named: RegionId::NONE, last: None },
        }
    }

    /// Validates request `index`. Called once for each request, in the caller's order, so that an error names the first
    /// bad request.
    #[inline]
    pub(super) fn check(&mut self, index: usize) -> Result<Home> {
        self.try_check(&self.input.requests[index]).map_err(|fault| fault.at(index))
    }

    /// Returns the distinct local regions of the requests, and the sum of all lengths.
    pub(super) fn finish(self) -> (Vec<Arc<Region>>, u64) {
        (self.local.touched, self.bytes)
    }

    #[inline]
    fn try_check(&mut self, request: &Request) -> Result<Home, Fault> {
        let &Request { local, remote, length, remote_region } = request;
        if length == 0 {
            return Err(fault(Status::Invalid, "length is 0"));
        }
        if end_of(local, length).is_none() {
            return Err(fault(Status::Invalid, format!("local {local:#x} + {length} overflows")));
        }
        if end_of(remote, length).is_none() {
            return Err(fault(Status::Invalid, format!("remote {remote:#x} + {length} overflows")));
        }
        let local = self.local.find(local, length)?;
        let remote = self.remote.find(remote_region, remote, length)?;
        self.has_unknown |= remote == UNKNOWN;
        self.bytes = self
            .bytes
            .checked_add(length)
            .ok_or_else(|| fault(Status::Invalid, "length makes the sum of all lengths overflow"))?;
        Ok(Home { local, remote })
    }
}

/// An error without the request's index, which `at` adds. Boxed, so that the result stays small on the path without
/// errors.
struct Fault(Box<Error>);

impl Fault {
    #[cold]
    fn at(self, index: usize) -> Error {
        let Fault(mut error) = self;
        error.message = format!("requests[{index}].{}", error.message);
        error.at_request(index as u64)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault(Box::new(error))
    }
}

/// Makes a fault. `message` continues after "requests[3]." and so begins with the name of a field.
#[cold]
fn fault(status: Status, message: impl Into<String>) -> Fault {
    Error::new(status, message).into()
}

struct LocalSide<'a> {
    map: &'a RegionMap,
    last: Option<(u32, &'a Region)>,
    /// A bit for each index of the map, set if the region is in `touched`. Empty until a second region is found.
    seen: Vec<u64>,
    touched: Vec<Arc<Region>>,
}

impl LocalSide<'_> {
    #[inline]
    fn find(&mut self, local: u64, length: u64) -> Result<u32, Fault> {
        match self.last {
            Some((index, region)) if region.contains(local, length) => Ok(index),
            _ => self.search(local, length),
        }
    }

    fn search(&mut self, local: u64, length: u64) -> Result<u32, Fault> {
        let Some(region) = self.map.find(local, length).filter(|region| !region.is_revoked()) else {
            let message = format!("local {local:#x} + {length} is not inside one registered region");
            return Err(fault(Status::NotRegistered, message));
        };
        let index = region.index();
        if self.note_found(index)? {
            push(&mut self.touched, Arc::clone(region))?;
        }
        self.last = Some((index, region));
        Ok(index)
    }

    /// True if the region with this index was not found before.
    fn note_found(&mut self, index: u32) -> Result<bool> {
        let Some((first, _)) = self.last else { return Ok(true) };
        if self.seen.is_empty() {
            let words = self.map.indexes().div_ceil(64) as usize;
            reserve(&mut self.seen, words)?;
            self.seen.resize(words, 0);
            mark(&mut self.seen, first);
        }
        Ok(mark(&mut self.seen, index))
    }
}

/// Sets a bit; true if the bit was clear.
fn mark(words: &mut [u64], index: u32) -> bool {
    let (word, bit) = (&mut words[index as usize / 64], 1 << (index % 64));
    let clear = *word & bit == 0;
    *word |= bit;
    clear
}

struct RemoteSide<'a> {
    input: &'a PlanInput<'a>,
    /// The `remote_region` for which `last` was looked up; NONE at first, when nothing was looked up.
    named: RegionId,
    /// The region named by `named`, if the map knows it. If `named` is NONE, the region that was last found by address.
    last: Option<(Place, &'a RemoteRegion)>,
}

impl<'a> RemoteSide<'a> {
    /// Returns the place of the request's region, or UNKNOWN.
    #[inline]
    fn find(&mut self, named: RegionId, remote: u64, length: u64) -> Result<u32, Fault> {
        if named != self.named {
            let found = if named == RegionId::NONE { None } else { self.look_up(named)? };
            self.remember(found, remote, length)?;
            self.named = named;
        }
        match self.last {
            Some((place, region)) if region.contains(remote, length) => Ok(place),
            _ => self.outside(remote, length),
        }
    }

    fn look_up(&self, named: RegionId) -> Result<Option<(Place, &'a RemoteRegion)>, Fault> {
        handle::parse(Kind::Region, self.input.remote_tag, named.raw())
            .map_err(|error| fault(error.status, format!("remote_region: {}", error.message)))?;
        Ok(self.input.remote.place_of(named))
    }

    /// Handles a range that is not inside the remembered region, or has no remembered region.
    fn outside(&mut self, remote: u64, length: u64) -> Result<u32, Fault> {
        if self.named == RegionId::NONE {
            let found = self.input.remote.find_place(remote, length);
            self.remember(found, remote, length)?;
            return Ok(found.map_or(UNKNOWN, |(place, _)| place));
        }
        // A named region that the map does not know is newer than the announcements received so far, or is gone: the
        // target decides.
        let Some((_, region)) = self.last else { return Ok(UNKNOWN) };
        let (start, all) = (region.address, region.length);
        let message = format!("remote {remote:#x} + {length} leaves the remote region at {start:#x} + {all}");
        Err(fault(Status::Invalid, message))
    }

    /// Remembers the region, and checks once for all following requests that the region grants the operation.
    fn remember(
        &mut self,
        found: Option<(Place, &'a RemoteRegion)>,
        remote: u64,
        length: u64,
    ) -> Result<(), Fault> {
        self.last = found;
        let op = self.input.op;
        let Some((_, region)) = self.last.filter(|(_, region)| !region.access.allows(op)) else {
            return Ok(());
        };
        let (id, verb) = (region.id, op.name());
        let message =
            format!("remote {remote:#x} + {length} is in region {id:#x}, which does not grant {verb}");
        Err(fault(Status::Access, message))
    }
}
