//! The ends of files and of disks: each request has its own result and errno, and the others are not affected.

use crate::common::data::{check, contents, fill, pattern};
use crate::common::role::Role;
use crate::support::{
    at_b, bytes_of, check_file, done, holding, moved, open_region, pair, results, temporary, to_b, ways,
};
use ferry::types::{Op, Request};
use ferry::{Access, RegionOptions, State, Status};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

const OK: (Status, i32) = (Status::Ok, 0);
const NO_DATA: (Status, i32) = (Status::System, libc::ENODATA);
const UNTOUCHED: u8 = 0x55;

#[test]
fn a_read_beyond_the_end_fails_alone_and_a_write_there_extends_the_file() {
    for way in ways("a_read_beyond_the_end") {
        let pair = pair(way, "tcp");
        let bytes = pattern(3, 10_000);
        let file = holding(&bytes);
        let region = at_b(&pair, &file, 0, 1 << 20);
        let memory = pair.a.alloc(1 << 20, &open_region()).unwrap();
        memory.write(0, &vec![UNTOUCHED; 1 << 20]);
        let at = |at: usize, length| to_b(memory.address() + at as u64, &region, at, length);
        // Neighbours in the file and in memory make one call: those before the end arrive.
        let list = [at(0, 4096), at(4096, 4096), at(8192, 4096), at(12288, 4096), at(500_000, 8)];
        assert_eq!(results(&pair, Op::Read, &list), [OK, OK, NO_DATA, NO_DATA, NO_DATA], "{way}");
        check(way, &contents(&memory)[..8192], &bytes[..8192]);
        check(way, &contents(&memory)[12288..], &vec![UNTOUCHED; (1 << 20) - 12288]);
        assert_eq!(results(&pair, Op::Read, &[at(9_992, 8), at(9_993, 8)]), [OK, NO_DATA], "{way}");
        fill(&memory, 9);
        done(way, &moved(&pair, Op::Write, &[at(100_000, 5000)]));
        assert_eq!(file.metadata().unwrap().len(), 105_000);
        check_file(way, &file, 100_000, &pattern(9, 105_000)[100_000..]);
        check_file(way, &file, 10_000, &vec![0; 90_000]);
        check_file(way, &file, 0, &bytes);
        // The hole is data.
        done(way, &moved(&pair, Op::Read, &[at(40_000, 100)]));
        assert_eq!(contents(&memory)[40_000..40_100], [0; 100]);
    }
}

/// The same, with the file as the local end.
#[test]
fn the_end_of_a_local_file_fails_its_requests_alone() {
    for way in ways("the_end_of_a_local_file") {
        let pair = pair(way, "tcp");
        let file = holding(&pattern(3, 10_000));
        let here = pair.a.register_file(&file, 0, 1 << 20, &open_region()).unwrap();
        let target = holding(&vec![UNTOUCHED; 20_000]);
        let there = at_b(&pair, &target, 0, 20_000);
        let memory = pair.b.alloc(20_000, &open_region()).unwrap();
        crate::common::wait_for_region(&pair.a, pair.b_at_a, memory.region());
        memory.write(0, &vec![UNTOUCHED; 20_000]);
        for (remote, remote_region) in [(there.address, there.region), (memory.address(), memory.region())] {
            let at = |from: u64, to: u64, length| Request {
                local: here.address + from,
                remote: remote + to,
                length,
                remote_region,
            };
            let list = [at(0, 0, 4096), at(9_000, 4096, 4096), at(4096, 8192, 100), at(1 << 19, 9000, 9)];
            assert_eq!(results(&pair, Op::Write, &list), [OK, NO_DATA, OK, NO_DATA], "{way}");
        }
        let expected = |bytes: &[u8]| {
            check(way, &bytes[..4096], &pattern(3, 4096));
            check(way, &bytes[8192..8292], &pattern(3, 4196)[4096..]);
            check(way, &bytes[4096..8192], &[UNTOUCHED; 4096]);
            check(way, &bytes[9000..], &vec![UNTOUCHED; 11_000]);
        };
        expected(&bytes_of(&target, 0, 20_000));
        expected(&contents(&memory));
    }
}

#[test]
fn a_file_that_is_cut_or_grown_in_use_raises_no_signal() {
    for way in ways("a_file_that_is_cut") {
        let pair = pair(way, "local");
        let bytes = pattern(4, 2 << 20);
        let file = holding(&bytes);
        let region = at_b(&pair, &file, 0, 2 << 20);
        let memory = pair.a.alloc(2 << 20, &open_region()).unwrap();
        let all: Vec<_> = (0..128)
            .map(|at| to_b(memory.address() + (at << 14), &region, (at as usize) << 14, 1 << 14))
            .collect();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let cutter = scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    file.set_len(100_000).unwrap();
                    file.write_all_at(&bytes, 0).unwrap();
                }
            });
            for _ in 0..50 {
                memory.write(0, &vec![0; 2 << 20]);
                let results = results(&pair, Op::Read, &all);
                let found = contents(&memory);
                for (at, result) in results.into_iter().enumerate() {
                    let range = at << 14..(at + 1) << 14;
                    match result {
                        // While the file grows again, what is not written yet may be a hole.
                        OK => assert!(found[range.clone()]
                            .chunks(8)
                            .zip(bytes[range].chunks(8))
                            .all(|(a, b)| a == b || a.iter().all(|byte| *byte == 0))),
                        failed => assert_eq!(failed, NO_DATA),
                    }
                }
            }
            stop.store(true, std::sync::atomic::Ordering::SeqCst);
            cutter.join().unwrap();
        });
        done(way, &moved(&pair, Op::Read, &all));
        check(way, &contents(&memory), &bytes);
    }
}

/// This engine's own READ into a file that it may only read, and the reverse.
#[test]
fn a_local_file_without_the_right_fails_with_its_errno() {
    for way in ways("a_local_file_without_the_right") {
        let pair = pair(way, "tcp");
        let path = std::env::temp_dir().join(format!("ferry-own-{way}-{}", std::process::id()));
        std::fs::write(&path, [1; 4096]).unwrap();
        let reading = File::open(&path).unwrap();
        let writing = OpenOptions::new().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let memory = pair.b.alloc(4096, &open_region()).unwrap();
        crate::common::wait_for_region(&pair.a, pair.b_at_a, memory.region());
        let access = |access| RegionOptions { access, ..RegionOptions::default() };
        for (file, op, access) in [
            (reading, Op::Read, access(Access::REMOTE_READ)),
            (writing, Op::Write, access(Access::REMOTE_WRITE)),
        ] {
            let region = pair.a.register_file(&file, 0, 4096, &access).unwrap();
            for length in [4096, 100] {
                let (remote, remote_region) = (memory.address(), memory.region());
                let one = [Request { local: region.address, remote, length, remote_region }];
                assert_eq!(results(&pair, op, &one), [(Status::System, libc::EBADF)], "{way} {op:?}");
            }
        }
    }
}

/// A file of a file system of `bytes` bytes, which no other thread sees. None, said aloud: this process may not mount.
fn small_disk(test: &str, bytes: u64) -> Option<File> {
    let mount = move || -> std::io::Result<File> {
        let check = |result| if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
        let folder = std::env::temp_dir().join(format!("ferry-disk-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let place = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
        let size = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        // SAFETY: the strings live during the calls. This thread alone gets the new namespace.
        unsafe {
            check(libc::unshare(libc::CLONE_NEWNS))?;
            let private = libc::MS_REC | libc::MS_PRIVATE;
            check(libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()))?;
            let (name, options) = (c"tmpfs".as_ptr(), size.as_ptr().cast());
            check(libc::mount(name, place.as_ptr(), name, 0, options))?;
        }
        OpenOptions::new().read(true).write(true).create_new(true).open(folder.join("file"))
    };
    match std::thread::spawn(mount).join().unwrap() {
        Ok(file) => Some(file),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "SKIPPED files::{test}: mounting: {error} (1 skipped)");
            None
        }
    }
}

#[test]
fn a_full_disk_fails_what_has_no_room_with_enospc() {
    for way in ways("a_full_disk") {
        let Some(file) = small_disk("a_full_disk", 1 << 20) else { return };
        let pair = pair(way, "tcp");
        let region = at_b(&pair, &file, 0, 8 << 20);
        let memory = pair.a.alloc(8 << 20, &open_region()).unwrap();
        fill(&memory, 5);
        let at = |at: usize, length| to_b(memory.address() + at as u64, &region, at, length);
        // Alone: blocks of one transfer take what room there is in any order.
        done(way, &moved(&pair, Op::Write, &[at(0, 1 << 19)]));
        let results = results(&pair, Op::Write, &[at(1 << 20, 1 << 20), at(4 << 20, 1 << 20)]);
        assert!(results.iter().all(|result| *result == (Status::System, libc::ENOSPC)), "{results:?}");
        check_file(way, &file, 0, &pattern(5, 1 << 19));
        // Freed room is used again.
        file.set_len(0).unwrap();
        done(way, &moved(&pair, Op::Write, &[at(4 << 20, 1 << 19)]));
        check_file(way, &file, 4 << 20, &pattern(5, 8 << 20)[4 << 20..(4 << 20) + (1 << 19)]);
    }
}

/// Not a test: a process whose files may have 64 KiB, with SIGXFSZ as it is by default.
#[test]
#[ignore = "the other process of a test"]
fn limited_role() {
    let Ok(way) = std::env::var("FILES_ROLE") else { return };
    let pair = pair(&way, "tcp");
    let file = temporary();
    let region = at_b(&pair, &file, 0, 1 << 20);
    let memory = pair.a.alloc(1 << 20, &open_region()).unwrap();
    fill(&memory, 6);
    let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is read during the call. SIGXFSZ gets its default action, which ends the program.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
    let at = |at: usize, length| to_b(memory.address() + at as u64, &region, at, length);
    let list = [at(0, 64 << 10), at(68 << 10, 4096), at((128 << 10) + 1, 77)];
    let too_large = (Status::System, libc::EFBIG);
    assert_eq!(results(&pair, Op::Write, &list), [OK, too_large, too_large]);
    // In part below the limit.
    assert_eq!(results(&pair, Op::Write, &[at(60 << 10, 8192)]), [too_large]);
    check_file("written", &file, 0, &pattern(6, 64 << 10));
    println!("@@ alive");
}

#[test]
fn the_limit_of_file_sizes_fails_requests_and_ends_no_program() {
    for way in ways("the_limit_of_file_sizes") {
        let mut role = Role::start("faults::limited_role", |command| {
            command.env("FILES_ROLE", way);
        });
        assert_eq!(role.answer(), "alive", "{way}");
        role.ends_well();
    }
}

/// A file on a loop device, if the machine has them.
#[test]
fn a_block_device_is_a_file_of_a_fixed_length() {
    let test = "a_block_device";
    let path = std::env::temp_dir().join(format!("ferry-block-{}", std::process::id()));
    std::fs::write(&path, vec![1; 4 << 20]).unwrap();
    let looped = std::process::Command::new("losetup").args(["--show", "-f"]).arg(&path).output();
    let device = looped.ok().filter(|it| it.status.success());
    let Some(device) = device.map(|it| String::from_utf8(it.stdout).unwrap().trim().to_owned()) else {
        let _ = writeln!(std::io::stderr(), "SKIPPED files::{test}: there are no loop devices (1 skipped)");
        std::fs::remove_file(&path).unwrap();
        return;
    };
    for way in ways(test) {
        let file = OpenOptions::new().read(true).write(true).open(&device).unwrap();
        let pair = pair(way, "tcp");
        let beyond = pair.b.register_file(&file, 1, 4 << 20, &open_region()).unwrap_err();
        assert_eq!(beyond.status, Status::Invalid, "{beyond}");
        let region = at_b(&pair, &file, 0, 4 << 20);
        let memory = pair.a.alloc(4 << 20, &open_region()).unwrap();
        fill(&memory, 7);
        let all = [to_b(memory.address(), &region, 0, 4 << 20)];
        done(way, &moved(&pair, Op::Write, &all));
        fill(&memory, 8);
        done(way, &moved(&pair, Op::Read, &all));
        check(way, &contents(&memory), &pattern(7, 4 << 20));
        assert_eq!(moved(&pair, Op::Read, &all).state, State::Done);
    }
    let _ = std::process::Command::new("losetup").args(["-d", &device]).status();
    std::fs::remove_file(&path).unwrap();
}
