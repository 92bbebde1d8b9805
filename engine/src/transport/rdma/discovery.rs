//! Finds the RDMA devices of the host that an engine uses, once, when the engine opens.

use super::device::Device;
use super::service::RdmaSettings;
use super::topology::NoAddress;
use super::Usable;
use crate::limits::DEVICES_MAX;
use crate::status::{Error, Result};
use crate::sys::verbs;
use std::sync::Arc;

/// Opens the devices to use. The inner error says why there are none.
pub fn open(settings: &RdmaSettings) -> Result<Usable<Vec<Arc<Device>>>> {
    let there = match verbs::device_names() {
        Ok(names) if names.is_empty() => return Ok(Err(why_none())),
        Ok(names) => names,
        Err(why) => return Ok(Err(why)),
    };
    if let Some(unknown) = settings.names.iter().find(|name| !there.contains(name)) {
        let text =
            format!("rdma_devices: this host has no RDMA device {unknown:?}, only {}", there.join(", "));
        return Err(Error::invalid(text));
    }
    let wanted = if settings.names.is_empty() { &there } else { &settings.names };
    let (mut devices, mut whys) = (Vec::new(), Vec::new());
    for name in wanted.iter().take(DEVICES_MAX) {
        match Device::open(devices.len(), name, &settings.devices) {
            Ok(device) => devices.push(Arc::new(device)),
            Err(why) => whys.push(why),
        }
    }
    // A configured address that no device has is an error of the settings, not a device that is down.
    if settings.devices.gid_index.is_some() && devices.iter().all(|device| !device.is_up()) {
        let wrong = devices.iter().filter_map(|device| match device.address() {
            Err(NoAddress::Setting(why)) => Some(why),
            _ => None,
        });
        if let Some(why) = wrong.min() {
            return Err(Error::invalid(why));
        }
    }
    if devices.is_empty() {
        return Ok(Err(whys.join("; ")));
    }
    Ok(Ok(devices))
}

/// Explains why libibverbs shows no device: the kernel may have devices whose files a container lacks.
fn why_none() -> String {
    let listed = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<String> = listed.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    if names.is_empty() {
        "this host has no RDMA device".into()
    } else {
        format!(
            "libibverbs shows none of this host's RDMA devices ({}): are their files in /dev/infiniband?",
            names.join(", ")
        )
    }
}
