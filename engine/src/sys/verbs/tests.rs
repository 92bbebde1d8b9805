//! What holds without a device.

use super::*;

#[test]
fn devices_or_a_reason() {
    match device_names() {
        Ok(names) => assert!(names.iter().all(|name| !name.is_empty())),
        Err(reason) => assert!(reason.len() > 10, "{reason}"),
    }
    assert!(Context::open("no-such-device").is_err());
}
