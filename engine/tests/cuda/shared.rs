//! Memory of another process: exported by one process and imported by the other, in both directions.

use crate::gpu::{copy, gpu, host_bytes, is_real, pattern, standin, Gpu, MIB};
use crate::mapped::Mapped;
use ferry::internals::device::{Borrowed, Direction, Piece, Queue};
use ferry::internals::sys::proven::Proven;
use ferry::internals::sys::unix;
use ferry::limits::DEVICE_EXPORTS_MAX;
use ferry::status::{Result, Status};
use ferry::types::PeerId;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

/// The other process: this program, running `the_other_process` alone.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start() -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shared::the_other_process", "--nocapture", "--test-threads=1"])
            .env("FERRY_TEST_OTHER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Other { child, input, output }
    }

    /// Sends a line and reads the answer, skipping the test harness's output.
    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        loop {
            let mut answer = String::new();
            assert_ne!(self.output.read_line(&mut answer).unwrap(), 0, "the other process has ended");
            // The harness prints "test NAME ... " without a line's end.
            if let Some(at) = answer.find("answer ") {
                return answer[at + 7..].trim().into();
            }
        }
    }

    fn end(mut self) {
        drop(self.input);
        let mut rest = String::new();
        while self.output.read_line(&mut rest).unwrap() > 0 {}
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// Returns a process as a same-host path would have proven it.
fn proven(pid: u32) -> Proven {
    let pid = pid as i32;
    Proven::new(pid, Arc::new(unix::pidfd_of(pid).unwrap()))
}

/// Returns this process as another pid namespace sees it: with another number, or none (0).
fn numbered(pid: i32) -> Proven {
    Proven::new(pid, Arc::new(unix::pidfd_of(std::process::id() as i32).unwrap()))
}

fn import(queue: &mut dyn Queue, exported: &[u8], length: usize, owner: &Proven) -> Result<u64> {
    queue.import(&Borrowed { exported, length: length as u64, peer: PeerId::from_raw(1), owner })
}

/// Not a test: the other process, which imports the exports that it is told, checks them and writes into them.
#[test]
fn the_other_process() {
    if std::env::var_os("FERRY_TEST_OTHER").is_none() {
        return;
    }
    let gpu = gpu("the_other_process").unwrap();
    let mut queue = gpu.queue(2);
    let host = gpu.pinned(MIB);
    let owner = proven(std::os::unix::process::parent_id());
    let number = |word: &str| word.parse::<usize>().unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["import", exported, length] => {
                match import(&mut *queue, &unhex(exported), number(length), &owner) {
                    Ok(address) => format!("{address:x}"),
                    Err(error) => format!("{error}"),
                }
            }
            ["exchange", address, length, theirs, ours] => {
                let (address, length) =
                    (u64::from_str_radix(address, 16).unwrap(), length.parse::<usize>().unwrap());
                let piece = Piece { from: address, to: host.address, length: length as u64 };
                copy(&mut *queue, Direction::DeviceToHost, &[piece]).unwrap();
                let same = host_bytes(&host)[..length] == pattern(theirs.parse().unwrap(), length);
                host_bytes(&host)[..length].copy_from_slice(&pattern(ours.parse().unwrap(), length));
                let piece = Piece { from: host.address, to: address, length: length as u64 };
                copy(&mut *queue, Direction::HostToDevice, &[piece]).unwrap();
                same.to_string()
            }
            ["close", address] => match queue.close(u64::from_str_radix(address, 16).unwrap()) {
                Ok(()) => "closed".into(),
                Err(error) => format!("{error}"),
            },
            _ => panic!("{line}"),
        };
        println!("answer {answer}");
    }
    drop((queue, host));
}

/// Imports two ranges of one allocation: both reach it, one opening serves both, each is closed separately.
fn check_sharing(gpu: &Gpu, address: u64, opening: &str) {
    let mut queue = gpu.queue(1);
    let mut other = Other::start();
    let (low, high) = (address + 4096, address + MIB as u64);
    let ranges = [(low, 65_536, 11, 21), (high, 4096, 12, 22)];
    let mut imported = Vec::new();
    for (start, length, ours, _) in ranges {
        gpu.put(start, &pattern(ours, length));
        let exported = queue.export(start, length as u64, other.child.id() as i32).unwrap();
        assert!(exported.len() <= 512);
        imported.push((other.ask(&format!("import {} {length}", hex(&exported))), exported));
    }
    for ((there, _), (start, length, ours, theirs)) in imported.iter().zip(ranges) {
        assert_eq!(other.ask(&format!("exchange {there} {length} {ours} {theirs}")), "true", "{opening}");
        assert!(gpu.get(start, length) == pattern(theirs, length), "{opening}");
    }
    // An importer keeps the memory when the export is withdrawn, and the second range when the first is closed.
    for (_, exported) in &imported {
        queue.withdraw(exported);
    }
    assert_eq!(other.ask(&format!("close {}", imported[0].0)), "closed");
    let (start, length, _, theirs) = ranges[1];
    assert_eq!(other.ask(&format!("exchange {} {length} {theirs} 33", imported[1].0)), "true", "{opening}");
    assert!(gpu.get(start, length) == pattern(33, length));
    assert_eq!(other.ask(&format!("close {}", imported[1].0)), "closed");
    assert!(other.ask(&format!("close {}", imported[1].0)).contains("no import is at"));
    assert!(other.ask("import 0102 1").starts_with("INVALID"));
    other.end();
}

#[test]
fn two_processes_share_ordinary_device_memory() {
    if std::env::var_os("FERRY_TEST_OTHER").is_some() {
        return;
    }
    let Some(gpu) = gpu("two_processes_share_ordinary_device_memory") else { return };
    let memory = gpu.device(2 * MIB);
    check_sharing(&gpu, memory.address, "cuIpcOpenMemHandle");
}

/// Memory that the program maps by hand.
fn mapped(gpu: &Gpu, handles: i32) -> Mapped {
    Mapped::new(gpu.program().clone(), gpu.symbol("cuMemCreate"), 2 * MIB, handles)
}

#[test]
fn two_processes_share_memory_that_was_mapped_by_hand() {
    if std::env::var_os("FERRY_TEST_OTHER").is_some() {
        return;
    }
    let Some(gpu) = gpu("two_processes_share_memory_that_was_mapped_by_hand") else { return };
    // The other process is our child: Yama lets us read its memory, but not the child ours.
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    let memory = mapped(&gpu, 1);
    check_sharing(&gpu, memory.address, "cuMemImportFromShareableHandle");
}

#[test]
fn memory_that_can_t_be_shared_says_why() {
    if std::env::var_os("FERRY_TEST_OTHER").is_some() {
        return;
    }
    let Some(gpu) = gpu("memory_that_can_t_be_shared_says_why") else { return };
    let mut queue = gpu.queue(1);
    let memory = mapped(&gpu, 0);
    let error = queue.export(memory.address, 4096, 1).unwrap_err();
    assert_eq!(error.status, Status::Unavailable);
    assert!(error.message.contains("cudaMallocAsync"), "{error}");
    let ordinary = gpu.device(MIB);
    let error = queue.export(ordinary.address + 4096, MIB as u64, 1).unwrap_err();
    assert!(error.status == Status::Unavailable && error.message.contains("several allocations"), "{error}");
    let heap = [0u8; 8];
    assert_eq!(queue.export(heap.as_ptr() as u64, 8, 1).unwrap_err().status, Status::Invalid);
}

#[test]
fn memory_of_the_same_process_is_where_it_is() {
    if std::env::var_os("FERRY_TEST_OTHER").is_some() {
        return;
    }
    let Some(gpu) = gpu("memory_of_the_same_process_is_where_it_is") else { return };
    let memory = gpu.device(MIB);
    let (mut exporter, mut importer) = (gpu.queue(1), gpu.queue(1));
    let exported = exporter.export(memory.address + 100, 1000, std::process::id() as i32).unwrap();
    for _ in 0..2 {
        let address = import(&mut *importer, &exported, 1000, &proven(std::process::id())).unwrap();
        assert_eq!(address, memory.address + 100);
    }
    for _ in 0..2 {
        importer.close(memory.address + 100).unwrap();
    }
    assert_eq!(importer.close(memory.address + 100).unwrap_err().status, Status::Invalid);
}

/// The offsets of numbers in an export.
const PID: usize = 4;
const NUMBER: usize = 8;
const NAMESPACE: usize = 16;
const ADDRESS: usize = 24;
const LENGTH: usize = 32;
const BASE: usize = 40;
const SPAN: usize = 48;

/// Returns the export with numbers changed, as a peer could forge them.
fn forged(exported: &[u8], changes: &[(usize, u64)]) -> Vec<u8> {
    let mut out = exported.to_vec();
    changes.iter().for_each(|(at, number)| out[*at..at + 8].copy_from_slice(&number.to_le_bytes()));
    out
}

/// A process that has nothing to do with this one.
struct Stranger(Child);

impl Stranger {
    fn start() -> Stranger {
        Stranger(Command::new("sleep").arg("600").spawn().unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A peer that claims our memory as its own gets no address of this process, exported or not, since the peer is
/// another process.
#[test]
fn an_export_that_claims_to_be_of_this_process_is_refused() {
    if std::env::var_os("FERRY_TEST_OTHER").is_some() {
        return;
    }
    let Some(gpu) = gpu("an_export_that_claims_to_be_of_this_process_is_refused") else { return };
    let (memory, mapped) = (gpu.device(MIB), mapped(&gpu, 1));
    let mut queue = gpu.queue(1);
    let child = Stranger::start();
    let (other, own) = (proven(child.0.id()), proven(std::process::id()));
    for address in [memory.address, mapped.address] {
        let exported = queue.export(address, 4096, 1).unwrap();
        let heap = &raw const child as u64;
        let elsewhere = [(ADDRESS, heap), (LENGTH, 64), (BASE, heap), (SPAN, 64)];
        for bytes in [exported.clone(), forged(&exported, &elsewhere)] {
            // The number of the process that is proven, in the same namespace.
            let with_pid = [&bytes[..PID], &child.0.id().to_le_bytes(), &bytes[NUMBER..]].concat();
            for said in [&bytes, &with_pid] {
                let refused = import(&mut *queue, said, 64, &other);
                assert!(refused.is_err(), "{address:#x}: {refused:x?}");
            }
        }
        // This process itself can import only exact exports of its own queues.
        let wrong = [(ADDRESS, address + 1), (LENGTH, 4095), (NUMBER, 7)];
        for bytes in
            [forged(&exported, &elsewhere)].into_iter().chain(wrong.map(|it| forged(&exported, &[it])))
        {
            let error = import(&mut *queue, &bytes, 64, &own).unwrap_err();
            assert_eq!(error.status, Status::Invalid, "{error}");
        }
        assert_eq!(import(&mut *queue, &exported, 4096, &own).unwrap(), address);
        queue.close(address).unwrap();
        queue.withdraw(&exported);
        assert_eq!(import(&mut *queue, &exported, 4096, &own).unwrap_err().status, Status::Invalid);
    }
}

/// A process's claims about its memory's size and its identity are checked.
#[test]
fn an_import_has_the_promised_length_and_the_proven_owner() {
    if std::env::var_os("FERRY_TEST_OTHER").is_some() {
        return;
    }
    let Some(gpu) = gpu("an_import_has_the_promised_length_and_the_proven_owner") else {
        return;
    };
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    let mut queue = gpu.queue(1);
    let mut other = Other::start();
    let (memory, mapped) = (gpu.device(2 * MIB), mapped(&gpu, 1));
    for address in [memory.address, mapped.address] {
        let exported = queue.export(address, 4096, other.child.id() as i32).unwrap();
        let mut import = |bytes: &[u8], length: usize| other.ask(&format!("import {} {length}", hex(bytes)));
        assert!(import(&exported, 4097).starts_with("INVALID"), "more than was exported is wanted");
        let long = forged(&exported, &[(LENGTH, 4 * MIB as u64), (SPAN, 4 * MIB as u64)]);
        let refused = import(&long, 4096);
        assert!(refused.starts_with("INVALID"), "{address:#x}: {refused}");
        // A second export of memory that is open already does not extend the first.
        let there = import(&exported, 4096);
        let again = forged(&exported, &[(ADDRESS, address + 2 * MIB as u64), (SPAN, 4 * MIB as u64)]);
        let refused = import(&again, 4096);
        assert!(refused.starts_with("INVALID"), "{address:#x}: {refused}");
        assert_eq!(other.ask(&format!("close {there}")), "closed");
    }
    // A handle of a process that has another number, or the same number in another namespace.
    let exported = queue.export(memory.address, 4096, 1).unwrap();
    let mut stranger = exported.clone();
    stranger[PID] ^= 1;
    for bytes in [stranger, forged(&exported, &[(NAMESPACE, 7)]), forged(&exported, &[(NAMESPACE, 0)])] {
        let refused = other.ask(&format!("import {} 4096", hex(&bytes)));
        assert!(refused.starts_with("UNAVAILABLE") && refused.contains("another pid namespace"), "{refused}");
    }
    let there = other.ask(&format!("import {} 4096", hex(&exported)));
    assert_eq!(other.ask(&format!("close {there}")), "closed");
    other.end();
}

/// Each export of memory that was mapped by hand costs a descriptor: the count is bounded, and withdrawing makes room.
#[test]
fn exports_that_cost_a_descriptor_are_bounded() {
    if std::env::var_os("FERRY_TEST_OTHER").is_some() {
        return;
    }
    let Some(gpu) = gpu("exports_that_cost_a_descriptor_are_bounded") else { return };
    let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limits live on this stack.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut files), 0);
        files.rlim_cur = files.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &files), 0);
    }
    let (ordinary, memory) = (gpu.device(MIB), mapped(&gpu, 1));
    let mut queue = gpu.queue(1);
    let exported: Vec<_> =
        (0..DEVICE_EXPORTS_MAX).map(|_| queue.export(memory.address, 4096, 1).unwrap()).collect();
    assert_eq!(queue.export(memory.address, 4096, 1).unwrap_err().status, Status::Limit);
    let free = queue.export(ordinary.address, 4096, 1).unwrap();
    queue.withdraw(&free);
    queue.withdraw(&exported[0]);
    let last = queue.export(memory.address, 4096, 1).unwrap();
    exported[1..].iter().chain([&last]).for_each(|exported| queue.withdraw(exported));
}

#[test]
fn an_import_that_fails_leaves_nothing_behind() {
    if is_real() || std::env::var_os("FERRY_TEST_OTHER").is_some() {
        return;
    }
    for (function, code, status) in [
        ("cuMemImportFromShareableHandle", 801, Status::Unavailable),
        ("cuMemAddressReserve", 2, Status::NoMemory),
        ("cuMemMap", 205, Status::Unavailable),
        ("cuMemMap", 801, Status::Invalid),
        ("cuMemSetAccess", 217, Status::Unavailable),
    ] {
        let Some(gpu) = standin("an_import_that_fails_leaves_nothing_behind") else { return };
        let memory = mapped(&gpu, 1);
        let mut queue = gpu.queue(1);
        let exported = queue.export(memory.address, 4096, 1).unwrap();
        // As if it had another number, so that its memory is not taken for our own; the descriptor is ours.
        let owner = numbered(0);
        gpu.standin().fault(function, "1", code);
        let error = import(&mut *queue, &exported, 4096, &owner).unwrap_err();
        assert_eq!((error.vendor_error, error.status), (code, status), "{function}: {error}");
        let address = import(&mut *queue, &exported, 4096, &owner).unwrap();
        assert_ne!(address, memory.address);
        queue.close(address).unwrap();
    }
}
