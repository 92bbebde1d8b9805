//! The lines that a worker prints for the parent on its standard output.

use super::report::Report;
use std::io::Write;

#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// The address of the engine.
    Address(String),
    /// The current step, for the user.
    Doing(String),
    /// This many more bytes have arrived.
    Moved(u64),
    /// A path to the other worker: name, whether it is used, why.
    Path(String, bool, String),
    Report(Report),
}

/// Writes a line. Ignores errors: without its parent the worker ends soon anyway.
pub fn tell(line: &Line) {
    let _ = writeln!(std::io::stdout().lock(), "{}", line.encode());
}

impl Line {
    pub fn encode(&self) -> String {
        match self {
            Line::Address(address) => format!("address\t{address}"),
            Line::Doing(what) => format!("doing\t{what}"),
            Line::Moved(bytes) => format!("moved\t{bytes}"),
            Line::Path(name, chosen, why) => format!("path\t{name}\t{chosen}\t{why}"),
            Line::Report(report) => format!("report\t{}", report.encode()),
        }
    }

    /// Parses a line; None for other text.
    pub fn decode(text: &str) -> Option<Line> {
        let (kind, rest) = text.split_once('\t')?;
        match kind {
            "address" => Some(Line::Address(rest.into())),
            "doing" => Some(Line::Doing(rest.into())),
            "moved" => rest.parse().ok().map(Line::Moved),
            "path" => {
                let mut fields = rest.splitn(3, '\t');
                let (name, chosen) = (fields.next()?.into(), fields.next()?.parse().ok()?);
                Some(Line::Path(name, chosen, fields.next()?.into()))
            }
            "report" => Report::decode(rest).map(Line::Report),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::report::Direction;

    #[test]
    fn lines_round_trip() {
        let report = Report {
            direction: Direction::Pull,
            bytes: 1 << 29,
            requests_in: 16_384,
            slices_out: 16_000,
            elapsed_ns: 5,
            layer_p50_ns: 6,
            layer_p99_ns: 7,
        };
        for line in [
            Line::Address("127.0.0.1:7000".into()),
            Line::Doing("push 1/3".into()),
            Line::Moved(u64::MAX),
            Line::Path("tcp".into(), true, "the only one".into()),
            Line::Report(report),
        ] {
            assert_eq!(Line::decode(&line.encode()), Some(line));
        }
        assert_eq!(Line::decode("hello"), None);
    }
}
