//! Announces regions to one peer without a connection, for the fuzz targets. A fuzz target plays the registry, the
//! control loop and the peer.

use super::{described, Announced, RegionLog};
use crate::region::remote::RemoteRegion;
use crate::region::Registry;
use crate::types::RegionId;

/// The log of regions, and what was announced of it to one peer.
#[derive(Default)]
pub struct Announcements {
    log: RegionLog,
    announced: Announced,
}

/// One piece of the announcements.
pub struct Told {
    pub came: Vec<RemoteRegion>,
    pub gone: Vec<RegionId>,
    /// Some of `came` are revoked.
    pub has_revoked: bool,
    /// The regions of the connection's beginning are all told.
    pub is_all: bool,
}

impl Announcements {
    /// Begins a connection.
    pub fn begin(&mut self, registry: &Registry) {
        self.announced.begin(registry.snapshot(), self.log.end());
    }

    /// Notes that regions were added, or are gone.
    pub fn note(&mut self, regions: &[RegionId], gone: bool) {
        self.log.push(regions, gone);
    }

    /// Takes the next piece.
    pub fn take(&mut self, registry: &Registry) -> Told {
        let piece = self.announced.take(&self.log, &registry.snapshot());
        Told {
            came: piece.came.iter().map(|region| described(region)).collect(),
            has_revoked: piece.came.iter().any(|region| region.is_revoked()),
            gone: piece.gone,
            is_all: piece.is_all,
        }
    }

    /// Forgets the changes that the peer has been told, as the loop does when the log is long.
    pub fn trim(&mut self) {
        let lowest = self.announced.next.max(self.log.first);
        self.log.changes.drain(..(lowest - self.log.first) as usize);
        self.log.first = lowest;
    }

    /// Returns whether the peer has been told everything.
    pub fn is_complete(&self) -> bool {
        self.announced.is_up_to(self.log.end())
    }
}
