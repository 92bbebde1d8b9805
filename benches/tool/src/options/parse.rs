//! Parses values as users write them, or reports the error.

const REQUEST_BYTES_MAX: usize = 1 << 30;

/// Parses a size with binary suffixes: perftest's letters, or the units in full (`64KiB`).
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &*text[digits.len()..].to_ascii_lowercase() {
        "" => Some(0),
        "k" | "kib" => Some(10),
        "m" | "mib" => Some(20),
        "g" | "gib" => Some(30),
        _ => None,
    };
    let (Some(shift), Ok(number)) = (shift, digits.parse::<i128>()) else {
        return Err("a size is a number of bytes, as 65536, 64k or 64KiB, 1m or 1MiB".to_owned());
    };
    let bytes = number.checked_mul(1 << shift).and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.filter(|bytes| (1..=REQUEST_BYTES_MAX).contains(bytes));
    bytes.ok_or_else(|| "a size is from 1 byte to 1 GiB".to_owned())
}

pub fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=65_536).contains(&count) => Ok(count),
        _ => Err("a number from 1 to 65536".to_owned()),
    }
}

pub fn parse_warm_up(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(count) if (0.0..=1e9).contains(&count) => Ok(count),
        _ => Err("a number from 0 to 10^9".to_owned()),
    }
}

/// Returns the server's `host:port` from HOST or HOST:PORT, as the server prints it, and from -p. An IPv6 address
/// stands in brackets if a port follows.
pub fn address(host: &str, port: Option<u16>, default: u16) -> Result<String, String> {
    let (name, said) = match host.rsplit_once(':') {
        Some((name, said)) if !name.contains(':') || name.ends_with(']') => (name, Some(said)),
        _ => (host, None),
    };
    let parsed =
        said.map(|said| said.parse().map_err(|_| format!("{host}: {said:?} is no port"))).transpose()?;
    if let (Some(said), Some(port)) = (parsed, port.filter(|port| Some(*port) != parsed)) {
        return Err(format!("{host} says port {said}, and -p says {port}: leave one of them out"));
    }
    let name = name.trim_start_matches('[').trim_end_matches(']');
    match parsed.or(port).unwrap_or(default) {
        _ if name.is_empty() => Err(format!("{host:?} names no host: give HOST or HOST:PORT")),
        0 => Err("port 0 is no server's: name the port that the server prints".to_owned()),
        port if name.contains(':') => Ok(format!("[{name}]:{port}")),
        port => Ok(format!("{name}:{port}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_as_it_prints_itself_or_as_perftest_does() {
        for (host, expected) in [
            ("host", "host:1"),
            ("host:7", "host:7"),
            ("10.0.0.1:65535", "10.0.0.1:65535"),
            ("fe80::1", "[fe80::1]:1"),
            ("[::1]", "[::1]:1"),
            ("[::1]:7000", "[::1]:7000"),
        ] {
            assert_eq!(address(host, None, 1).as_deref(), Ok(expected), "{host}");
        }
        for host in ["host", "host:7"] {
            assert_eq!(address(host, Some(7), 1).as_deref(), Ok("host:7"), "{host}");
        }
        for (host, port, named) in [
            ("host:7", Some(8), "host:7 says port 7, and -p says 8"),
            ("[::1]:7", Some(8), "leave one of them out"),
            ("host:65536", None, "\"65536\" is no port"),
            ("host:", None, "\"\" is no port"),
            ("host:0", None, "the port that the server prints"),
            ("host", Some(0), "the port that the server prints"),
            (":7", None, "names no host"),
        ] {
            let text = address(host, port, 1).expect_err(host);
            assert!(text.contains(named), "{host} {port:?}: {text}");
        }
    }
}
