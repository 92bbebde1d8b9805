//! Seeds that showed a bug of the engine. Each run begins with them.

pub struct Bug {
    pub seed: u64,
    /// The bug that the seed showed before the engine was mended.
    pub showed: &'static str,
}

pub const BUGS: &[Bug] = &[
    Bug {
        seed: 4,
        showed: "RDMA never opened if the acceptor's rdma_qps was smaller than the dialer's: it took the dialer's number as \
                 its own and refused",
    },
    Bug {
        seed: 6921,
        showed: "an endpoint that closed took a queue pair's number away that another endpoint had by then, and the \
                 notifications to that one were dropped: a transfer without a deadline never ended",
    },
    Bug {
        seed: 3315,
        showed: "an ORDERED transfer that was submitted after an earlier one had failed, but before those behind that one \
                 were struck, was DONE",
    },
    Bug {
        seed: 22208,
        showed: "a host crashed after its engine had said that its port was down: transfers by RDMA alone posted nothing, \
                 and nobody asked whether the engine was there",
    },
    Bug {
        seed: 30680,
        showed: "idle RDMA endpoints were given up while the next attempt of another pair was due: the service's thread \
                 looped without a pause",
    },
    Bug { seed: 30753, showed: "as seed 22208" },
    Bug { seed: 12614, showed: "as seed 3315, on the same host" },
    Bug {
        seed: 43,
        showed: "a host crashed between the connect and its first lane: nobody asked whether the peer was still there, \
                 and each later connect waited with the first for ever",
    },
    Bug {
        seed: 661,
        showed: "peer_fence by the handle of a lost session returned OK and fenced nobody, though the same incarnation \
                 had connected anew and wrote",
    },
    Bug { seed: 1743, showed: "as seed 661, with a transfer of many frames" },
    Bug {
        seed: 1131,
        showed: "peer_fence returned OK while a device copied for an earlier session of the same engine, and the device \
                 wrote afterwards",
    },
    Bug {
        seed: 3446,
        showed: "a process without a free descriptor had no shared memory for a slot of staging: transfers of device \
                 memory ended SYSTEM",
    },
    Bug {
        seed: 22353,
        showed: "slots of lost peers that other peers held keys of were given up for good, so no transfer to a device of \
                 that engine was staged any more",
    },
    Bug {
        seed: 24061,
        showed: "a host crashed while a WRITE to a device there waited for a slot: nobody asked whether it was there, and \
                 the transfer never ended",
    },
    Bug {
        seed: 2362397,
        showed: "the stage's thread stood still between reading two clocks: it ended a transfer behind a lease that its \
                 message to the target, computed later, exceeded, and a device there wrote afterwards",
    },
    Bug {
        seed: 3150848,
        showed: "the last copy of a lost peer of the same host ended between two looks at it, nobody was told, and an \
                 engine could not be closed",
    },
    Bug {
        seed: 2471842,
        showed: "the last bytes of a connection that the peer had given up came when its next session stood: they ended \
                 that session, and their Ready confirmed its lanes, which were open",
    },
    Bug {
        seed: 2819521,
        showed: "bytes of a READ's answer that were repeated on the way filled its memory while the target still read: it \
                 was DONE too early",
    },
    Bug {
        seed: 2847037,
        showed: "PEER_LOST did not wait for this process's own copy of what a device's slot had for a READ",
    },
    Bug {
        seed: 9100484,
        showed: "over RDMA a READ was posted with the key of a region that had been registered anew at its address: ACCESS",
    },
    Bug { seed: 60483, showed: "as seed 585" },
    Bug { seed: 61244, showed: "as seed 585" },
];

/// Seeds from here on were first tried when devices and channels of notifications were drawn. Earlier ones must keep
/// the plans with which they showed their bugs.
#[cfg(test)]
const FIRST_WITH_ALL: u64 = 3_000_000;

#[cfg(test)]
const FIRST_WITH_ADDED: u64 = 3_180_000;

/// Returns the seeds from before channels of notifications were drawn.
#[cfg(test)]
pub fn without_channels() -> impl Iterator<Item = u64> {
    BUGS.iter().map(|bug| bug.seed).filter(|seed| *seed < FIRST_WITH_ALL)
}

/// Returns the seeds from before devices were drawn.
#[cfg(test)]
pub fn without_devices() -> impl Iterator<Item = u64> {
    let named = BUGS.iter().filter(|bug| bug.seed < FIRST_WITH_ALL && !bug.showed.contains("device"));
    named.map(|bug| bug.seed)
}

/// Returns the seeds from before processes ran out of memory and stopped inside a receive.
#[cfg(test)]
pub fn without_added_faults() -> impl Iterator<Item = u64> {
    BUGS.iter().map(|bug| bug.seed).filter(|seed| *seed < FIRST_WITH_ADDED)
}
