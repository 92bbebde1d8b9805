//! Parses values as users write them, or reports the error.

const REQUEST_BYTES_MAX: usize = 1 << 30;

/// Parses a size with perftest's binary suffixes.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 10),
        None => text.strip_suffix(['m', 'M']).map_or((text, 0), |digits| (digits, 20)),
    };
    let number: usize = digits.parse().map_err(|_| "not a number of bytes".to_owned())?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if (1..=REQUEST_BYTES_MAX).contains(&bytes) => Ok(bytes),
        _ => Err("from 1 byte to 1 GiB".to_owned()),
    }
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
