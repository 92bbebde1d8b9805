//! Checks the order of a peer's messages on a control connection. `machine` checks that answers are expected. A peer
//! that violates the order is authenticated, so it is malicious or broken: its session ends, because connecting again
//! would not help.

use super::message::Message;
use crate::limits::PEER_REGIONS_MAX;

#[derive(Debug, Default)]
pub struct Order {
    /// True when the peer has said Ready.
    is_ready: bool,
    /// The number of regions that the peer has announced and not removed.
    regions: usize,
}

impl Order {
    /// Notes a message. Returns false if the message must not come now.
    pub fn takes(&mut self, message: &Message) -> bool {
        match message {
            Message::Ready { .. } => !std::mem::replace(&mut self.is_ready, true),
            Message::RegionsAdd(regions) => {
                self.regions += regions.len();
                self.regions <= PEER_REGIONS_MAX
            }
            Message::RegionsRemove(ids) => {
                self.regions = self.regions.saturating_sub(ids.len());
                true
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REGIONS_PER_MESSAGE;
    use crate::region::remote::RemoteRegion;
    use crate::types::{Access, Location, RegionId};

    #[test]
    fn ready_is_said_once() {
        let mut order = Order::default();
        assert!(order.takes(&Message::Ready { notify_limit: 7 }));
        assert!(order.takes(&Message::Grant { limit: 6 }), "grants may overtake one another");
        assert!(!order.takes(&Message::Ready { notify_limit: 7 }));
    }

    #[test]
    fn as_many_regions_as_an_engine_can_have_and_no_more() {
        let region = RemoteRegion {
            id: RegionId::from_raw(1),
            order: 1,
            address: 0,
            length: 1,
            access: Access::BOTH,
            name: String::new(),
            location: Location::HOST,
            staging: false,
        };
        let full = Message::RegionsAdd(vec![region.clone(); REGIONS_PER_MESSAGE]);
        let mut order = Order::default();
        assert!((0..PEER_REGIONS_MAX / REGIONS_PER_MESSAGE).all(|_| order.takes(&full)));
        assert!(order.takes(&Message::RegionsRemove(vec![RegionId::from_raw(1)])));
        assert!(order.takes(&Message::RegionsAdd(vec![region.clone()])));
        assert!(!order.takes(&Message::RegionsAdd(vec![region])));
    }
}
