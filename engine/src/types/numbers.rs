//! Numbers of notifications, as they go over the wire. A number has the channel in its upper 16 bits, and below them
//! the notification's place in the order of that channel. A limit is also such a number: the first one that is not
//! granted.

const PLACE_BITS: u32 = 48;

/// Returns the number of this place in the channel's order.
pub fn number(channel: u16, place: u64) -> u64 {
    u64::from(channel) << PLACE_BITS | place
}

pub fn channel_of(number: u64) -> u16 {
    (number >> PLACE_BITS) as u16
}

pub fn place_of(number: u64) -> u64 {
    number & ((1 << PLACE_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_its_channel_and_its_place() {
        for (channel, place) in [(0, 0), (0, (1 << PLACE_BITS) - 1), (7, 9), (u16::MAX, 1)] {
            let number = number(channel, place);
            assert_eq!((channel_of(number), place_of(number)), (channel, place));
        }
    }
}
