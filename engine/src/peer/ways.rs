//! Which ways to the peer there are at this moment: TCP's link, and those of other transports.

use super::link::{Link, Way};
use super::Peer;
use crate::types::Transport;
use std::sync::Arc;

impl Peer {
    pub fn set_link(&self, link: Option<Arc<dyn Link>>) {
        *self.link.write() = link;
    }

    pub fn link(&self) -> Option<Arc<dyn Link>> {
        self.link.read().clone()
    }

    /// The link of a transport, while there is one.
    pub fn link_of(&self, via: Transport) -> Option<Arc<dyn Link>> {
        match via {
            Transport::None | Transport::Tcp => self.link(),
            _ => match &*self.ways[via as usize].read() {
                Way::Open(link, _) => Some(link.clone()),
                Way::Pending(_) | Way::Shut(_) => None,
            },
        }
    }

    /// Whether it is not known yet what becomes of this way.
    pub fn is_pending(&self, via: Transport) -> bool {
        matches!(&*self.ways[via as usize].read(), Way::Pending(_))
    }
}
