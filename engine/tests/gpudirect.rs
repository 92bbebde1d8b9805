//! GPUDirect RDMA: GPU memory that NICs access directly. None of it has run on a real GPU or NIC: a stand-in for the
//! CUDA driver exports dma-buf descriptors, and a stand-in for libibverbs (`tests/standin/verbs`), with a NIC that
//! connects the engines of its process, imports them. Memory that the host must not touch faults, and the NIC counts
//! its work.
//!
//! Each case has a process of its own, because libibverbs is opened once and found by its name. Above 500 lines: the
//! cases share the code that starts those processes and asks the NIC.

mod common;
#[path = "cuda/gpu.rs"]
#[allow(dead_code, reason = "it serves the tests in `cuda`, too")]
mod gpu;

use common::data::check;
use common::standin;
use common::{eventually, Pair, PATIENCE};
use ferry::internals::sys::cuda::DeviceMemory;
use ferry::types::{Access, Op, RegionId, Request, Transport};
use ferry::*;
use gpu::{pattern, Gpu, MIB};
use std::cell::Cell;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The stand-in's own functions, besides verbs.
struct Nic {
    set: unsafe extern "C" fn(*const libc::c_char, libc::c_long) -> libc::c_int,
    count: unsafe extern "C" fn(*const libc::c_char) -> libc::c_long,
}

impl Nic {
    fn find() -> Nic {
        // SAFETY: a constant name; LD_LIBRARY_PATH makes it the stand-in, which has these two functions.
        unsafe {
            let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW);
            let (set, count) =
                (libc::dlsym(library, c"nic_set".as_ptr()), libc::dlsym(library, c"nic_count".as_ptr()));
            assert!(!set.is_null() && !count.is_null(), "another libibverbs was found first");
            type Set = unsafe extern "C" fn(*const libc::c_char, libc::c_long) -> libc::c_int;
            type Count = unsafe extern "C" fn(*const libc::c_char) -> libc::c_long;
            Nic {
                set: std::mem::transmute::<*mut libc::c_void, Set>(set),
                count: std::mem::transmute::<*mut libc::c_void, Count>(count),
            }
        }
    }

    fn set(&self, knob: &str, value: i64) {
        let name = CString::new(knob).unwrap();
        // SAFETY: a C string that outlives the call.
        assert_eq!(unsafe { (self.set)(name.as_ptr(), value) }, 0, "{knob}");
    }

    fn count(&self, what: &str) -> i64 {
        let name = CString::new(what).unwrap();
        // SAFETY: as above.
        let count = unsafe { (self.count)(name.as_ptr()) };
        assert!(count >= 0, "{what}");
        count
    }
}

/// Two engines, a GPU and NICs.
struct Bench {
    pair: Pair,
    gpu: Gpu,
    nic: Nic,
    /// Copies on the GPU during the last `run`.
    copies: Cell<i64>,
}

/// The source or destination of a transfer.
#[derive(Clone, Copy)]
struct Place {
    region: RegionId,
    address: u64,
}

impl Bench {
    fn new(settings: &[(&str, &str)]) -> Bench {
        Bench::with_nics(1, settings)
    }

    fn with_nics(nics: i64, settings: &[(&str, &str)]) -> Bench {
        let gpu = gpu::standin("gpudirect").unwrap();
        gpu.standin().set("FERRY_STANDIN_DMA_BUF", "1");
        let nic = Nic::find();
        nic.set("nics", nics);
        let library = gpu.library.clone();
        let mut all =
            vec![("cuda_library", library.as_str()), ("transports", "tcp,rdma"), ("local", "false")];
        all.extend_from_slice(settings);
        let pair = Pair::new(&all);
        Bench { pair, gpu, nic, copies: Cell::new(0) }
    }

    fn register(&self, engine: &Engine, memory: &DeviceMemory, access: Access) -> Place {
        let options = RegionOptions { access, ..RegionOptions::default() };
        // SAFETY: the tests free memory of the device after they have unregistered it or closed its engine.
        let region = unsafe { engine.register(memory.address as *mut u8, memory.length, &options) }.unwrap();
        let (from, peer) = if std::ptr::eq(engine, &self.pair.a) {
            (&self.pair.b, self.pair.a_at_b)
        } else {
            (&self.pair.a, self.pair.b_at_a)
        };
        common::wait_for_region(from, peer, region);
        Place { region, address: memory.address }
    }

    fn run(&self, op: Op, here: Place, there: Place, spans: &[(usize, usize, usize)]) -> TransferResult {
        let request = |&(local, remote, length): &(usize, usize, usize)| Request {
            local: here.address + local as u64,
            remote: there.address + remote as u64,
            length: length as u64,
            remote_region: there.region,
        };
        let requests: Vec<Request> = spans.iter().map(request).collect();
        let all = ["cuMemcpyBatchAsync", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"];
        let copies = || all.iter().map(|name| self.gpu.count(name)).sum::<i64>();
        let before = copies();
        let result = common::run(&self.pair.a, self.pair.b_at_a, op, &requests, &TransferOptions::default());
        self.copies.set(copies() - before);
        result
    }

    fn says(&self, transport: Transport) -> String {
        let paths = self.pair.a.peer_paths(self.pair.b_at_a).unwrap();
        paths.into_iter().find(|path| path.transport == transport).unwrap().why
    }
}

fn place(memory: &Memory) -> Place {
    Place { region: memory.region(), address: memory.address() }
}

fn is_done_by(result: &TransferResult, transport: Transport) {
    assert_eq!((result.status, result.transport), (Status::Ok, transport));
}

/// Asserts that the transfer is done without a copy on the GPU.
fn is_direct(bench: &Bench, op: Op, here: Place, there: Place, spans: &[(usize, usize, usize)]) {
    is_done_by(&bench.run(op, here, there, spans), Transport::Rdma);
    assert_eq!(bench.copies.get(), 0);
}

/// Runs the case in a process that finds the stand-in; `prefix`, if not empty, starts that process.
fn alone(prefix: &[&str], case: &str) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nic");
    std::fs::create_dir_all(&folder).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/standin/verbs/nic.c");
    let fresh = folder.join(format!("{case}-{}.so", std::process::id()));
    let built = Command::new("cc")
        .args([
            "-std=gnu11",
            "-O1",
            "-g",
            "-shared",
            "-fPIC",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
        ])
        .args([fresh.as_os_str(), source.as_ref()])
        .status();
    assert!(built.unwrap().success(), "a C compiler and verbs.h build the library that stands in");
    // Other tests may build it at the same time, so each replaces the whole file.
    std::fs::rename(&fresh, folder.join("libibverbs.so.1")).unwrap();
    let program = std::env::current_exe().unwrap();
    let words = [prefix, &[program.to_str().unwrap(), "--exact", case, "--ignored", "--nocapture"]].concat();
    let output = Command::new(words[0])
        .args(&words[1..])
        .env("LD_LIBRARY_PATH", &folder)
        .env_remove("FERRY_TEST_TRANSPORTS")
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

macro_rules! cases {
    ($($name:ident = $case:ident;)*) => {
        $(#[test]
        fn $name() {
            if gpu::is_real() {
                return eprintln!("SKIPPED {}: it is for the stand-ins", stringify!($name));
            }
            alone(&[], stringify!($case));
        })*
    };
}

cases! {
    both_ends_on_devices_go_by_rdma_without_a_copy = direct;
    what_a_nic_refuses_is_staged_and_says_why = refused;
    what_the_gpu_would_not_see_is_staged = unordered;
    it_can_be_switched_off = off;
    what_a_path_that_breaks_has_left_over_is_staged = broken;
    nics_that_are_nowhere_are_used_alike = nowhere;
    only_what_the_peers_nic_does_not_grant_is_refused = answered;
}

/// Makes a tree like sysfs with the NICs and the GPU; the second NIC is beside the GPU.
fn sysfs() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sysfs");
    let _ = std::fs::remove_dir_all(&root);
    for (link, folder) in [
        ("class/infiniband/nic0/device", "pci0000:40/0000:40:01.0/0000:41:00.0"),
        ("class/infiniband/nic1/device", "pci0000:00/0000:00:01.0/0000:02:00.0/0000:03:01.0/0000:04:00.0"),
        ("bus/pci/devices/0000:01:00.0", "pci0000:00/0000:00:01.0/0000:02:00.0/0000:03:00.0/0000:01:00.0"),
    ] {
        let (link, folder) = (root.join(link), Path::new("devices").join(folder));
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::fs::create_dir_all(root.join(&folder)).unwrap();
        std::os::unix::fs::symlink(Path::new("/sys").join(folder), link).unwrap();
    }
    root
}

#[test]
fn the_nic_beside_the_gpu_is_taken_unless_it_is_much_busier() {
    let name = "the_nic_beside_the_gpu_is_taken_unless_it_is_much_busier";
    if gpu::is_real() {
        return eprintln!("SKIPPED {name}: it is for the stand-ins");
    }
    let root = sysfs();
    let mount = "mount --bind \"$0\" /sys && exec \"$@\"";
    let behind = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, root.to_str().unwrap()];
    if !Command::new(behind[0]).args(&behind[1..]).arg("true").status().is_ok_and(|it| it.success()) {
        return eprintln!("SKIPPED {name}: it needs a mount namespace for a /sys of its own");
    }
    alone(&behind, "near");
}

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn direct() {
    let bench = Bench::new(&[]);
    let Bench { pair, gpu, nic, .. } = &bench;
    let (source, target) = (gpu.device(4 * MIB), gpu.device(4 * MIB));
    let (near, far) =
        (pair.a.alloc(4 * MIB, &RegionOptions::default()), pair.b.alloc(4 * MIB, &RegionOptions::default()));
    let (near, far) = (near.unwrap(), far.unwrap());
    common::wait_for_region(&pair.a, pair.b_at_a, far.region());
    let (here, there) =
        (bench.register(&pair.a, &source, Access::BOTH), bench.register(&pair.b, &target, Access::BOTH));
    assert_eq!(nic.count("dmabufs"), 2);
    let why = bench.says(Transport::Cuda);
    assert!(
        why.contains("1 of 1 regions here and 1 of 1 of the peer's") && !why.contains("because"),
        "{why}"
    );

    let whole = [(0, 0, 4 * MIB)];
    gpu.put(source.address, &pattern(1, 4 * MIB));
    is_direct(&bench, Op::Write, here, there, &whole);
    check("device to device", &gpu.get(target.address, 4 * MIB), &pattern(1, 4 * MIB));
    assert!(nic.count("writes_to_dmabuf") > 0 && nic.count("proofs_of_dmabuf") > 0);
    assert_eq!(nic.count("reads_from_dmabuf"), 0);

    // Small transfers of device memory are not sent inline: the CPU would have to read the memory, and would fault.
    gpu.put(source.address, &pattern(2, 4096));
    let spans: Vec<(usize, usize, usize)> = (0..16).map(|at| (at * 64, (15 - at) * 64, 64)).collect();
    let inline = nic.count("inline");
    is_direct(&bench, Op::Write, here, there, &spans);
    assert_eq!(nic.count("inline"), inline);
    let (sent, found) = (pattern(2, 4096), gpu.get(target.address, 1024));
    spans.iter().for_each(|&(from, to, length)| {
        check("64 bytes", &found[to..to + length], &sent[from..from + length]);
    });

    gpu.put(target.address, &pattern(3, 4 * MIB));
    is_direct(&bench, Op::Read, here, there, &whole);
    check("device from device", &gpu.get(source.address, 4 * MIB), &pattern(3, 4 * MIB));
    assert!(nic.count("reads_from_dmabuf") > 0);

    common::data::fill(&near, 4);
    is_direct(&bench, Op::Write, place(&near), there, &whole);
    check("host to device", &gpu.get(target.address, 4 * MIB), &common::data::contents(&near));
    is_direct(&bench, Op::Write, here, place(&far), &whole);
    check("device to host", &common::data::contents(&far), &pattern(3, 4 * MIB));
    assert!(nic.count("writes_from_dmabuf") > 0);

    // One chain writes device memory and host memory in turn: visibility is proven for each kind separately.
    let (device, host) = (nic.count("proofs_of_dmabuf"), nic.count("proofs_of_host"));
    let request = |at: u64, to: Place| Request {
        local: near.address() + at * 64,
        remote: to.address + at * 64,
        length: 64,
        remote_region: to.region,
    };
    let mixed: Vec<Request> =
        (0..8).map(|at| request(at, if at % 2 == 0 { there } else { place(&far) })).collect();
    let result = common::run(&pair.a, pair.b_at_a, Op::Write, &mixed, &TransferOptions::default());
    is_done_by(&result, Transport::Rdma);
    assert!(nic.count("proofs_of_dmabuf") > device && nic.count("proofs_of_host") > host);
    let (sent, device) = (common::data::contents(&near), gpu.get(target.address, 512));
    let host = common::data::contents(&far);
    for at in 0..8usize {
        let (range, found) = (at * 64..at * 64 + 64, if at % 2 == 0 { &device } else { &host });
        check("mixed", &found[range.clone()], &sent[range]);
    }

    // Unregister takes the peer's keys back and deregisters the memory from the NIC before it returns OK.
    pair.b.unregister(there.region, Some(PATIENCE)).unwrap();
    assert_eq!(nic.count("dmabufs_ended"), 1);
    pair.a.unregister(here.region, Some(PATIENCE)).unwrap();
    assert_eq!(nic.count("dmabufs_ended"), 2);
    let late = bench.pair.a.submit(pair.b_at_a, Op::Write, &[request(0, there)], &TransferOptions::default());
    assert_eq!(
        late.map(|it| it.wait(Some(PATIENCE)).unwrap().status).unwrap_or_else(|it| it.status),
        Status::Stale
    );
}

/// Asserts that a WRITE between two devices is staged, for this reason.
fn staged(bench: &Bench, access: Access, reason: &str) {
    let Bench { pair, gpu, nic, .. } = bench;
    let (source, target) = (gpu.device(MIB), gpu.device(MIB));
    let (here, there) =
        (bench.register(&pair.a, &source, access), bench.register(&pair.b, &target, Access::BOTH));
    let why = bench.says(Transport::Cuda);
    assert!(why.contains("0 of 1 regions here") && why.contains(reason), "{why}");
    gpu.put(source.address, &pattern(1, MIB));
    let result = bench.run(Op::Write, here, there, &[(0, 0, MIB)]);
    assert_eq!(result.status, Status::Ok);
    assert!(bench.copies.get() > 0);
    check("staged", &gpu.get(target.address, MIB), &pattern(1, MIB));
    assert_eq!((nic.count("writes_to_dmabuf"), nic.count("writes_from_dmabuf")), (0, 0));
    pair.b.unregister(there.region, Some(PATIENCE)).unwrap();
    pair.a.unregister(here.region, Some(PATIENCE)).unwrap();
    assert_eq!(nic.count("dmabufs"), nic.count("dmabufs_ended"));
}

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn refused() {
    let bench = Bench::new(&[]);
    bench.nic.set("refuse_dmabuf", i64::from(libc::EOPNOTSUPP));
    staged(&bench, Access::BOTH, "nic0 refuses its dma-buf: Operation not supported");
    bench.nic.set("refuse_dmabuf", 0);
    bench.gpu.standin().set("FERRY_STANDIN_DMA_BUF", "0");
    staged(&bench, Access::BOTH, "no dma-buf");
    bench.gpu.standin().set("FERRY_STANDIN_DMA_BUF", "1");
    // The driver itself refuses at one end: the other end's keys alone are of no use.
    bench.gpu.standin().fault("cuMemGetHandleForAddressRange", "1", 801);
    staged(&bench, Access::BOTH, "801");
    staged(&bench, Access::REMOTE_WRITE, "peers may WRITE but not READ it");
}

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn unordered() {
    let bench = Bench::new(&[]);
    bench.gpu.standin().set("FERRY_STANDIN_ORDERED", "0");
    staged(&bench, Access::BOTH, "only after a flush");
    assert_eq!(bench.nic.count("dmabufs"), 0);
    assert_eq!(bench.gpu.count("cuMemGetHandleForAddressRange"), 0);
}

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn off() {
    let bench = Bench::new(&[("rdma_gpudirect", "false")]);
    staged(&bench, Access::BOTH, "rdma_gpudirect is false");
    assert_eq!(bench.gpu.count("cuMemGetHandleForAddressRange"), 0);
}

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn broken() {
    let bench = Bench::new(&[("reconnect_timeout_ms", "100"), ("lease_ms", "1500")]);
    let Bench { pair, gpu, nic, .. } = &bench;
    let (source, target) = (gpu.device(4 * MIB), gpu.device(4 * MIB));
    let (here, there) =
        (bench.register(&pair.a, &source, Access::BOTH), bench.register(&pair.b, &target, Access::BOTH));
    gpu.put(source.address, &pattern(1, 4 * MIB));
    nic.set("hold", 1);
    let request = Request {
        local: here.address,
        remote: there.address,
        length: 4 * MIB as u64,
        remote_region: there.region,
    };
    let transfer = pair.a.submit(pair.b_at_a, Op::Write, &[request], &TransferOptions::default()).unwrap();
    assert_eq!(transfer.state(), State::Pending);
    nic.set("down", 1);
    let result = transfer.wait(Some(PATIENCE)).unwrap();
    is_done_by(&result, Transport::Tcp);
    check("what was left over", &gpu.get(target.address, 4 * MIB), &pattern(1, 4 * MIB));
    assert_eq!(nic.count("writes_to_dmabuf"), 0);

    // With the port up again the transfer is direct again.
    nic.set("hold", 0);
    nic.set("down", 0);
    eventually("there is a path again", || {
        gpu.put(source.address, &pattern(2, 4 * MIB));
        let result = bench.run(Op::Write, here, there, &[(0, 0, 4 * MIB)]);
        assert_eq!(result.status, Status::Ok);
        // RDMA as the transport proves too little: staging may use RDMA, too.
        nic.count("writes_to_dmabuf") > 0
    });
    check("directly again", &gpu.get(target.address, 4 * MIB), &pattern(2, 4 * MIB));
}

impl Bench {
    /// Submits a transfer for each length while the NICs hold posted work. Returns the MiB that each NIC had got by
    /// then, `sum` in all.
    fn shares(&self, here: Place, there: Place, lengths: &[usize], sum: i64) -> [i64; 2] {
        let Bench { pair, nic, .. } = self;
        let posted = || ["bytes_0", "bytes_1"].map(|name| nic.count(name));
        let before = posted();
        let shares = || [0, 1].map(|at| (posted()[at] - before[at]) / MIB as i64);
        nic.set("hold", 1);
        let submit = |length: &usize| {
            let request = Request {
                local: here.address,
                remote: there.address,
                length: *length as u64,
                remote_region: there.region,
            };
            pair.a.submit(pair.b_at_a, Op::Write, &[request], &TransferOptions::default()).unwrap()
        };
        let transfers: Vec<_> = lengths.iter().map(submit).collect();
        eventually("it is posted", || shares().iter().sum::<i64>() >= sum);
        let found = shares();
        nic.set("hold", 0);
        for transfer in transfers {
            is_done_by(&transfer.wait(Some(PATIENCE)).unwrap(), Transport::Rdma);
        }
        assert_eq!(shares().iter().sum::<i64>(), (lengths.iter().sum::<usize>() / MIB) as i64);
        found
    }
}

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn near() {
    const BYTES: usize = 24 * MIB;
    let bench = Bench::with_nics(2, &[]);
    let Bench { pair, gpu, .. } = &bench;
    let (source, target) = (gpu.device(BYTES), gpu.device(BYTES));
    let near = pair.a.alloc(2 * MIB, &RegionOptions::default()).unwrap();
    let far = pair.b.alloc(2 * MIB, &RegionOptions::default()).unwrap();
    common::wait_for_region(&pair.a, pair.b_at_a, far.region());
    let (here, there) =
        (bench.register(&pair.a, &source, Access::BOTH), bench.register(&pair.b, &target, Access::BOTH));
    // Whichever end the GPU is at. For host memory both NICs are equal.
    assert_eq!(bench.shares(here, place(&far), &[2 * MIB], 2), [0, 2]);
    assert_eq!(bench.shares(place(&near), there, &[2 * MIB], 2), [0, 2]);
    // The far NIC takes a share of large transfers; the rest waits for the near NIC.
    gpu.put(source.address, &pattern(1, BYTES));
    assert_eq!(bench.shares(here, there, &[BYTES], 9), [1, 8]);
    // No transfer waits so that another one queues behind it.
    assert_eq!(bench.shares(here, there, &[BYTES, BYTES], 16), [8, 8]);
    check("all of it", &gpu.get(target.address, BYTES), &pattern(1, BYTES));
}

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn nowhere() {
    let bench = Bench::with_nics(2, &[]);
    let Bench { pair, gpu, .. } = &bench;
    let (source, target) = (gpu.device(4 * MIB), gpu.device(4 * MIB));
    let (here, there) =
        (bench.register(&pair.a, &source, Access::BOTH), bench.register(&pair.b, &target, Access::BOTH));
    gpu.put(source.address, &pattern(1, 4 * MIB));
    assert_eq!(bench.shares(here, there, &[4 * MIB], 4), [2, 2]);
    check("all of it", &gpu.get(target.address, 4 * MIB), &pattern(1, 4 * MIB));
}

/// ACCESS is for a key that doesn't grant the access. A NIC that answers "invalid request" blames the connection: the
/// same request is posted on another endpoint.
#[test]
#[ignore = "another test runs it, in a process of its own"]
fn answered() {
    const REM_INV_REQ_ERR: i64 = 9;
    const REM_ACCESS_ERR: i64 = 10;
    let bench = Bench::with_nics(1, &[("transports", "rdma")]);
    let Bench { pair, nic, .. } = &bench;
    let near = pair.a.alloc(MIB, &RegionOptions::default()).unwrap();
    let far = pair.b.alloc(MIB, &RegionOptions::default()).unwrap();
    common::wait_for_region(&pair.a, pair.b_at_a, far.region());
    let lost = || pair.a.stats().unwrap().counts.lanes_lost;
    for (seed, status, expected) in [(1, REM_INV_REQ_ERR, Status::Ok), (2, REM_ACCESS_ERR, Status::Access)] {
        common::data::fill(&near, seed);
        let before = lost();
        nic.set("answer", status);
        let result = bench.run(Op::Write, place(&near), place(&far), &[(0, 0, MIB)]);
        assert_eq!((result.status, result.transport), (expected, Transport::Rdma));
        eventually("the endpoint is given up", || lost() > before);
        if expected == Status::Ok {
            check("after all", &common::data::contents(&far), &common::data::contents(&near));
        }
    }
    // If the target always answers so, the request itself is invalid.
    nic.set("answers", REM_INV_REQ_ERR);
    let request = Request {
        local: near.address(),
        remote: far.address(),
        length: MIB as u64,
        remote_region: far.region(),
    };
    let transfer = pair.a.submit(pair.b_at_a, Op::Write, &[request], &TransferOptions::default()).unwrap();
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().status, Status::Access);
    assert_eq!(i64::from(transfer.results()[0].vendor_error), REM_INV_REQ_ERR);
}
