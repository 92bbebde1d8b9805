//! Where devices are, according to sysfs, and how much farther a device is from memory than the nearest could be: from
//! host memory by NUMA nodes, from a GPU's memory by the PCI bridges in between. `memory` computes these distances
//! when a region is registered, and `path` chooses endpoints by them.

use std::fs;
use std::path::Path;

/// The root of sysfs.
pub const SYSFS: &str = "/sys";

/// The unit of detours: a detour of this many units doubles the cost of a transfer.
pub const DETOUR_UNIT: u64 = 4;

/// The position of a device in the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The device's folder, which names all bridges above it; empty if unknown.
    path: String,
    node: Option<u32>,
}

/// The distance of two PCI devices, in the terms of nvidia-smi and NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    /// Below one switch or one port of the host.
    Pix,
    /// Below one port of the host, with several switches in between.
    Pxb,
    /// Below one host bridge.
    Phb,
    /// Below two host bridges of one NUMA node, or of unknown nodes.
    Node,
    /// On two NUMA nodes.
    Sys,
}

impl Place {
    /// Returns the place of the RDMA device with this name. A software device has no place.
    pub fn of_nic(sysfs: &Path, name: &str) -> Place {
        Place::at(&sysfs.join("class/infiniband").join(name).join("device"))
    }

    /// Returns the place of the PCI function with this address ("0000:3b:00.0").
    pub fn of_pci(sysfs: &Path, address: &str) -> Place {
        Place::at(&sysfs.join("bus/pci/devices").join(address))
    }

    fn at(folder: &Path) -> Place {
        let path = fs::canonicalize(folder).map(|path| path.to_string_lossy().into_owned());
        let node = fs::read_to_string(folder.join("numa_node")).ok();
        let node = node.and_then(|text| text.trim().parse::<i64>().ok());
        Place { path: path.unwrap_or_default(), node: node.and_then(|node| u32::try_from(node).ok()) }
    }

    /// Returns the detour to host memory on this NUMA node; zero if either node is unknown.
    pub fn detour_to_node(&self, node: Option<u32>) -> u8 {
        match (self.node, node) {
            (Some(here), Some(there)) if here != there => 1,
            _ => 0,
        }
    }

    /// Returns the detour to memory of the device at `other`. The values are estimates: no machine was available to
    /// measure them. Two devices below one switch have no detour.
    pub fn detour_to(&self, other: &Place) -> u8 {
        match distance([&self.path, &other.path], [self.node, other.node]) {
            None | Some(Distance::Pix) => 0,
            Some(Distance::Pxb) => 1,
            Some(Distance::Phb) => 4,
            Some(Distance::Node) => 8,
            Some(Distance::Sys) => 12,
        }
    }
}

/// Returns None if one of the devices is no PCI device.
fn distance(paths: [&str; 2], nodes: [Option<u32>; 2]) -> Option<Distance> {
    let [a, b] = [pci_path(paths[0])?, pci_path(paths[1])?];
    let shared = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    Some(match shared {
        0 if nodes[0] == nodes[1] => Distance::Node,
        0 => Distance::Sys,
        1 => Distance::Phb,
        // Two devices below one switch differ in the switch's port and the device itself.
        _ if a.len().max(b.len()) <= shared + 2 => Distance::Pix,
        _ => Distance::Pxb,
    })
}

/// Returns the host bridge and the PCI functions below it, down to the device. Leaves out a driver's subdevices.
fn pci_path(path: &str) -> Option<Vec<&str>> {
    let is_bridge = |part: &str| part.starts_with("pci") && part.contains(':');
    let is_function = |part: &&str| part.matches(':').count() == 2 && part.contains('.');
    let mut parts = path.split('/').skip_while(|part| !is_bridge(part));
    let bridge = parts.next()?;
    let all: Vec<&str> = std::iter::once(bridge).chain(parts.take_while(is_function)).collect();
    (all.len() > 1).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    const GPU: &str = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0";

    fn to(other: &str, nodes: [Option<u32>; 2]) -> Option<Distance> {
        let there = distance([GPU, other], nodes);
        assert_eq!(distance([other, GPU], [nodes[1], nodes[0]]), there, "it is the same both ways");
        there
    }

    #[test]
    fn each_class_is_told_by_the_bridges_that_are_shared() {
        let same = [Some(0), Some(0)];
        let below = |rest: &str| to(&format!("/sys/devices/pci0000:00/{rest}"), same);
        // Another port of the switch; another function of the device; another port with a switch below.
        assert_eq!(below("0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0"), Some(Distance::Pix));
        assert_eq!(below("0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.1"), Some(Distance::Pix));
        let deep = "0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0/0000:05:00.0/0000:06:00.0";
        assert_eq!(below(deep), Some(Distance::Pxb));
        assert_eq!(below("0000:00:01.0/0000:01:01.0/0000:07:00.0/0000:08:00.0"), Some(Distance::Pxb));
        // Another port of the host; directly below the host bridge.
        assert_eq!(below("0000:00:02.0/0000:09:00.0"), Some(Distance::Phb));
        assert_eq!(below("0000:00:1f.0"), Some(Distance::Phb));
        let elsewhere = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0";
        assert_eq!(to(elsewhere, same), Some(Distance::Node));
        assert_eq!(to(elsewhere, [None, None]), Some(Distance::Node));
        assert_eq!(to(elsewhere, [Some(0), Some(1)]), Some(Distance::Sys));
        assert_eq!(to(elsewhere, [Some(0), None]), Some(Distance::Sys));
        // A subdevice of a function is where the function is. A virtual device is nowhere.
        assert_eq!(to(&format!("{GPU}/mlx5_core.sf.4"), same), Some(Distance::Pix));
        for nowhere in ["", "/sys/devices/virtual/net/rxe0", "/sys/devices/pci0000:00"] {
            assert_eq!(to(nowhere, same), None, "{nowhere}");
        }
        let rising = [Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Node, Distance::Sys];
        assert!(rising.is_sorted());
    }

    /// Makes a tree like sysfs: (symbolic link, folder below `devices`, NUMA node).
    fn tree(name: &str, links: &[(&str, &str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("ferry-place-{name}-{}", std::process::id()));
        for (path, folder, node) in links {
            let (path, folder) = (root.join(path), root.join("devices").join(folder));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("numa_node"), node).unwrap();
            symlink(folder, path).unwrap();
        }
        root
    }

    #[test]
    fn the_farther_the_longer() {
        let nic = |name: &str| format!("class/infiniband/{name}/device");
        let names = ["pix", "pxb", "phb", "node", "sys", "soft"].map(nic);
        let root = tree(
            "detour",
            &[
                (
                    "bus/pci/devices/0000:03:00.0",
                    "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
                    "0\n",
                ),
                (&names[0], "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", "0\n"),
                (&names[1], "pci0000:00/0000:00:01.0/0000:01:01.0/0000:05:00.0/0000:06:00.0", "0\n"),
                (&names[2], "pci0000:00/0000:00:02.0/0000:07:00.0", "0\n"),
                (&names[3], "pci0000:40/0000:40:01.0/0000:41:00.0", "0\n"),
                (&names[4], "pci0000:80/0000:80:01.0/0000:81:00.0", "1\n"),
                (&names[5], "virtual/net/soft", "-1\n"),
            ],
        );
        let gpu = Place::of_pci(&root, "0000:03:00.0");
        let nic = |name: &str| Place::of_nic(&root, name);
        let detour = |name: &str| nic(name).detour_to(&gpu);
        let all = ["pix", "pxb", "phb", "node", "sys"].map(detour);
        assert!(all[0] == 0 && all.windows(2).all(|two| two[0] < two[1]), "{all:?}");
        // An unknown place counts as near.
        assert_eq!((detour("soft"), detour("absent")), (0, 0));
        assert_eq!(nic("sys").detour_to(&Place::of_pci(&root, "0000:ff:00.0")), 0);

        let to_node = |name: &str, node| nic(name).detour_to_node(node);
        assert_eq!((to_node("sys", Some(1)), to_node("sys", Some(0)), to_node("sys", None)), (0, 1, 0));
        assert_eq!((to_node("soft", Some(0)), to_node("absent", Some(0))), (0, 0));
        fs::remove_dir_all(root).unwrap();
    }
}
