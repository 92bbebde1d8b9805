//! Where rounds are played: on hosts that are network namespaces, or on those of the virtual machine with RDMA devices;
//! and the times that fit the place.

use crate::devices::{self, Devices};
use crate::network::{self, Namespaces, Network, HOSTS_MAX};
use crate::process::Languages;
use crate::support;
use crate::times::EMULATED;
use std::sync::Arc;
use std::time::Duration;

pub struct Place {
    pub languages: Languages,
    has_rdma: bool,
    pub hosts_max: usize,
    /// Lease and drain of the nodes' settings.
    pub lease: Duration,
    pub drain: Duration,
    /// Scheduling delays may add this to a bound.
    pub slack: Duration,
    /// The storm, its faults and the deadlines take this many times as long.
    pub pace: u32,
    /// Within this time all works again when the faults have ended.
    pub calm: Duration,
}

impl Place {
    pub fn of_namespaces(languages: Languages) -> Place {
        Place {
            languages,
            has_rdma: false,
            hosts_max: HOSTS_MAX,
            lease: Duration::from_millis(support::LEASE_MS),
            drain: Duration::from_millis(50),
            slack: support::SLACK,
            pace: 1,
            calm: Duration::from_secs(20),
        }
    }

    pub fn of_devices(languages: Languages) -> Place {
        Place {
            languages,
            has_rdma: true,
            hosts_max: 2,
            lease: Duration::from_millis(1500),
            drain: Duration::from_millis(100),
            slack: 2 * support::SLACK,
            pace: 5,
            calm: Duration::from_secs(60),
        }
    }

    pub fn network(&self, hosts: usize, seed: u64, tally: Arc<network::Tally>) -> Box<dyn Network> {
        if self.has_rdma {
            Devices.heal();
            return Box::new(Devices);
        }
        Box::new(Namespaces::new(hosts, seed, tally))
    }

    /// Returns the settings of a node, in the words that a node takes.
    pub fn settings(&self, host: usize, address: &str) -> String {
        // Both hosts of the virtual machine are one to the same-host path, which would take every transfer.
        let (paths, times) = if self.has_rdma {
            ([("transports", "rdma,tcp"), ("rdma_devices", devices::RDMA[host])], &EMULATED[..])
        } else {
            ([("transports", "auto"), ("rdma", "false")], &[][..])
        };
        let listen = [("listen_address", address)];
        let words = paths.iter().chain(&listen).chain(&support::QUICK).chain(times);
        words.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }
}
