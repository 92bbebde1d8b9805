//! Slices of one run whose copies fail apart: a device's batch as a whole, a piece of a file alone.

use super::*;
use crate::sys::file::FileCall;
use std::cell::Cell;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::mpsc::channel;

/// The device's batch fails first; its error is none of the file's slices, and a slice fails once.
#[test]
fn a_batch_that_fails_fails_its_own_slices_alone() {
    let two = Two::new(&[("transports", "tcp")]);
    let (device, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, None, MIB));
    let mut options_file = OpenOptions::new();
    options_file.read(true).write(true).custom_flags(libc::O_TMPFILE);
    let file = options_file.open(std::env::temp_dir()).unwrap();
    file.write_all_at(&pattern(7, MIB), 0).unwrap();
    let file = two.a.register_file(&file, 0, MIB as u64, &RegionOptions::default()).unwrap();
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    two.a.files().hooks.ended.set(move |(call, result): &(FileCall, Cell<i32>)| {
        if call.offset == 0 {
            wait.lock().unwrap().recv_timeout(BOUND).unwrap();
            result.set(-libc::EIO);
        }
    });
    let of_file = |at: usize, to: usize| Request {
        local: file.address + at as u64,
        ..request(&device, &remote, (0, to), 4096)
    };
    let list = [request(&device, &remote, (0, 0), 4096), of_file(0, 8192), of_file(65536, 65536)];
    two.fake.fail_in.store(0, Ordering::SeqCst);
    let transfer = two.a.submit(two.peer, Op::Write, &list, &options()).unwrap();
    until("the device's batch fails", || two.fake.fail_in.load(Ordering::SeqCst) < 0);
    // The stage hears of this transfer's batch after the one that failed.
    two.run(Op::Write, &list[..1], &options());
    go.send(()).unwrap();
    let result = transfer.wait(Some(BOUND)).unwrap();
    let each: Vec<_> = transfer.results().iter().map(|it| (it.status, it.os_error)).collect();
    assert_eq!(each, [(Status::System, 0), (Status::System, libc::EIO), (Status::Ok, 0)]);
    assert_eq!((result.status, result.bytes_confirmed), (Status::Partial, 4096));
    assert!(remote.read(65536, 4096) == pattern(7, MIB)[65536..][..4096]);
}
