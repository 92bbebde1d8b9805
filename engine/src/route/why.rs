//! The reasons in words. They are made only when somebody asks for them; what a path says of itself is joined by
//! `api/paths.rs`.

use crate::types::Transport;
use std::fmt;

/// Why a path carries a transfer, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It does.
    Best,
    /// It could, and this one is better.
    Worse(Transport),
    NotAllowed,
    Checksum,
    /// Some of the memory is a device's.
    DeviceMemory,
    /// None of it is.
    HostMemory,
    /// A NIC is not needed between memory of devices of one host.
    OneHost,
    /// Of other kinds.
    OtherDevices,
    OtherHost,
    /// NICs do not reach a device's memory here.
    NicsHere,
    Unreached,
    Replay,
    Resting,
    Broken,
    /// The path itself says why.
    Pending,
    Shut,
}

impl Why {
    /// Whether the path has a sentence of its own that says it better.
    pub fn is_told_by_path(self) -> bool {
        matches!(self, Why::Pending | Why::Shut)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Why::Best => "the best usable path",
            Why::Worse(better) => return write!(out, "{} is preferred", better.name()),
            Why::NotAllowed => "not among the allowed transports",
            Why::Checksum => "it carries no checksums",
            Why::DeviceMemory => "it carries no memory of devices",
            Why::HostMemory => "it carries memory of devices alone",
            Why::OneHost => "within one host devices and processes copy without a NIC",
            Why::OtherDevices => "the devices are of two kinds",
            Why::OtherHost => "only between processes of one host",
            Why::NicsHere => "the NICs do not reach the device's memory here",
            Why::Unreached => "a remote region can't be reached",
            Why::Replay => "only tcp can send again what may have come with its notification",
            Why::Resting => "at rest, made again when something is queued",
            Why::Broken => "it has failed, and what becomes of it is not known yet",
            Why::Pending => "it is being made",
            Why::Shut => "there is none",
        })
    }
}
