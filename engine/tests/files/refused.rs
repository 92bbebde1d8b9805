//! What can't be registered, and why.

use crate::common::engine;
use crate::support::{holding, open_region, temporary};
use ferry::{Access, Engine, RegionOptions, Status};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

fn refused(engine: &Engine, file: impl AsFd, range: (u64, u64), access: Access) -> (Status, i32, String) {
    let options = RegionOptions { access, ..RegionOptions::default() };
    let error = engine.register_file(file, range.0, range.1, &options).unwrap_err();
    (error.status, error.os_error, error.message)
}

#[test]
fn what_is_no_file_is_refused_by_its_name() {
    let engine = engine(&[]);
    let mut ends = [0; 2];
    // SAFETY: fills two descriptors, which nobody else owns.
    let pipe: [OwnedFd; 2] = unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        ends.map(|end| OwnedFd::from_raw_fd(end))
    };
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/").unwrap();
    let cases: [(&dyn AsFd, &str); 5] = [
        (&pipe[0], "a pipe"),
        (&File::open("/").unwrap(), "a directory"),
        (&socket, "a socket"),
        (&File::open("/dev/null").unwrap(), "a character device"),
        (&path, "O_PATH"),
    ];
    for (file, name) in cases {
        let (status, _, text) = refused(&engine, file.as_fd(), (0, 100), Access::BOTH);
        assert_eq!(status, Status::Invalid, "{text}");
        assert!(text.starts_with("fd: ") && text.contains(name), "{text}");
    }
    assert_eq!(engine.stats().unwrap().regions, 0);
}

#[test]
fn ranges_beyond_all_files_are_refused() {
    let engine = engine(&[]);
    let file = temporary();
    let most = i64::MAX as u64;
    for (offset, length) in [(0, 0), (most, 1), (1, most), (u64::MAX, 1), (u64::MAX, u64::MAX), (0, most + 1)]
    {
        let (status, _, text) = refused(&engine, &file, (offset, length), Access::BOTH);
        assert_eq!(status, Status::Invalid, "{offset} + {length}: {text}");
    }
    // Only one of the largest files has room among the addresses.
    let all = engine.register_file(&file, 0, most, &open_region()).unwrap();
    let (status, _, text) = refused(&engine, &file, (0, most), Access::BOTH);
    assert_eq!(status, Status::Limit, "{text}");
    engine.unregister(all.region, None).unwrap();
    engine.register_file(&file, 0, most, &open_region()).unwrap();
}

#[test]
fn rights_that_the_descriptor_lacks_are_refused() {
    let engine = engine(&[]);
    let path = std::env::temp_dir().join(format!("ferry-rights-{}", std::process::id()));
    std::fs::write(&path, [0; 100]).unwrap();
    let reading = File::open(&path).unwrap();
    let writing = OpenOptions::new().write(true).open(&path).unwrap();
    let appending = OpenOptions::new().read(true).append(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lacks = |(status, errno, text): (Status, i32, String), what: &str| {
        assert_eq!((status, errno), (Status::Access, libc::EBADF), "{text}");
        assert!(text.contains(what), "{text}");
    };
    lacks(refused(&engine, &reading, (0, 100), Access::BOTH), "not open for writing");
    lacks(refused(&engine, &writing, (0, 100), Access::BOTH), "not open for reading");
    let one = |access| RegionOptions { access, ..RegionOptions::default() };
    engine.register_file(&reading, 0, 100, &one(Access::REMOTE_READ)).unwrap();
    engine.register_file(&writing, 0, 100, &one(Access::REMOTE_WRITE)).unwrap();
    let (status, _, text) = refused(&engine, &appending, (0, 100), Access::BOTH);
    assert_eq!(status, Status::Invalid);
    assert!(text.contains("O_APPEND"), "{text}");
}

/// The number of open descriptors of this process that lead to this file.
fn descriptors_of(file: &File) -> usize {
    use std::os::unix::fs::MetadataExt;
    let wanted = file.metadata().unwrap();
    let same = |path: std::path::PathBuf| {
        std::fs::metadata(path).is_ok_and(|it| (it.dev(), it.ino()) == (wanted.dev(), wanted.ino()))
    };
    std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(|entry| same(entry.path())).count()
}

#[test]
fn descriptors_are_the_engines_own_and_end_with_the_region_or_the_engine() {
    let engine = engine(&[]);
    let file = holding(&[7; 4096]);
    assert_eq!(descriptors_of(&file), 1);
    let region = engine.register_file(&file, 0, 4096, &open_region()).unwrap();
    assert!(descriptors_of(&file) > 1);
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        use std::os::fd::AsRawFd;
        let number: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        let Ok(found) = std::fs::read_link(format!("/proc/self/fd/{number}")) else { continue };
        if found == std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap() {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
            assert_ne!(flags & libc::O_CLOEXEC, 0, "descriptor {number}");
        }
    }
    engine.unregister(region.region, None).unwrap();
    assert_eq!(descriptors_of(&file), 1);
    // A region that can't be registered leaves nothing.
    let options = RegionOptions { name: "x".repeat(64), ..open_region() };
    assert!(engine.register_file(&file, 0, 4096, &options).is_err());
    assert_eq!(descriptors_of(&file), 1);
    engine.register_file(&file, 0, 4096, &open_region()).unwrap();
    engine.close(None).unwrap();
    assert_eq!(descriptors_of(&file), 1);
}

#[test]
fn the_kind_file_needs_a_descriptor() {
    let engine = engine(&[]);
    let mut bytes = [0u8; 64];
    let location = Some(ferry::types::Location { kind: ferry::MemoryKind::File, device: 0 });
    let options = RegionOptions { location, ..open_region() };
    // SAFETY: refused, so nothing is borrowed.
    let error = unsafe { engine.register(bytes.as_mut_ptr(), 64, &options) }.unwrap_err();
    assert_eq!(error.status, Status::Invalid);
    assert!(error.message.contains("by its descriptor"), "{error}");
}
