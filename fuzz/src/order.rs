//! The order of a peer's messages on a control connection: Ready once, and no more regions than an engine may have.

use crate::message::Draft;
use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::region::RemoteRegion;
use ferry::internals::session::message::Message;
use ferry::internals::session::order::Order;
use ferry::limits::{PEER_REGIONS_MAX, REGIONS_PER_MESSAGE};
use ferry::types::{Access, Location, RegionId};

#[derive(Arbitrary, Debug)]
enum Step {
    Message(Draft),
    /// So many full messages of regions.
    Flood(u16, u8),
    Remove(u8),
}

pub fn run(data: &[u8]) {
    let Ok(steps) = Vec::<Step>::arbitrary(&mut Unstructured::new(data)) else { return };
    let (mut order, mut said_ready, mut known) = (Order::default(), false, 0usize);
    for step in steps {
        let (message, times) = match step {
            Step::Message(draft) => (draft.message(), 1),
            Step::Flood(times, size) => (announcement(usize::from(size) + 1), usize::from(times) % 4200),
            Step::Remove(count) => (Message::RegionsRemove(vec![RegionId::from_raw(1); count.into()]), 1),
        };
        for _ in 0..times {
            let taken = order.takes(&message);
            let expected = match &message {
                Message::Ready { .. } => !std::mem::replace(&mut said_ready, true),
                Message::RegionsAdd(regions) => {
                    known += regions.len();
                    known <= PEER_REGIONS_MAX
                }
                Message::RegionsRemove(ids) => {
                    known = known.saturating_sub(ids.len());
                    true
                }
                _ => true,
            };
            assert_eq!(taken, expected, "{known} regions");
            if !taken {
                return; // the session ends
            }
        }
    }
}

fn announcement(count: usize) -> Message {
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
    Message::RegionsAdd(vec![region; count.min(REGIONS_PER_MESSAGE)])
}
