//! Information about a peer: its state, its regions, the paths to it.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{ferry_peer, ferry_region};
use crate::pointers::{copy_text, text, Out as ScalarOut};
use crate::status::ferry_status;
use crate::versioned::{Out, OutArray, Versioned};
use engine::types::{PeerId, Transport};
use engine::{PathInfo, PeerInfo, PeerState, RemoteRegionInfo};
use std::ffi::c_char;
use std::mem::size_of;

/// The session is being established.
pub const FERRY_PEER_CONNECTING: u32 = 0;
/// The session is up.
pub const FERRY_PEER_UP: u32 = 1;
/// The session is lost and is being established again; transfers wait.
pub const FERRY_PEER_DOWN: u32 = 2;
/// The peer is lost for good: gone, given up, or replaced by a new incarnation. Connect again for a new
/// handle.
pub const FERRY_PEER_LOST: u32 = 3;

const _: () = assert!(FERRY_PEER_CONNECTING == PeerState::Connecting as u32);
const _: () = assert!(FERRY_PEER_UP == PeerState::Up as u32);
const _: () = assert!(FERRY_PEER_DOWN == PeerState::Down as u32);
const _: () = assert!(FERRY_PEER_LOST == PeerState::Lost as u32);

/// No transport.
pub const FERRY_TRANSPORT_NONE: u32 = 0;
/// TCP connections.
pub const FERRY_TRANSPORT_TCP: u32 = 1;
/// Copies between processes of the same user on one host.
pub const FERRY_TRANSPORT_LOCAL: u32 = 2;
/// InfiniBand or RoCE.
pub const FERRY_TRANSPORT_RDMA: u32 = 3;
/// Copies between CUDA devices of one host. Other device memory is staged through host memory; results then
/// name the transport that carried it between the engines.
pub const FERRY_TRANSPORT_CUDA: u32 = 4;
/// Copies between Ascend devices of one host, or between hosts with the setting ascend_fabric.
pub const FERRY_TRANSPORT_ASCEND: u32 = 5;

const _: () = assert!(FERRY_TRANSPORT_NONE == Transport::None as u32);
const _: () = assert!(FERRY_TRANSPORT_TCP == Transport::Tcp as u32);
const _: () = assert!(FERRY_TRANSPORT_LOCAL == Transport::Local as u32);
const _: () = assert!(FERRY_TRANSPORT_RDMA == Transport::Rdma as u32);
const _: () = assert!(FERRY_TRANSPORT_CUDA == Transport::Cuda as u32);
const _: () = assert!(FERRY_TRANSPORT_ASCEND == Transport::Ascend as u32);

/// Information about a peer. The caller sets struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_peer_info {
    /// In: sizeof(ferry_peer_info). Out: how many bytes were written.
    pub struct_size: u32,
    /// FERRY_PEER_*.
    pub state: u32,
    /// Identity of the engine, drawn when it opens; a restarted engine has another.
    pub engine_id: [u8; 16],
    /// Number of this start of the engine, drawn when it opens.
    pub incarnation: u64,
    /// Round trip of the last probe in nanoseconds; 0 before the first probe.
    pub round_trip_ns: u64,
    /// Transfers from this engine to the peer that are not final.
    pub transfers_active: u64,
    /// TCP connections that carry data now; 0 until data is first sent over TCP.
    pub lanes: u32,
    /// 1 if the peer has proven that it is on this host, by its user or over the same-host path, else 0.
    pub same_host: u32,
    /// "host:port" at which the peer can be reached, terminated; "" if the peer doesn't listen.
    pub address: [c_char; 264],
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_peer_info {
    const SIZE_MIN: usize = 320;
}

/// A region that a peer registered.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_region_info {
    /// In, for ferry_peer_region: sizeof(ferry_region_info). Out: how many bytes were written.
    pub struct_size: u32,
    /// FERRY_ACCESS_* bits.
    pub access: u32,
    /// The value for ferry_request.remote_region.
    pub region: ferry_region,
    /// Address in the peer's process.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Name, terminated; "" if the region has none.
    pub name: [c_char; 64],
    /// FERRY_MEMORY_* of the memory at the peer.
    pub kind: u32,
    /// Number of the device in the peer's process, for the kinds that have one; otherwise 0.
    pub device: i32,
    /// Rises with each region that the peer registers: of two regions the one with the lower number came first.
    pub order: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_region_info {
    const SIZE_MIN: usize = 104;
}

/// One path to a peer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_path_info {
    /// Out: how many bytes were written.
    pub struct_size: u32,
    /// FERRY_TRANSPORT_*.
    pub transport: u32,
    /// 1 if transfers take this path now, else 0.
    pub chosen: u32,
    /// Always 0.
    pub reserved: u32,
    /// Why the path is or is not chosen, for people; terminated, cut if it is too long.
    pub why: [c_char; 240],
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_path_info {
    const SIZE_MIN: usize = 256;
}

/// Returns information about a peer. FERRY_ERR_STALE if the engine has forgotten the peer.
#[no_mangle]
pub unsafe extern "C" fn ferry_peer_get_info(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    out_info: *mut ferry_peer_info,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_info, "out_info")?;
            out.set(&engine.engine.peer_info(PeerId::from_raw(peer))?.into());
            Ok(())
        })
    }
}

/// Lists the regions that a peer has announced, in order of address. After connect the list has all regions
/// of the peer; later changes follow shortly after they happen. Returns lists as ferry_config_settings does.
#[no_mangle]
pub unsafe extern "C" fn ferry_peer_regions(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    out_regions: *mut ferry_region_info,
    element_size: usize,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let array = OutArray::new(out_regions, element_size, capacity, "out_regions")?;
            let count = ScalarOut::new(out_count, "out_count")?;
            let regions = engine.engine.peer_regions(PeerId::from_raw(peer))?;
            array.fill(regions.iter().map(ferry_region_info::from));
            count.set(regions.len());
            Ok(())
        })
    }
}

/// Returns the region of a peer that has this name; of several, the region that was registered last.
/// FERRY_ERR_NOT_REGISTERED: the peer has announced no region of this name. The caller sets struct_size.
#[no_mangle]
pub unsafe extern "C" fn ferry_peer_region(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    name: *const c_char,
    out_region: *mut ferry_region_info,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let name = text(name, "name")?;
            let out = Out::new(out_region, "out_region")?;
            out.set(&(&engine.engine.peer_region(PeerId::from_raw(peer), name)?).into());
            Ok(())
        })
    }
}

/// Lists every path to a peer, chosen or not, and why. Returns lists as ferry_config_settings does.
#[no_mangle]
pub unsafe extern "C" fn ferry_peer_paths(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    out_paths: *mut ferry_path_info,
    element_size: usize,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let array = OutArray::new(out_paths, element_size, capacity, "out_paths")?;
            let count = ScalarOut::new(out_count, "out_count")?;
            let paths = engine.engine.peer_paths(PeerId::from_raw(peer))?;
            array.fill(paths.iter().map(ferry_path_info::from));
            count.set(paths.len());
            Ok(())
        })
    }
}

impl From<PeerInfo> for ferry_peer_info {
    fn from(info: PeerInfo) -> ferry_peer_info {
        let mut out = ferry_peer_info {
            struct_size: size_of::<ferry_peer_info>() as u32,
            state: info.state as u32,
            engine_id: info.engine_id.0,
            incarnation: info.incarnation,
            round_trip_ns: info.round_trip_ns,
            transfers_active: info.transfers_active,
            lanes: info.lanes as u32,
            same_host: info.same_host as u32,
            address: [0; 264],
        };
        copy_text(&info.address, &mut out.address);
        out
    }
}

impl From<&RemoteRegionInfo> for ferry_region_info {
    fn from(info: &RemoteRegionInfo) -> ferry_region_info {
        let mut out = ferry_region_info {
            struct_size: size_of::<ferry_region_info>() as u32,
            access: info.access.0,
            region: info.region.raw(),
            address: info.address,
            length: info.length,
            name: [0; 64],
            kind: info.location.kind as u32,
            device: info.location.device,
            order: info.order,
        };
        copy_text(&info.name, &mut out.name);
        out
    }
}

impl From<&PathInfo> for ferry_path_info {
    fn from(info: &PathInfo) -> ferry_path_info {
        let mut out = ferry_path_info {
            struct_size: size_of::<ferry_path_info>() as u32,
            transport: info.transport as u32,
            chosen: info.chosen as u32,
            reserved: 0,
            why: [0; 240],
        };
        copy_text(&info.why, &mut out.why);
        out
    }
}
