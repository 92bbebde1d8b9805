//! Devices that are missing or not as configured: reported by name when the engine opens, or as the reason why there
//! is no RDMA path.

use crate::guest::{self, connect, elsewhere, engine, enter, memories, path};
use crate::support::*;
use ferry::types::Op;
use ferry::{Engine, Status};

#[test]
fn different_mtus_meet_at_the_smaller_one() {
    let Some(_guest) = enter("devices::different_mtus_meet_at_the_smaller_one") else { return };
    for (here, there) in [("1024", "4096"), ("4096", "1024"), ("256", "0")] {
        let (a, b) = (engine(0, &[("rdma_mtu", here)]), engine(1, &[("rdma_mtu", there)]));
        let peer = connect(&a, b.address());
        let (local, remote) = memories(&a, &b, peer, MIB, 5);
        let all = [request(&local, &remote, 0, MIB)];
        a.write(peer, &all, &options()).unwrap();
        assert_pattern(&remote, 5, 0, MIB);
        fill(&remote, 6);
        a.read(peer, &all, &options()).unwrap();
        assert_pattern(&local, 6, 0, MIB);
    }
}

#[test]
fn wrong_names_and_gids_are_refused_by_name() {
    let Some(_guest) = enter("devices::wrong_names_and_gids_are_refused_by_name") else { return };
    for (key, value) in [("rdma_gid_index", "200"), ("rdma_devices", "rva0,mlx5_7")] {
        let error = Engine::open(config(&guest::settings(0, &[(key, value)]))).err().unwrap();
        println!("{error}");
        assert_eq!(error.status, Status::Invalid);
        assert!(error.message.contains(key), "{error}");
    }
    // The last valid index.
    let index = (0..200).take_while(|index| has_gid(*index)).last().unwrap().to_string();
    let a = engine(0, &[("rdma_gid_index", &index)]);
    let b = engine(1, &[]);
    connect(&a, b.address());
}

fn has_gid(index: u32) -> bool {
    let path = format!("/sys/class/infiniband/rva0/ports/1/gids/{index}");
    std::fs::read_to_string(path).is_ok_and(|gid| gid.chars().any(|it| !matches!(it, '0' | ':' | '\n')))
}

/// Checks an engine without RDMA: it opens, has peers and reports why; TCP carries transfers that may use TCP, and
/// RDMA alone is UNAVAILABLE. Returns the reason.
fn reason_of_an_engine_without_rdma(extra: &[(&str, &str)]) -> String {
    let mut why = String::new();
    for transports in ["rdma,tcp", "rdma"] {
        let settings = [&[("transports", transports)], extra].concat();
        let (a, b) = (crate::support::engine(&settings), crate::support::engine(&settings));
        let peer = connect(&a, b.address());
        let (local, remote) = memories(&a, &b, peer, MIB, 5);
        let transfer = a.submit(peer, Op::Write, &[request(&local, &remote, 0, MIB)], &options());
        why = path(&a, peer).1;
        if transports == "rdma" {
            let error = transfer.map(|_| ()).unwrap_err();
            assert_eq!(error.status, Status::Unavailable, "{error}");
            assert!(error.message.contains(&why), "{error} without {why}");
        } else {
            transfer.unwrap().wait_done().unwrap();
            assert_pattern(&remote, 5, 0, MIB);
        }
    }
    println!("{why}");
    why
}

#[test]
fn rdma_that_is_switched_off_says_so() {
    let why = reason_of_an_engine_without_rdma(&[("rdma", "false")]);
    assert!(why.contains("switched off"), "{why}");
}

/// Outside the virtual machine most hosts have no device, and perhaps no library.
#[test]
fn a_host_without_devices_says_so() {
    if guest::is_here()
        || std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some())
    {
        eprintln!("SKIPPED: rdma::devices::a_host_without_devices_says_so (this host has RDMA devices)");
        return;
    }
    let why = reason_of_an_engine_without_rdma(&[]);
    let reasons = ["no RDMA device", "no RDMA support", "libibverbs"];
    assert!(reasons.iter().any(|reason| why.contains(reason)), "{why}");
}

#[test]
fn devices_that_cannot_be_opened_are_named() {
    let Some(_guest) = enter("devices::devices_that_cannot_be_opened_are_named") else { return };
    let hide = "mount -t tmpfs none /dev/infiniband && exec \"$@\"";
    elsewhere(&["unshare", "-m", "sh", "-c", hide, "sh"], "devices::without_device_files");
}

#[test]
#[ignore = "runs where the device files are hidden"]
fn without_device_files() {
    let why = reason_of_an_engine_without_rdma(&[]);
    assert!(why.contains("rva0") && why.contains("/dev/infiniband"), "{why}");
}

#[test]
fn an_absent_library_is_named() {
    let Some(_guest) = enter("devices::an_absent_library_is_named") else { return };
    let hide = "for it in /lib/*/libibverbs.so.1 /usr/lib/*/libibverbs.so.1; do mount --bind /dev/null \
                $(readlink -f $it); done; exec \"$@\"";
    elsewhere(&["unshare", "-m", "sh", "-c", hide, "sh"], "devices::without_the_library");
}

#[test]
#[ignore = "runs where libibverbs is hidden"]
fn without_the_library() {
    let why = reason_of_an_engine_without_rdma(&[]);
    assert!(why.contains("libibverbs"), "{why}");
    // Naming devices doesn't change that.
    let why = reason_of_an_engine_without_rdma(&[("rdma_devices", "rva0")]);
    assert!(why.contains("libibverbs"), "{why}");
}
