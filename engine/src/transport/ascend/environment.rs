//! Settings by the names that users of Ascend know from other software, as defaults for ferry's own.

use crate::status::{Error, Result};
use std::ffi::OsString;

const MIB: u64 = 1 << 20;
/// Buffers, and MiB of one: more is a mistake.
const BUFFERS_MAX: u64 = 1024;
const BUFFER_MIB_MAX: u64 = 4096;
const TIMEOUT_MS_MAX: u64 = 600_000;

/// What the environment says; None where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// ASCEND_BUFFER_POOL, buffers:MiB. 0:0 asks for none.
    pub pool: Option<Pool>,
    /// ASCEND_CONNECT_TIMEOUT.
    pub connect_timeout_ms: Option<u64>,
    /// ASCEND_TRANSFER_TIMEOUT.
    pub transfer_timeout_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    pub buffers: u32,
    pub buffer_bytes: u64,
}

/// INVALID names the variable whose value is no good.
pub fn defaults_from_environment() -> Result<Defaults> {
    read(|name| std::env::var_os(name))
}

fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Defaults> {
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
    let pool = value("ASCEND_BUFFER_POOL")?.map(|text| pool(&text)).transpose()?;
    Ok(Defaults {
        pool,
        connect_timeout_ms: timeout("ASCEND_CONNECT_TIMEOUT")?,
        transfer_timeout_ms: timeout("ASCEND_TRANSFER_TIMEOUT")?,
    })
}

fn pool(text: &str) -> Result<Pool> {
    let parts = text.split_once(':').map(|(buffers, mib)| (number(buffers), number(mib)));
    match parts {
        Some((Some(0), Some(0))) => Ok(Pool { buffers: 0, buffer_bytes: 0 }),
        Some((Some(buffers @ 1..=BUFFERS_MAX), Some(mib @ 1..=BUFFER_MIB_MAX))) => {
            Ok(Pool { buffers: buffers as u32, buffer_bytes: mib * MIB })
        }
        _ => {
            let valid = format!("buffers:MiB, up to {BUFFERS_MAX}:{BUFFER_MIB_MAX}, or 0:0");
            Err(refuse("ASCEND_BUFFER_POOL", text, &valid))
        }
    }
}

/// Digits only: the standard parser would also take "+5".
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn refuse(name: &str, text: &str, valid: &str) -> Error {
    Error::invalid(format!("{name}: {text:?} is refused; valid: {valid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, text: &str) -> Result<Defaults> {
        read(|asked| (asked == name).then(|| text.into()))
    }

    #[test]
    fn what_is_not_set_or_empty_says_nothing() {
        assert_eq!(read(|_| None).unwrap(), Defaults::default());
        assert_eq!(read(|_| Some("".into())).unwrap(), Defaults::default());
    }

    #[test]
    fn a_pool_is_buffers_and_mib() {
        let pool = |text| with("ASCEND_BUFFER_POOL", text).map(|defaults| defaults.pool.unwrap());
        assert_eq!(pool("4:8").unwrap(), Pool { buffers: 4, buffer_bytes: 8 << 20 });
        assert_eq!(pool("0:0").unwrap(), Pool { buffers: 0, buffer_bytes: 0 });
        assert_eq!(pool("1024:4096").unwrap().buffer_bytes, 4 << 30);
        for bad in ["4", "4:", ":8", "4:8:2", "+4:8", "4: 8", "0:8", "4:0", "1025:8", "4:4097", "four:8"] {
            let error = pool(bad).unwrap_err();
            assert!(error.message.starts_with("ASCEND_BUFFER_POOL: "), "{bad}: {error}");
        }
    }

    #[test]
    fn timeouts_are_milliseconds() {
        let found = with("ASCEND_CONNECT_TIMEOUT", "600000").unwrap();
        assert_eq!((found.connect_timeout_ms, found.transfer_timeout_ms), (Some(600_000), None));
        assert_eq!(with("ASCEND_TRANSFER_TIMEOUT", "1").unwrap().transfer_timeout_ms, Some(1));
        for bad in ["0", "600001", "-1", "1s", "18446744073709551616"] {
            for name in ["ASCEND_CONNECT_TIMEOUT", "ASCEND_TRANSFER_TIMEOUT"] {
                assert!(with(name, bad).unwrap_err().message.starts_with(name), "{bad}");
            }
        }
    }
}
