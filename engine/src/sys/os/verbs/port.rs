//! The ports of a device: their state, addresses and packet sizes.

use super::{check, library, Context, Gid, GidKind, Port, PortState};
use rdma_mummy_sys as ffi;
use std::io;

impl Context {
    /// Returns the state of a port. Ports count from 1.
    pub fn port(&self, number: u8) -> io::Result<Port> {
        // SAFETY: all-zero is a valid answer: numbers only.
        let mut port: ffi::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `port` lives on this stack for the duration of the call.
        check(unsafe { library::ibv_query_port(self.raw(), number, &mut port) })?;
        Ok(Port {
            state: match port.state {
                ffi::ibv_port_state::IBV_PORT_DOWN => PortState::Down,
                ffi::ibv_port_state::IBV_PORT_INIT => PortState::Init,
                ffi::ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
                ffi::ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
                _ => PortState::Other,
            },
            mtu_bytes: mtu_bytes(port.active_mtu),
            is_ethernet: port.link_layer == ffi::IBV_LINK_LAYER_ETHERNET,
            lid: port.lid,
            gids: u32::try_from(port.gid_tbl_len).unwrap_or(0),
        })
    }

    /// Returns the GIDs in use; none if the port can't be queried.
    pub fn gids(&self, port: u8) -> Vec<Gid> {
        let Ok(attributes) = self.port(port) else { return Vec::new() };
        let mut gids = self.gid_table(port).unwrap_or_else(|| self.gids_one_by_one(port, attributes.gids));
        gids.retain(|gid| gid.raw != [0; 16]);
        if !attributes.is_ethernet {
            gids.iter_mut().for_each(|gid| gid.kind = GidKind::Ib);
        }
        gids
    }

    /// Reads the GIDs of all ports by one system call; libibverbs has it since 33.
    fn gid_table(&self, port: u8) -> Option<Vec<Gid>> {
        let slots: u32 =
            (1..=self.limits().ports).filter_map(|port| self.port(port).ok()).map(|port| port.gids).sum();
        let mut entries = Vec::<ffi::ibv_gid_entry>::with_capacity(slots as usize);
        // SAFETY: there is room for that many entries.
        let count = unsafe {
            library::_ibv_query_gid_table(
                self.raw(),
                entries.as_mut_ptr(),
                entries.capacity(),
                0,
                size_of::<ffi::ibv_gid_entry>(),
            )
        };
        let count = usize::try_from(count).ok()?;
        // SAFETY: the call has written that many, which is at most the capacity it was told.
        unsafe { entries.set_len(count) };
        let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(port));
        Some(
            of_port
                .map(|entry| Gid {
                    index: entry.gid_index,
                    // SAFETY: a union of bytes, valid in every view.
                    raw: unsafe { entry.gid.raw },
                    kind: match entry.gid_type {
                        ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                        ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                        _ => GidKind::Ib,
                    },
                })
                .collect(),
        )
    }

    /// Reads the GIDs with an older libibverbs, and their kinds from sysfs.
    pub(super) fn gids_one_by_one(&self, port: u8, slots: u32) -> Vec<Gid> {
        let mut gids = Vec::new();
        for index in 0..slots {
            let mut gid = ffi::ibv_gid { raw: [0; 16] };
            // SAFETY: the context is open, and `gid` lives on this stack for the duration of the call.
            if unsafe { library::ibv_query_gid(self.raw(), port, index as libc::c_int, &mut gid) } != 0 {
                continue;
            }
            // SAFETY: a union of bytes, valid in every view.
            let raw = unsafe { gid.raw };
            if raw == [0; 16] {
                continue;
            }
            let path = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/types/{index}", self.name());
            let kind = match std::fs::read_to_string(path) {
                Ok(kind) if kind.trim() == "RoCE v2" => GidKind::RoceV2,
                // The kernel uses this name for both kinds; `gids` knows the link layer.
                _ => GidKind::RoceV1,
            };
            gids.push(Gid { index, raw, kind });
        }
        gids
    }
}

/// 1 stands for 256 bytes, each further code for twice as many, up to 5.
pub(super) fn mtu_bytes(mtu: ffi::ibv_mtu::Type) -> u32 {
    128 << mtu.clamp(ffi::ibv_mtu::IBV_MTU_256, ffi::ibv_mtu::IBV_MTU_4096)
}

/// Returns the code of the largest MTU that is not above `bytes`.
pub(super) fn mtu_of(bytes: u32) -> ffi::ibv_mtu::Type {
    match bytes {
        4096.. => ffi::ibv_mtu::IBV_MTU_4096,
        2048.. => ffi::ibv_mtu::IBV_MTU_2048,
        1024.. => ffi::ibv_mtu::IBV_MTU_1024,
        512.. => ffi::ibv_mtu::IBV_MTU_512,
        _ => ffi::ibv_mtu::IBV_MTU_256,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_powers_of_two_and_round_down() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            assert_eq!(mtu_bytes(mtu_of(bytes)), bytes);
            assert_eq!(mtu_bytes(mtu_of(bytes + 1)), bytes);
            assert_eq!(mtu_bytes(mtu_of(bytes - 1)), (bytes / 2).max(256));
        }
        assert_eq!((mtu_bytes(0), mtu_bytes(6)), (256, 4096));
        assert_eq!((mtu_bytes(mtu_of(0)), mtu_bytes(mtu_of(u32::MAX))), (256, 4096));
    }
}
