//! Announces regions to one peer without a connection, for the fuzz targets. A fuzz target plays the registry, the
//! control loop and the peer.

use super::Announcer;
use crate::control::announce::described;
use crate::region::remote::RemoteRegion;
use crate::region::Registry;
use crate::types::{PeerId, RegionId};

const PEER: PeerId = PeerId::from_raw(1);

/// The log of regions, and what was announced of it to one peer.
#[derive(Default)]
pub struct Announcements(Announcer);

/// One piece of the announcements.
#[derive(Default)]
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
        self.0.begin(PEER, registry.snapshot());
    }

    /// Notes that regions were added, or are gone.
    pub fn note(&mut self, regions: &[RegionId], gone: bool) {
        self.0.note(regions, gone);
    }

    /// Takes the next piece, which is empty if the peer has been told everything.
    pub fn take(&mut self, registry: &Registry) -> Told {
        let Some(piece) = self.0.take(PEER, &registry.snapshot()) else { return Told::default() };
        Told {
            came: piece.came.iter().map(|region| described(region)).collect(),
            has_revoked: piece.came.iter().any(|region| region.is_revoked()),
            gone: piece.gone,
            is_all: piece.is_all,
        }
    }

    /// Forgets the changes that the peer has been told, as the loop does when the log is long.
    pub fn trim(&mut self) {
        self.0.trim_now();
    }

    /// Returns whether the peer has been told everything.
    pub fn is_complete(&self) -> bool {
        self.0.is_up_to_date(PEER)
    }
}
