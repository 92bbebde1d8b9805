//! The sizes of an endpoint's queues. When a queue pair fails, each of its work requests completes, signalled or not.
//! So the completion queue has room for all that the endpoint's queue pairs hold: a queue that overruns breaks them
//! all.

/// Chains in flight on one queue pair: while one completes, the others keep the device busy.
pub const CHAINS_MAX: u32 = 4;
/// Work requests of one chain: on the express queue pair, and on a bulk queue pair.
const EXPRESS_WRS: u32 = 64;
const BULK_WRS: u32 = 257;
/// Room for completions besides those of work requests.
const SPARE: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bulk queue pairs: as many as were asked for, or fewer on a device with small completion queues.
    pub bulk_qps: u32,
    express_wrs: u32,
    bulk_wrs: u32,
}

impl Room {
    /// `qp_wr_max` and `cqe_max` are the device's limits.
    pub fn new(qps: u32, qp_wr_max: u32, cqe_max: u32) -> Room {
        let room = cqe_max.saturating_sub(SPARE);
        let express_wrs = (CHAINS_MAX * EXPRESS_WRS).min(qp_wr_max).min(room / 4);
        let (room, bulk_wrs) = (room - express_wrs, (CHAINS_MAX * BULK_WRS).min(qp_wr_max));
        let bulk_qps = (room / bulk_wrs.max(1)).clamp(1, qps);
        Room { bulk_qps, express_wrs, bulk_wrs: bulk_wrs.min(room / bulk_qps) }
    }

    /// Returns the work requests that this queue pair takes; the first is the express one.
    pub fn wrs(&self, qp: u32) -> u32 {
        if qp == 0 {
            self.express_wrs
        } else {
            self.bulk_wrs
        }
    }

    /// Returns the entries of the completion queue.
    pub fn entries(&self) -> u32 {
        (0..=self.bulk_qps).map(|qp| self.wrs(qp)).sum::<u32>() + SPARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::QPS_MAX;

    #[test]
    fn the_completion_queue_has_room_for_all_that_a_flush_completes() {
        let all = Room::new(QPS_MAX, 32_768, 4_194_303);
        assert_eq!((all.bulk_qps, all.wrs(0), all.wrs(1)), (QPS_MAX, 256, 1028));
        for cqe_max in [128, 256, 1024, 4096, all.entries() - 1, all.entries(), 32_767] {
            for qp_wr_max in [16, 351, 1024, 16_384] {
                for qps in [1, 2, QPS_MAX] {
                    let room = Room::new(qps, qp_wr_max, cqe_max);
                    let held: u32 = (0..=room.bulk_qps).map(|qp| room.wrs(qp)).sum();
                    assert!(
                        held < room.entries() && room.entries() <= cqe_max,
                        "{room:?} of {qp_wr_max}, {cqe_max}"
                    );
                    assert!((1..=qps).contains(&room.bulk_qps) && room.wrs(1) <= qp_wr_max);
                    assert!(
                        room.wrs(0) >= CHAINS_MAX && room.wrs(1) >= CHAINS_MAX,
                        "{room:?} of {qp_wr_max}, {cqe_max}"
                    );
                }
            }
        }
        assert_eq!(Room::new(QPS_MAX, 32_768, all.entries()), all);
        assert_eq!(Room::new(QPS_MAX, 32_768, all.entries() - 1).bulk_qps, QPS_MAX - 1);
    }
}
