//! Values of the command line that several comparisons take.

use clap::builder::RangedU64ValueParser;
use regex_lite::Regex;

/// Parses numbers from `first` to `last`.
pub fn from_to(first: u64, last: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(first..=last)
}

pub fn parse_rows(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| error.to_string())
}

pub fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0.01 to 60 seconds".to_owned()),
    }
}
