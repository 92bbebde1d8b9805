//! Memory of other processes: one process exports; another process, which it starts, imports, reads and writes.

use crate::npu::{alone, cause, expect, finish, host_slice, pattern, Npu, MIB};
use ferry::internals::device::{Borrowed, Direction, Piece};
use ferry::internals::sys::proven::Proven;
use ferry::internals::sys::unix;
use ferry::limits::DEVICE_EXPORTS_MAX;
use ferry::types::PeerId;
use ferry::Status;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

const IMPORTER: &str = "FERRY_TEST_ASCEND_IMPORTER";

/// The process that imports: this program again. It obeys each line and answers with a line.
struct Importer {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// The process's number as its driver counts.
    pid: i32,
}

impl Importer {
    fn start(device: i32) -> Importer {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shared::importer", "--ignored", "--nocapture", "--test-threads=1"])
            .env(IMPORTER, device.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut importer = Importer { process, input, output, pid: 0 };
        importer.pid = importer.answer().parse().unwrap();
        importer
    }

    fn answer(&mut self) -> String {
        loop {
            let line = self.output.next().expect("the importer has ended").unwrap();
            if let Some((_, answer)) = line.split_once("@@ ") {
                return answer.to_owned();
            }
        }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.answer()
    }

    /// Imports an export; returns the import's number, or the status and code.
    fn import(&mut self, exported: &[u8]) -> Result<usize, String> {
        self.import_of(PeerId::from_raw(1), exported, 1)
    }

    /// Imports `length` bytes of an export of this peer.
    fn import_of(&mut self, peer: PeerId, exported: &[u8], length: u64) -> Result<usize, String> {
        let hex = exported.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
        let answer = self.ask(&format!("import {hex} {peer} {length}"));
        answer.parse().map_err(|_| answer)
    }

    fn end(mut self) {
        assert_eq!(self.ask("end"), "ended");
        assert!(self.process.wait().unwrap().success());
    }
}

/// Returns a process as a same-host path would have proven it.
fn proven(pid: u32) -> Proven {
    let pid = pid as i32;
    Proven::new(pid, Arc::new(unix::pidfd_of(pid).unwrap()))
}

#[test]
#[ignore = "a role in the others, not a test"]
fn importer() {
    let Ok(device) = std::env::var(IMPORTER) else { return };
    let device = device.parse().unwrap();
    let mut npu = Npu::beside();
    npu.start(device);
    let host = npu.host_memory(8 * MIB);
    npu.with_queue(device, MIB, 2, |queue| {
        println!("@@ {}", npu.driver.process_id());
        let (mut imported, owner) = (Vec::new(), proven(std::os::unix::process::parent_id()));
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<usize>().unwrap();
            let copy = |queue: &mut dyn ferry::internals::device::Queue, direction, to, from, length| {
                let batch = queue.copy(direction, &[Piece { to, from, length }])?;
                finish(queue, batch)
            };
            let said = match words[0] {
                "import" => {
                    let byte = |at: usize| u8::from_str_radix(&words[1][at..at + 2], 16).unwrap();
                    let bytes: Vec<u8> = (0..words[1].len()).step_by(2).map(byte).collect();
                    let (peer, length) = (number(2) as u64, number(3) as u64);
                    queue
                        .import(&Borrowed {
                            exported: &bytes,
                            length,
                            peer: PeerId::from_raw(peer),
                            owner: &owner,
                        })
                        .map(|address| {
                            imported.push(address);
                            (imported.len() - 1).to_string()
                        })
                }
                // WHICH LENGTH SEED: checks the bytes that the exporter has written there.
                "read" => {
                    let length = number(2);
                    let from = imported[number(1)];
                    copy(queue, Direction::DeviceToHost, host, from, length as u64).map(|()| {
                        expect(host_slice(host, length), number(3) as u64);
                        "read".into()
                    })
                }
                "write" => {
                    let length = number(2);
                    host_slice(host, length).copy_from_slice(&pattern(length, number(3) as u64));
                    let to = imported[number(1)];
                    copy(queue, Direction::HostToDevice, to, host, length as u64).map(|()| "written".into())
                }
                "close" => queue.close(imported[number(1)]).map(|()| "closed".into()),
                _ => break,
            };
            match said {
                Ok(text) => println!("@@ {text}"),
                Err(error) => println!("@@ {} {}", error.status, error.vendor_error),
            }
        }
    })
    .unwrap();
    npu.free_host(host);
    npu.end();
    println!("@@ ended");
}

/// Copies from the exporter to the importer and back, both parts of one allocation.
fn both_ways(npu: &Npu, importer: &mut Importer, memory: u64, parts: &[u64]) {
    npu.with_queue(0, MIB, 1, |queue| {
        let exported: Vec<_> = parts
            .iter()
            .map(|offset| queue.export(memory + offset, 3 * MIB as u64, importer.pid).unwrap())
            .collect();
        for (at, offset) in parts.iter().enumerate() {
            npu.fill_device(memory + offset, 3 * MIB, 1);
            let which = importer.import(&exported[at]).unwrap();
            assert_eq!(importer.ask(&format!("read {which} {} 1", 3 * MIB)), "read");
            assert_eq!(importer.ask(&format!("write {which} {} 2", 3 * MIB)), "written");
            npu.expect_device(memory + offset, 3 * MIB, 2);
        }
        for (which, exported) in exported.iter().enumerate() {
            assert_eq!(importer.ask(&format!("close {which}")), "closed");
            queue.withdraw(exported);
        }
        assert_eq!(importer.ask("close 0"), "INVALID 0");
    })
    .unwrap();
}

#[test]
fn another_process_reads_and_writes_by_key() {
    // Before 9.0 only the beginning of an allocation can be exported.
    for (version, parts) in
        [("8.3", &[0u64][..]), ("8.5", &[0]), ("9.0", &[0, 4 << 20]), ("9.1", &[0, 4 << 20])]
    {
        for device in [0, 1] {
            alone(another_process_reads_and_writes_by_key, version, &[], |mut npu| {
                npu.start(0);
                let memory = npu.device_memory(8 * MIB);
                let mut importer = Importer::start(device);
                both_ways(&npu, &mut importer, memory, parts);
                importer.end();
                // Every export is withdrawn, so the memory can be freed.
                npu.free(memory);
                npu.end();
            });
        }
    }
}

/// Mapped memory has no key, but a handle that works over PCIe too.
#[test]
fn another_process_reads_and_writes_by_handle() {
    for (pcie, device) in [("0", 0), ("1", 0), ("1", 1)] {
        alone(another_process_reads_and_writes_by_handle, "9.1", &[("PCIE", pcie)], |mut npu| {
            npu.start(0);
            let mapped = npu.mapped_memory(0, 8 * MIB);
            let mut importer = Importer::start(device);
            both_ways(&npu, &mut importer, mapped.0, &[0, 4 << 20]);
            importer.end();
            npu.unmap(mapped);
            npu.end();
        });
    }
}

#[test]
fn what_can_not_be_shared_is_unavailable() {
    // Before 8.3 the library has no keys, and it has no handle of memory that was not mapped.
    alone(what_can_not_be_shared_is_unavailable, "8.1", &[], |mut npu| {
        npu.start(0);
        let memory = npu.device_memory(MIB);
        let error = npu.with_queue(0, MIB, 1, |queue| queue.export(memory, MIB as u64, 1).unwrap_err());
        let error = error.unwrap();
        assert_eq!(error.status, Status::Unavailable);
        let both = ["has no aclrtIpcMemGetExportKey", "aclrtMemRetainAllocationHandle failed with 107000"];
        assert!(both.iter().all(|reason| error.message.contains(reason)), "{error}");
        npu.free(memory);
        npu.end();
    });
    alone(what_can_not_be_shared_is_unavailable, "9.1", &[("PCIE", "1")], |mut npu| {
        npu.start(0);
        let memory = npu.device_memory(MIB);
        let mut importer = Importer::start(0);
        npu.with_queue(0, MIB, 1, |queue| {
            let exported = queue.export(memory, MIB as u64, importer.pid).unwrap();
            assert_eq!(importer.import(&exported), Err("UNAVAILABLE 507899".into()));
        })
        .unwrap();
        importer.end();
        npu.free(memory);
        npu.end();
    });
}

/// Whitelists hold the driver's process numbers, which differ from the numbers in a container.
#[test]
fn only_the_chosen_process_imports() {
    for offset in ["0", "100000"] {
        alone(only_the_chosen_process_imports, "9.1", &[("PID_OFFSET", offset)], |mut npu| {
            npu.start(0);
            let memory = npu.device_memory(MIB);
            let mapped = npu.mapped_memory(0, 2 * MIB);
            let mut importer = Importer::start(0);
            for address in [memory, mapped.0] {
                npu.with_queue(0, MIB, 1, |queue| {
                    let stranger = queue.export(address, MIB as u64, importer.pid + 1).unwrap();
                    assert_eq!(importer.import(&stranger), Err("ACCESS 207006".into()));
                    let meant = queue.export(address, MIB as u64, importer.pid).unwrap();
                    let which = importer.import(&meant).unwrap();
                    assert_eq!(importer.ask(&format!("close {which}")), "closed");
                })
                .unwrap();
            }
            importer.end();
            npu.free(memory);
            npu.unmap(mapped);
            npu.end();
        });
    }
}

/// An export that its importer has not closed stays, and is freed after the importer closes it.
#[test]
fn importers_close_first() {
    alone(importers_close_first, "9.1", &[], |mut npu| {
        npu.start(0);
        let (memory, other) = (npu.device_memory(MIB), npu.device_memory(MIB));
        npu.fill_device(memory, MIB, 1);
        let mut importer = Importer::start(0);
        npu.with_queue(0, MIB, 1, |queue| {
            let exported = queue.export(memory, MIB as u64, importer.pid).unwrap();
            importer.import(&exported).unwrap();
            queue.withdraw(&exported);
            assert_eq!(importer.ask(&format!("read 0 {MIB} 1")), "read");
            assert_eq!(importer.ask("close 0"), "closed");
            // A later withdrawal also frees this export.
            let before = npu.calls("aclrtIpcMemClose");
            let exported = queue.export(other, MIB as u64, importer.pid).unwrap();
            queue.withdraw(&exported);
            assert_eq!(npu.calls("aclrtIpcMemClose") - before, 2);
            npu.free(memory);
        })
        .unwrap();
        importer.end();
        npu.free(other);
        npu.end();
    });
}

/// An export that could not end, because a process still has it open, is not reused: new memory at the same address
/// gets its own export.
#[test]
fn an_export_that_is_left_over_is_not_found_again() {
    alone(an_export_that_is_left_over_is_not_found_again, "9.1", &[], |mut npu| {
        npu.start(0);
        let memory = npu.device_memory(MIB);
        let mut importer = Importer::start(0);
        npu.with_queue(0, MIB, 1, |queue| {
            let first = queue.export(memory, MIB as u64, importer.pid).unwrap();
            let again = queue.export(memory, MIB as u64, importer.pid).unwrap();
            assert_eq!(first, again, "in use, it is the same");
            importer.import(&first).unwrap();
            queue.withdraw(&again);
            queue.withdraw(&first);
            // Base and length are the same; the exporter can't tell whether the memory is.
            let fresh = queue.export(memory, MIB as u64, importer.pid).unwrap();
            assert_ne!(first, fresh);
            npu.fill_device(memory, MIB, 1);
            let which = importer.import(&fresh).unwrap();
            assert_eq!(importer.ask(&format!("read {which} {MIB} 1")), "read");
            assert_eq!([0, which].map(|it| importer.ask(&format!("close {it}"))), ["closed", "closed"]);
            queue.withdraw(&fresh);
        })
        .unwrap();
        importer.end();
        npu.free(memory);
        npu.end();
    });
}

/// Exported allocations are bounded; withdrawing an export makes room.
#[test]
fn exported_allocations_are_bounded() {
    alone(exported_allocations_are_bounded, "9.1", &[], |mut npu| {
        npu.start(0);
        let memories: Vec<u64> = (0..=DEVICE_EXPORTS_MAX).map(|_| npu.device_memory(4096)).collect();
        npu.with_queue(0, MIB, 1, |queue| {
            let (last, first) = memories.split_last().unwrap();
            let exported: Vec<_> = first.iter().map(|it| queue.export(*it, 4096, 1).unwrap()).collect();
            assert_eq!(queue.export(*last, 4096, 1).unwrap_err().status, Status::Limit);
            let again = queue.export(first[0], 4096, 1).unwrap();
            assert!(again == exported[0], "of what is exported there may be more");
            exported[..2].iter().for_each(|it| queue.withdraw(it));
            let last = queue.export(*last, 4096, 1).unwrap();
            exported[2..].iter().chain([&again, &last]).for_each(|it| queue.withdraw(it));
        })
        .unwrap();
        memories.into_iter().for_each(|memory| npu.free(memory));
        npu.end();
    });
}

/// An import keeps the length of its first announcement, whatever a later announcement says.
#[test]
fn a_second_import_stays_within_the_first() {
    const LENGTH: usize = 14;
    alone(a_second_import_stays_within_the_first, "9.1", &[], |mut npu| {
        npu.start(0);
        let (memory, mapped) = (npu.device_memory(2 * MIB), npu.mapped_memory(0, 2 * MIB));
        let mut importer = Importer::start(0);
        for address in [memory, mapped.0] {
            npu.with_queue(0, MIB, 1, |queue| {
                let size = 2 * MIB as u64;
                let exported = queue.export(address, size, importer.pid).unwrap();
                let mut long = exported.clone();
                long[LENGTH..LENGTH + 8].copy_from_slice(&(2 * size).to_le_bytes());
                let invalid = || Err("INVALID 0".to_owned());
                // Less than is wanted; and, where the library tells, less than was announced.
                assert_eq!(importer.import_of(PeerId::from_raw(1), &exported, size + 1), invalid());
                assert!(importer.import_of(PeerId::from_raw(1), &long, size).is_err());
                let which = importer.import_of(PeerId::from_raw(1), &exported, size).unwrap();
                assert_eq!(importer.import_of(PeerId::from_raw(1), &long, size), invalid());
                assert_eq!(importer.import_of(PeerId::from_raw(1), &long, 2 * size), invalid());
                assert_eq!(
                    importer.import_of(PeerId::from_raw(2), &exported, size),
                    invalid(),
                    "another peer's"
                );
                let again = importer.import_of(PeerId::from_raw(1), &exported, size).unwrap();
                for which in [which, again] {
                    assert_eq!(importer.ask(&format!("close {which}")), "closed");
                }
                queue.withdraw(&exported);
            })
            .unwrap();
        }
        importer.end();
        npu.free(memory);
        npu.unmap(mapped);
        npu.end();
    });
}

#[test]
fn ranges_and_words_that_are_wrong_are_refused() {
    alone(ranges_and_words_that_are_wrong_are_refused, "9.1", &[], |mut npu| {
        npu.start(0);
        let memory = npu.device_memory(MIB);
        npu.with_queue(0, MIB, 1, |queue| {
            let size = MIB as u64;
            for (address, length) in [(memory, 0), (memory, size + 1), (memory + 1, size), (memory, u64::MAX)]
            {
                assert_eq!(cause(&queue.export(address, length, 1).unwrap_err()).0, Status::Invalid);
            }
            let mut exported = queue.export(memory + size - 1, 1, 1).unwrap();
            let owner = proven(std::process::id());
            let mut import = |exported: &[u8]| {
                cause(
                    &queue
                        .import(&Borrowed { exported, length: 1, peer: PeerId::from_raw(1), owner: &owner })
                        .unwrap_err(),
                )
            };
            // The export is of this process.
            assert_eq!(import(&exported), (Status::System, 507_022));
            exported[0] += 1;
            assert_eq!(import(&exported).0, Status::Invalid);
            assert_eq!(import(&[]).0, Status::Invalid);
            assert_eq!(queue.close(memory).unwrap_err().status, Status::Invalid);
        })
        .unwrap();
        npu.free(memory);
        npu.end();
    });
}

/// Each failed call of an import is named, and its earlier steps are undone.
#[test]
fn an_import_that_fails_leaves_nothing() {
    alone(an_import_that_fails_leaves_nothing, "9.1", &[], |mut npu| {
        npu.start(0);
        let mapped = npu.mapped_memory(0, 2 * MIB);
        npu.with_queue(0, MIB, 1, |queue| {
            for function in ["aclrtMemImportFromShareableHandle", "aclrtReserveMemAddress", "aclrtMapMem"] {
                let fault = format!("{function}:1:507035");
                // The importer reads its knobs when it starts.
                std::env::set_var("FERRY_STANDIN_FAULT", &fault);
                let mut importer = Importer::start(0);
                let exported = queue.export(mapped.0, MIB as u64, importer.pid).unwrap();
                assert_eq!(importer.import(&exported), Err("UNAVAILABLE 507035".into()), "{function}");
                let which = importer.import(&exported).unwrap();
                assert_eq!(importer.ask(&format!("close {which}")), "closed");
                importer.end();
            }
        })
        .unwrap();
        npu.unmap(mapped);
        npu.end();
    });
}
