//! "host:port": the only parser of addresses, for settings, `connect` and directories. A text that is no address has a
//! `Flaw`, which says what to write instead. `sys::names` finds where an address leads.

use crate::limits::ADDRESS_BYTES_MAX;
use crate::status::{Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Characters of a wrong address that an error repeats.
const SHOWN_MAX: usize = 64;

/// Why a text is no address, and what to write instead. The text is the subject of the sentence.
#[derive(Debug)]
pub(super) struct Flaw {
    why: String,
    write: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: write {}", self.why, self.write)
    }
}

fn flaw<T>(why: impl Into<String>, write: impl Into<String>) -> Result<T, Flaw> {
    Err(Flaw { why: why.into(), write: write.into() })
}

/// Returns INVALID unless an engine may listen at `address`: `host:port` or `[ipv6]:port`, and the port is not 0. The
/// sentence begins with `what`, the argument's name, and says what to write.
pub fn check_address(address: &str, what: &str) -> Result<()> {
    let flaw = match split(address) {
        Ok((_, 0)) => {
            let host = address.trim_end_matches('0');
            Flaw { why: "has port 0, at which nothing listens".into(), write: format!("{host}PORT") }
        }
        Ok(_) => return Ok(()),
        Err(flaw) => flaw,
    };
    let mut shown: String = address.chars().take(SHOWN_MAX).collect();
    if shown.len() < address.len() {
        shown.push('…');
    }
    Err(Error::invalid(format!("{what}: {shown:?} {flaw}")))
}

/// Splits `host:port` or `[ipv6]:port`; the host has no brackets then. A bare IPv6 address is ambiguous and refused.
pub(super) fn split(address: &str) -> Result<(&str, u16), Flaw> {
    if address.len() > ADDRESS_BYTES_MAX {
        let why = format!("has {} bytes, and at most {ADDRESS_BYTES_MAX} are allowed", address.len());
        return flaw(why, "HOST:PORT");
    }
    // The rest of a text may have a flaw of its own.
    let mended = |rest: &str| split(rest).map_or_else(|flaw| flaw.write, |_| rest.to_owned());
    let trimmed = address.trim();
    if trimmed.len() < address.len() {
        return flaw("has white space around it", mended(trimmed));
    }
    if let Some((scheme, rest)) = address.split_once("://") {
        let rest = mended(rest.split('/').next().unwrap_or_default());
        return flaw("is a URL", format!("{rest} without {scheme}://"));
    }
    if let Some(strange) = address.chars().find(|char| !char.is_ascii_graphic()) {
        return flaw(format!("has the character {strange:?}, which no address has"), "HOST:PORT");
    }
    match address.strip_prefix('[') {
        Some(rest) => split_brackets(rest),
        None => split_name(address),
    }
}

/// Splits `ipv6]:port`.
fn split_brackets(rest: &str) -> Result<(&str, u16), Flaw> {
    let (ip, behind) = rest.split_once(']').unwrap_or((rest, ""));
    if !is_ipv6(ip) {
        return flaw("has no IPv6 address in brackets", "[IPV6]:PORT");
    }
    Ok((ip, port(&format!("[{ip}]"), behind.strip_prefix(':').unwrap_or_default())?))
}

fn split_name(address: &str) -> Result<(&str, u16), Flaw> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (host, behind) = match address.rsplit_once(':') {
        None if is_number(address) => ("", address),
        found => found.unwrap_or((address, "")),
    };
    if host.contains(':') {
        return match (is_ipv6(host), is_ipv6(address)) {
            (true, true) => {
                flaw(IPV6, format!("[{host}]:{behind}, or [{address}]:PORT if that is the address"))
            }
            (true, false) => flaw(IPV6, format!("[{host}]:{behind}")),
            (false, true) => flaw(IPV6, format!("[{address}]:PORT")),
            (false, false) => flaw("has more than one colon", "HOST:PORT"),
        };
    }
    let is_plain = |char: &char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_');
    if let Some(strange) = host.chars().find(|char| !is_plain(char)) {
        return flaw(format!("has the character {strange:?}, which no host's name has"), "HOST:PORT");
    }
    if host.is_empty() && is_number(behind) {
        return flaw("has a port and no host", format!("HOST:{behind}, on this host 127.0.0.1:{behind}"));
    }
    if host.is_empty() {
        return flaw(if address.is_empty() { "is empty" } else { "has no host" }, "HOST:PORT");
    }
    Ok((host, port(host, behind)?))
}

const IPV6: &str = "is an IPv6 address without brackets";

/// True for an IPv6 address. A link-local address carries its interface: fe80::1%eth0.
fn is_ipv6(text: &str) -> bool {
    let (ip, interface) = text.split_once('%').unwrap_or((text, ""));
    ip.parse::<Ipv6Addr>().is_ok() && !interface.contains(':')
}

fn port(host: &str, text: &str) -> Result<u16, Flaw> {
    let write = || format!("{host}:PORT");
    match text.parse() {
        _ if text.is_empty() => flaw("has no port", write()),
        // Digits only: the standard parser would also accept "+5".
        _ if !text.bytes().all(|byte| byte.is_ascii_digit()) => {
            flaw(format!("has the port {text:?}, which is no number"), write())
        }
        Ok(port) => Ok(port),
        Err(_) => flaw("has a port above 65535", write()),
    }
}

/// Refuses a host to which no peer can connect. A peer that dials an address which stands for all of a host (`0.0.0.0`)
/// would reach its own host, and a link-local address leads nowhere without an interface.
pub(super) fn check_dialed(host: &str) -> Result<(), Flaw> {
    let (ip, interface) = host.split_once('%').map_or((host, None), |(ip, name)| (ip, Some(name)));
    let can_be_dialed = match ip.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(ip) if ip.is_unspecified() || ip.is_multicast() => false,
        Ok(IpAddr::V4(ip)) => !ip.is_broadcast(),
        Ok(IpAddr::V6(ip)) => !ip.is_unicast_link_local() || interface.is_some(),
        Err(_) => true,
    };
    if can_be_dialed {
        return Ok(());
    }
    flaw("has a host that peers cannot connect to", "the address of one interface")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each text, and the rest of the sentence behind it.
    const WRONG: &[(&str, &str)] = &[
        ("", "is empty: write HOST:PORT"),
        ("node7", "has no port: write node7:PORT"),
        ("node7:", "has no port: write node7:PORT"),
        ("127.0.0.1", "has no port: write 127.0.0.1:PORT"),
        ("node7:0", "has port 0, at which nothing listens: write node7:PORT"),
        ("[::1]:00", "has port 0, at which nothing listens: write [::1]:PORT"),
        ("node7:65536", "has a port above 65535: write node7:PORT"),
        ("node7:http", "has the port \"http\", which is no number: write node7:PORT"),
        ("node7:+5", "has the port \"+5\", which is no number: write node7:PORT"),
        ("node7:-1", "has the port \"-1\", which is no number: write node7:PORT"),
        ("node7:1/x", "has the port \"1/x\", which is no number: write node7:PORT"),
        ("43125", "has a port and no host: write HOST:43125, on this host 127.0.0.1:43125"),
        (":43125", "has a port and no host: write HOST:43125, on this host 127.0.0.1:43125"),
        (":", "has no host: write HOST:PORT"),
        (
            "::1:7000",
            "is an IPv6 address without brackets: write [::1]:7000, or [::1:7000]:PORT if that is the address",
        ),
        ("1:2:3:4:5:6:7:8:7000", "is an IPv6 address without brackets: write [1:2:3:4:5:6:7:8]:7000"),
        ("fe80::1%eth0:7000", "is an IPv6 address without brackets: write [fe80::1%eth0]:7000"),
        ("::1", "is an IPv6 address without brackets: write [::1]:PORT"),
        ("fe80::1", "is an IPv6 address without brackets: write [fe80::1]:PORT"),
        ("[::1]", "has no port: write [::1]:PORT"),
        ("[::1]7000", "has no port: write [::1]:PORT"),
        ("[::1", "has no port: write [::1]:PORT"),
        ("[node7]:1", "has no IPv6 address in brackets: write [IPV6]:PORT"),
        ("a:b:1", "has more than one colon: write HOST:PORT"),
        ("tcp://h:1", "is a URL: write h:1 without tcp://"),
        ("http://h:1/path", "is a URL: write h:1 without http://"),
        ("http://h", "is a URL: write h:PORT without http://"),
        ("http://", "is a URL: write HOST:PORT without http://"),
        (" h:1", "has white space around it: write h:1"),
        ("h:1\n", "has white space around it: write h:1"),
        (" tcp://h ", "has white space around it: write h:PORT without tcp://"),
        ("  ", "has white space around it: write HOST:PORT"),
        ("two words:1", "has the character ' ', which no address has: write HOST:PORT"),
        ("h\n:1", "has the character '\\n', which no address has: write HOST:PORT"),
        ("h\0:1", "has the character '\\0', which no address has: write HOST:PORT"),
        ("[::1%e\n]:1", "has the character '\\n', which no address has: write HOST:PORT"),
        ("ä:1", "has the character 'ä', which no address has: write HOST:PORT"),
        ("user@h:1", "has the character '@', which no host's name has: write HOST:PORT"),
    ];

    #[test]
    fn each_wrong_address_is_told_what_to_write() {
        for (text, rest) in WRONG {
            let error = check_address(text, "address").unwrap_err();
            assert_eq!(error.to_string(), format!("INVALID: address: {text:?} {rest}"));
        }
    }

    #[test]
    fn what_an_error_says_to_write_is_right() {
        let mut tried = 0;
        for (text, rest) in WRONG {
            let write = rest.rsplit_once("write ").unwrap().1;
            let write = write.split([',', ' ']).next().unwrap();
            let write = write.replace("IPV6", "::1").replace("HOST", "h").replace("PORT", "1");
            check_address(&write, "address").unwrap_or_else(|error| panic!("{text:?}: {error}"));
            tried += 1;
        }
        assert_eq!(tried, WRONG.len());
    }

    #[test]
    fn addresses_are_bounded() {
        let host = |bytes: usize| format!("{}:1", "h".repeat(bytes - 2));
        check_address(&host(ADDRESS_BYTES_MAX), "address").unwrap();
        let long = check_address(&host(ADDRESS_BYTES_MAX + 1), "address").unwrap_err().message;
        let says = "\" has 256 bytes, and at most 255 are allowed: write HOST:PORT";
        assert!(long.starts_with("address: \"hhh") && long.ends_with(&format!("h…{says}")), "{long}");
        assert!(long.len() < 200);
    }

    #[test]
    fn right_addresses_are_split() {
        for (text, parts) in [
            ("h:1", ("h", 1)),
            ("h:0", ("h", 0)),
            ("kv-7.example_a:65535", ("kv-7.example_a", 65535)),
            ("127.0.0.1:007", ("127.0.0.1", 7)),
            ("[::1]:7000", ("::1", 7000)),
            ("[fe80::1%eth0]:7000", ("fe80::1%eth0", 7000)),
        ] {
            assert_eq!(split(text).unwrap(), parts, "{text}");
        }
    }
}
