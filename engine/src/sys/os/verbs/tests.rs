//! Tests that need no device.

use super::*;

#[test]
fn devices_or_a_reason() {
    match device_names() {
        Ok(names) => assert!(names.iter().all(|name| !name.is_empty())),
        Err(reason) => {
            eprintln!("SKIPPED: a list of devices: {reason}");
            assert!(reason.contains("libibverbs") || reason.contains("kernel"), "{reason}");
        }
    }
    let errno = Context::open("no-such-device").unwrap_err().raw_os_error();
    assert!(matches!(errno, Some(libc::ENODEV | libc::ENOSYS | libc::EOPNOTSUPP)), "{errno:?}");
}

#[test]
fn statuses_have_names() {
    assert_eq!(wc::name(wc::SUCCESS), "success");
    assert_eq!(wc::name(wc::REM_ACCESS_ERR), "remote access error");
    assert_eq!(wc::name(u32::MAX), "unknown error");
    assert_eq!((0..24).filter(|status| wc::name(*status) != "unknown error").count(), 17);
}

#[test]
fn numbers_become_errors_whoever_returns_them() {
    assert!(check(0).is_ok());
    assert_eq!(check(libc::ENOMEM).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    assert_eq!(check(-libc::ENOMEM).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    // SAFETY: a bad descriptor, and no memory: sets errno.
    unsafe { libc::close(-1) };
    assert_eq!(check(-1).unwrap_err().raw_os_error(), Some(libc::EBADF));
    assert!(check(libc::c_int::MIN).is_err());
}

#[test]
fn an_empty_slot_is_no_completion_of_anything() {
    let slot = Completion::default();
    assert_eq!((slot.id(), slot.bytes()), (0, 0));
    assert!(format!("{slot:?}").starts_with("success (work request 0x0"));
}
