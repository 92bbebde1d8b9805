//! The options of one end's RDMA devices, in perftest's terms.

use std::fs;

use anyhow::bail;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::Transport;
use crate::workload::Named;

/// The kernel's list of RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";
/// The path MTUs of InfiniBand.
const MTUS: [u32; 5] = [256, 512, 1_024, 2_048, 4_096];
const INLINE_BYTES_MAX: i64 = 1_024;

/// The options of this end; `None` leaves the choice to ferry.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaOptions {
    /// RDMA devices of this end, separated by commas [default: all with an active port]
    #[arg(short = 'd', long = "ib-dev", value_parser = parse_devices)]
    pub devices: Option<String>,
    /// Index of each device port's GID [default: RoCEv2, IPv4 first]
    #[arg(short = 'x', long = "gid-index", value_parser = clap::value_parser!(u32).range(0..=255))]
    pub gid_index: Option<u32>,
    /// Path MTU at most, in bytes [default: what the ports have]
    #[arg(short = 'm', long, value_parser = parse_mtu)]
    pub mtu: Option<u32>,
    /// Up to this size a WRITE is copied into its work request, in bytes
    #[arg(short = 'I', long = "inline_size", alias = "inline-size", value_parser = clap::value_parser!(u32).range(0..=INLINE_BYTES_MAX))]
    pub inline_bytes: Option<u32>,
}

impl RdmaOptions {
    /// Returns the engine's settings that were given, with their values.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let number = |key, value: Option<u32>| value.map(|value| (key, value.to_string()));
        let named = [
            self.devices.clone().map(|devices| ("rdma_devices", devices)),
            number("rdma_gid_index", self.gid_index),
            number("rdma_mtu", self.mtu),
            number("rdma_inline_bytes", self.inline_bytes),
        ];
        named.into_iter().flatten().collect()
    }

    /// Refuses devices that this host does not have: ferry would take another path instead.
    pub fn refuse_missing_devices(&self) -> anyhow::Result<()> {
        let list = fs::read_dir(DEVICES).into_iter().flatten().flatten();
        let there: Vec<_> = list.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
        let mut named = self.devices.as_deref().into_iter().flat_map(|names| names.split(','));
        let missing = named.find(|name| !there.iter().any(|it| it == name));
        let only = if there.is_empty() { "none" } else { &there.join(", ") };
        missing.map_or(Ok(()), |missing| {
            bail!("-d {missing}: this host has no such RDMA device; {DEVICES} has {only}. Without -d ferry chooses")
        })
    }

    /// Refuses options that mean nothing without RDMA, named by the letters that users type.
    pub fn refuse_without_rdma(&self, transport: Transport, acked_only: bool) -> Result<(), String> {
        let given = [
            ("-d", self.devices.is_some()),
            ("-x", self.gid_index.is_some()),
            ("-m", self.mtu.is_some()),
            ("-I", self.inline_bytes.is_some()),
            ("--acked-only", acked_only),
        ];
        match given.iter().find(|option| option.1) {
            Some((option, _)) if !matches!(transport, Transport::Rdma | Transport::Auto) => {
                let name = transport.name();
                Err(format!("{option} is of RDMA, and --transport {name} uses none: name rdma or auto"))
            }
            _ => Ok(()),
        }
    }
}

fn parse_devices(text: &str) -> Result<String, String> {
    if text.split(',').all(|name| !name.is_empty() && !name.contains(char::is_whitespace)) {
        Ok(text.to_owned())
    } else {
        Err("names of devices, separated by commas".to_owned())
    }
}

pub fn parse_mtu(text: &str) -> Result<u32, String> {
    let mtu = text.parse().ok().filter(|mtu| MTUS.contains(mtu));
    mtu.ok_or_else(|| "256, 512, 1024, 2048 or 4096".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct RdmaLine {
        #[command(flatten)]
        rdma: RdmaOptions,
    }

    fn parse_rdma(words: &[String]) -> RdmaOptions {
        let words = std::iter::once("x".to_owned()).chain(words.iter().cloned());
        RdmaLine::try_parse_from(words).expect("a valid line").rdma
    }

    /// Each line with the values that are set, all of which ferry takes.
    #[test]
    fn what_was_said_is_set() {
        let mut config = ferry::Config::new().expect("no FERRY_ variable is wrong");
        for said in [["rva0,rvb0", "1", "1024", "0"], ["rva0", "255", "4096", "1024"]] {
            let words =
                ["-d", "-x", "-m", "-I"].iter().zip(said).flat_map(|(option, value)| [*option, value]);
            let words: Vec<_> = words.map(str::to_owned).collect();
            let keys = ["rdma_devices", "rdma_gid_index", "rdma_mtu", "rdma_inline_bytes"];
            let settings = parse_rdma(&words).settings();
            assert!(settings.iter().map(|(key, value)| (*key, &**value)).eq(keys.into_iter().zip(said)));
            for (key, value) in settings {
                config.set(key, &value).unwrap_or_else(|error| panic!("{key}={value}: {error}"));
            }
        }
        assert!(RdmaOptions::default().settings().is_empty());
    }
}
