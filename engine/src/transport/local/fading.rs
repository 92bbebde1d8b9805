//! Paths that are over while their processes still copied here, or had memory of a device mapped: they are looked at
//! until nothing of them is left.

use super::link::LocalLink;
use super::service::{Paths, Service};
use crate::command::Command;
use crate::region::grants::Tally;
use crate::sys::clock;
use std::sync::Arc;

pub struct Fading {
    pub peer: u64,
    pub tally: Arc<Tally>,
    pub link: Option<Arc<LocalLink>>,
    /// It copies nothing any more.
    pub quiet: bool,
}

impl Service {
    /// Whether nothing of this process is left here.
    pub(super) fn is_over(&self, fading: &mut Fading) -> bool {
        if fading.link.as_ref().is_some_and(|link| link.copier().process.has_ended(clock::monotonic_ns())) {
            self.grants.bury(&fading.tally);
        }
        fading.quiet = self.grants.is_quiet(&fading.tally);
        self.grants.forget(&fading.tally)
    }

    /// Forgets the paths on which nothing moves any more.
    pub(super) fn let_go(&self, paths: &mut Paths) {
        let mut changed = Vec::new();
        paths.fading.retain_mut(|fading| {
            let before = fading.quiet;
            let over = self.is_over(fading);
            if !before && fading.quiet {
                changed.push(fading.peer);
            }
            !over
        });
        for peer in changed {
            if !paths.fades(peer) {
                self.commands.push(Command::CompanionQuiet { peer });
            }
        }
    }
}

impl Paths {
    /// Whether something of this peer still copies here.
    pub fn fades(&self, peer: u64) -> bool {
        self.fading.iter().any(|it| it.peer == peer && !it.quiet)
    }
}
