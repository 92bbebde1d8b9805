//! The order in which several engines are measured, round after round.

/// Rotates by one each round, and reverses every other time, so that no engine always follows the same one.
pub fn order(round: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..count).map(|place| (place + round) % count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_rotates_and_turns_around() {
        assert_eq!(order(0, 4), [0, 1, 2, 3]);
        assert_eq!(order(1, 4), [0, 3, 2, 1]);
        assert_eq!(order(2, 4), [2, 3, 0, 1]);
        for round in 0..9 {
            let mut all = order(round, 5);
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4]);
        }
    }
}
