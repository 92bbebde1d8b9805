//! The reasons as text. The text is built only when a caller reads it; `api/paths.rs` adds the path's own text.

use crate::types::Transport;
use std::fmt;

/// Why a path carries a transfer, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The path carries the transfer.
    Best,
    /// The path could carry the transfer, but this transport is better.
    Worse(Transport),
    NotAllowed,
    Checksum,
    /// Some of the memory is a device's.
    DeviceMemory,
    /// None of the memory is a device's.
    HostMemory,
    /// Within one host no NIC is needed for device memory.
    OneHost,
    /// The devices are of different kinds.
    OtherDevices,
    OtherHost,
    /// The NICs do not reach the local device memory.
    NicsHere,
    Unreached,
    Replay,
    Idle,
    Broken,
    /// The path's own text says why.
    Pending,
    Shut,
}

impl Why {
    /// True if the path's own text gives the better reason.
    pub fn is_explained_by_path(self) -> bool {
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
            Why::HostMemory => "it carries only memory of devices",
            Why::OneHost => "within one host devices and processes copy without a NIC",
            Why::OtherDevices => "the devices are of two kinds",
            Why::OtherHost => "only between processes of one host",
            Why::NicsHere => "the NICs do not reach the device's memory here",
            Why::Unreached => "a remote region can't be reached",
            Why::Replay => "only tcp can send a frame with a notification again",
            Why::Idle => "idle, made again when something is queued",
            Why::Broken => "it has failed, and its replacement or end is not known yet",
            Why::Pending => "it is being made",
            Why::Shut => "there is none",
        })
    }
}
