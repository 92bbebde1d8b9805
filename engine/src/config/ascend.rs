//! Settings by the names that users of Ascend know from other software: `ASCEND_*` variables. They count only while
//! `ascend` is on, and `FERRY_*` variables override them.
//!
//! | variable | becomes |
//! |---|---|
//! | ASCEND_BUFFER_POOL, buffers:MiB | `staging_slots` that hold as much; 0:0 (no pool) changes nothing |
//! | ASCEND_CONNECT_TIMEOUT, ms | `connect_timeout_ms` |
//! | ASCEND_TRANSFER_TIMEOUT, ms | `deadline_ms` |
//!
//! HCCL_INTRA_ROCE_ENABLE is not read: it concerns the devices of one server, where ferry has no choice.

use super::Config;
use crate::limits::STAGE_BYTES;
use crate::status::{Error, Result};
use std::ffi::OsString;

const MIB: u64 = 1 << 20;
/// The most buffers, and MiB of one buffer; larger values are taken for a mistake.
const BUFFERS_MAX: u64 = 1024;
const BUFFER_MIB_MAX: u64 = 4096;
const TIMEOUT_MS_MAX: u64 = 600_000;
/// The valid values of `staging_slots`.
const SLOTS: std::ops::RangeInclusive<u64> = 2..=64;

/// Applies the variables. INVALID names the variable with a bad value.
pub(super) fn apply(config: &mut Config, lookup: impl Fn(&str) -> Option<OsString>) -> Result<()> {
    let value = |name: &str| match lookup(name).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(Err(_)) => Err(Error::invalid(format!("{name}: the value is not UTF-8"))),
    };
    let timeout = |name: &str| match value(name)? {
        None => Ok(None),
        Some(text) => match number(&text) {
            Some(ms @ 1..=TIMEOUT_MS_MAX) => Ok(Some(ms)),
            _ => Err(refuse(name, &text, &format!("1 to {TIMEOUT_MS_MAX}, in milliseconds"))),
        },
    };
    if let Some(bytes) = value("ASCEND_BUFFER_POOL")?.map(|text| pool_bytes(&text)).transpose()? {
        let slots = bytes.div_ceil(u64::from(STAGE_BYTES)).clamp(*SLOTS.start(), *SLOTS.end());
        config.staging_slots = if bytes == 0 { config.staging_slots } else { slots as u32 };
    }
    config.connect_timeout_ms = timeout("ASCEND_CONNECT_TIMEOUT")?.unwrap_or(config.connect_timeout_ms);
    config.deadline_ms = timeout("ASCEND_TRANSFER_TIMEOUT")?.unwrap_or(config.deadline_ms);
    Ok(())
}

fn pool_bytes(text: &str) -> Result<u64> {
    let parts = text.split_once(':').map(|(buffers, mib)| (number(buffers), number(mib)));
    match parts {
        Some((Some(0), Some(0))) => Ok(0),
        Some((Some(buffers @ 1..=BUFFERS_MAX), Some(mib @ 1..=BUFFER_MIB_MAX))) => Ok(buffers * mib * MIB),
        _ => {
            let valid = format!("buffers:MiB, up to {BUFFERS_MAX}:{BUFFER_MIB_MAX}, or 0:0");
            Err(refuse("ASCEND_BUFFER_POOL", text, &valid))
        }
    }
}

/// Reads a number of digits only; the standard parser would also accept "+5".
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn refuse(name: &str, text: &str, valid: &str) -> Error {
    Error::invalid(format!("{name}: {text:?} is refused; valid: {valid}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn with(variables: &[(&str, &str)]) -> Result<Config> {
        let named = |asked: &str| variables.iter().find(|(name, _)| *name == asked);
        Config::from_variables(|asked| named(asked).map(|(_, text)| text.into()))
    }

    fn slots(pool: &str) -> u32 {
        with(&[("ASCEND_BUFFER_POOL", pool)]).unwrap().staging_slots
    }

    #[test]
    fn what_is_not_set_or_empty_changes_nothing() {
        let all = ["ASCEND_BUFFER_POOL", "ASCEND_CONNECT_TIMEOUT", "ASCEND_TRANSFER_TIMEOUT"];
        for config in [with(&[]), with(&all.map(|name| (name, ""))), with(&[("ASCEND_BUFFER_POOL", "0:0")])] {
            let (config, default) = (config.unwrap(), Config::default());
            let of = |config: &Config| (config.staging_slots, config.connect_timeout_ms, config.deadline_ms);
            assert_eq!(of(&config), of(&default));
        }
    }

    #[test]
    fn a_pool_becomes_as_many_slots_as_hold_it() {
        assert_eq!(
            [slots("4:8"), slots("3:1"), slots("1:1"), slots("1:4"), slots("1024:4096")],
            [16, 2, 2, 2, 64]
        );
        assert_eq!([slots("32:4"), slots("5:1")], [64, 3]);
        for bad in ["4", "4:", ":8", "4:8:2", "+4:8", "4: 8", "0:8", "4:0", "1025:8", "4:4097", "four:8"] {
            let error = with(&[("ASCEND_BUFFER_POOL", bad)]).unwrap_err();
            assert!(error.message.starts_with("ASCEND_BUFFER_POOL: "), "{bad}: {error}");
        }
    }

    #[test]
    fn timeouts_are_milliseconds() {
        let config = with(&[("ASCEND_CONNECT_TIMEOUT", "600000"), ("ASCEND_TRANSFER_TIMEOUT", "1")]).unwrap();
        assert_eq!((config.connect_timeout_ms, config.deadline_ms), (600_000, 1));
        config.validate().unwrap();
        for bad in ["0", "600001", "-1", "1s", "18446744073709551616"] {
            for name in ["ASCEND_CONNECT_TIMEOUT", "ASCEND_TRANSFER_TIMEOUT"] {
                assert!(with(&[(name, bad)]).unwrap_err().message.starts_with(name), "{bad}");
            }
        }
        let raw = |name: &str| (name == "ASCEND_CONNECT_TIMEOUT").then(|| OsString::from_vec(vec![0xff]));
        assert!(Config::from_variables(raw).unwrap_err().message.starts_with("ASCEND_CONNECT_TIMEOUT"));
    }

    #[test]
    fn ferrys_own_variables_win_and_may_turn_them_off() {
        let both = [("ASCEND_CONNECT_TIMEOUT", "70"), ("FERRY_CONNECT_TIMEOUT_MS", "80")];
        assert_eq!(with(&both).unwrap().connect_timeout_ms, 80);
        let mut config = with(&both[..1]).unwrap();
        assert_eq!(config.connect_timeout_ms, 70);
        config.set("connect_timeout_ms", "90").unwrap();
        assert_eq!(config.connect_timeout_ms, 90);
        for off in ["false", "0"] {
            let nonsense =
                [("ASCEND_BUFFER_POOL", "many"), ("ASCEND_CONNECT_TIMEOUT", "70"), ("FERRY_ASCEND", off)];
            let config = with(&nonsense).unwrap();
            assert_eq!(config.connect_timeout_ms, Config::default().connect_timeout_ms, "{off}");
        }
    }
}
