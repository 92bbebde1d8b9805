//! The options of one end, in perftest's terms: the device of its memory, and its RDMA devices.

use clap::Args;
use ferry::types::{Location, MemoryKind};
use serde::{Deserialize, Serialize};

use super::{Named, Transport};

/// The path MTUs of InfiniBand.
const MTUS: [u32; 5] = [256, 512, 1_024, 2_048, 4_096];
const INLINE_BYTES_MAX: i64 = 1_024;

/// The options of this end; without either, the memory is the host's.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOptions {
    /// The memory of this end is that of the CUDA device with this number
    #[arg(long = "use_cuda", alias = "use-cuda", value_name = "N", conflicts_with = "ascend", value_parser = clap::value_parser!(i32).range(0..))]
    pub cuda: Option<i32>,
    /// The memory of this end is that of the Ascend device with this number
    #[arg(long = "use_ascend", alias = "use-ascend", value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub ascend: Option<i32>,
}

impl DeviceOptions {
    pub fn location(self) -> Option<Location> {
        let at = |kind| move |device| Location { kind, device };
        self.cuda.map(at(MemoryKind::Cuda)).or(self.ascend.map(at(MemoryKind::Ascend)))
    }

    /// Returns the option as a word of a command line: none or one.
    pub fn argument(self) -> Option<String> {
        let cuda = self.cuda.map(|device| format!("--use_cuda={device}"));
        cuda.or(self.ascend.map(|device| format!("--use_ascend={device}")))
    }
}

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
    struct Line {
        #[command(flatten)]
        device: DeviceOptions,
    }

    fn parse(words: &[&str]) -> Result<DeviceOptions, String> {
        let line = Line::try_parse_from(std::iter::once(&"x").chain(words));
        line.map(|line| line.device).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_child_is_told_is_what_was_said() {
        for (word, kind, device) in [
            ("--use_cuda=0", MemoryKind::Cuda, 0),
            ("--use-cuda=3", MemoryKind::Cuda, 3),
            ("--use_ascend=7", MemoryKind::Ascend, 7),
            ("--use-ascend=0", MemoryKind::Ascend, 0),
        ] {
            let options = parse(&[word]).expect(word);
            assert_eq!(options.location(), Some(Location { kind, device }));
            let told = options.argument().expect("a device was named");
            assert_eq!(parse(&[&told]), Ok(options));
        }
        let none = parse(&[]).expect("nothing is a valid line");
        assert_eq!((none.location(), none.argument()), (None, None));
    }

    #[test]
    fn wrong_words_name_the_option() {
        for (words, named) in [
            (&["--use_cuda=0", "--use_ascend=0"][..], "--use_ascend"),
            (&["--use_cuda=0", "--use_ascend=0"], "--use_cuda"),
            (&["--use_cuda=-1"], "--use_cuda"),
            (&["--use_ascend=2147483648"], "--use_ascend"),
            (&["--use_ascend=first"], "--use_ascend"),
        ] {
            let text = parse(words).expect_err(named);
            assert!(text.contains(named), "{words:?}: {text}");
        }
    }

    #[derive(Parser)]
    struct RdmaLine {
        #[command(flatten)]
        rdma: RdmaOptions,
    }

    fn parse_rdma(words: &[String]) -> RdmaOptions {
        let words = std::iter::once("x".to_owned()).chain(words.iter().cloned());
        RdmaLine::try_parse_from(words).expect("a valid line").rdma
    }

    #[test]
    fn what_was_said_is_set() {
        let words = ["-d", "rva0,rvb0", "-x", "1", "-m", "1024", "-I", "0"].map(str::to_owned);
        let expected = [
            ("rdma_devices", "rva0,rvb0"),
            ("rdma_gid_index", "1"),
            ("rdma_mtu", "1024"),
            ("rdma_inline_bytes", "0"),
        ];
        assert_eq!(parse_rdma(&words).settings(), expected.map(|(key, value)| (key, value.to_owned())));
        assert!(RdmaOptions::default().settings().is_empty());
    }

    #[test]
    fn ferry_takes_every_setting() {
        let mut config = ferry::Config::new().expect("no FERRY_ variable is wrong");
        let words = ["-d", "rva0,rvb0", "-x", "255", "-m", "4096", "-I", "1024"].map(str::to_owned);
        for (key, value) in parse_rdma(&words).settings() {
            config.set(key, &value).unwrap_or_else(|error| panic!("{key}={value}: {error}"));
        }
    }
}
