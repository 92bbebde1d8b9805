//! Figures of the transfers, and the table that shows them.

use ferry::TransferResult;
use std::time::Duration;

/// Sums over transfers, one per layer.
#[derive(Clone, Debug, Default)]
pub struct Moved {
    pub bytes: u64,
    pub requests_in: u64,
    pub slices_out: u64,
    pub elapsed: Duration,
    /// From submit to final, one per layer.
    pub layers_ns: Vec<u64>,
}

impl Moved {
    pub fn add(&mut self, result: &TransferResult) {
        self.bytes += result.bytes_confirmed;
        self.requests_in += result.requests_in;
        self.slices_out += result.slices_out;
        self.layers_ns.push(result.finished_ns.saturating_sub(result.submitted_ns));
    }

    pub fn merge(&mut self, other: Moved) {
        self.bytes += other.bytes;
        self.requests_in += other.requests_in;
        self.slices_out += other.slices_out;
        self.elapsed += other.elapsed;
        self.layers_ns.extend(other.layers_ns);
    }

    pub fn report(&self, direction: Direction) -> Report {
        let mut sorted = self.layers_ns.clone();
        sorted.sort_unstable();
        Report {
            direction,
            bytes: self.bytes,
            requests_in: self.requests_in,
            slices_out: self.slices_out,
            elapsed_ns: self.elapsed.as_nanos() as u64,
            layer_p50_ns: percentile(&sorted, 50),
            layer_p99_ns: percentile(&sorted, 99),
        }
    }
}

/// Returns a percentile by nearest rank; 0 for an empty list.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Push,
    Pull,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub direction: Direction,
    pub bytes: u64,
    pub requests_in: u64,
    pub slices_out: u64,
    pub elapsed_ns: u64,
    pub layer_p50_ns: u64,
    pub layer_p99_ns: u64,
}

impl Report {
    pub fn encode(&self) -> String {
        let direction = match self.direction {
            Direction::Push => "push",
            Direction::Pull => "pull",
        };
        let numbers = [
            self.bytes,
            self.requests_in,
            self.slices_out,
            self.elapsed_ns,
            self.layer_p50_ns,
            self.layer_p99_ns,
        ];
        numbers.iter().fold(direction.to_owned(), |text, number| format!("{text}\t{number}"))
    }

    pub fn decode(text: &str) -> Option<Report> {
        let (direction, numbers) = text.split_once('\t')?;
        let direction = match direction {
            "push" => Direction::Push,
            "pull" => Direction::Pull,
            _ => return None,
        };
        let numbers: Vec<u64> =
            numbers.split('\t').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let [bytes, requests_in, slices_out, elapsed_ns, layer_p50_ns, layer_p99_ns] = *numbers.as_slice()
        else {
            return None;
        };
        Some(Report { direction, bytes, requests_in, slices_out, elapsed_ns, layer_p50_ns, layer_p99_ns })
    }

    fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / (self.elapsed_ns.max(1) as f64)
    }
}

/// Returns the table for the end; `path` is the path that was used.
pub fn table(reports: &[Report], path: &str) -> String {
    let header = ["", "bytes", "requests in", "slices out", "GB/s", "p50/layer", "p99/layer", "path"];
    let rows = reports.iter().map(|report| {
        let milliseconds = |ns: u64| format!("{:.2} ms", ns as f64 / 1e6);
        [
            match report.direction {
                Direction::Push => "push (WRITE)".to_owned(),
                Direction::Pull => "pull (READ)".to_owned(),
            },
            grouped(report.bytes),
            grouped(report.requests_in),
            grouped(report.slices_out),
            format!("{:.2}", report.gigabytes_per_second()),
            milliseconds(report.layer_p50_ns),
            milliseconds(report.layer_p99_ns),
            path.to_owned(),
        ]
    });
    let all: Vec<[String; 8]> = std::iter::once(header.map(str::to_owned)).chain(rows).collect();
    let mut text = String::new();
    for row in &all {
        for (column, cell) in row.iter().enumerate() {
            let width = all.iter().map(|row| row[column].len()).max().unwrap_or(0);
            text += &if column == 0 { format!("{cell:<width$}") } else { format!("   {cell:>width$}") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Formats 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!((percentile(&hundred, 50), percentile(&hundred, 99)), (50, 99));
        assert_eq!((percentile(&[7], 99), percentile(&[], 50)), (7, 0));
        assert_eq!(percentile(&[1, 2, 3], 99), 3);
    }

    #[test]
    fn the_table_lines_up() {
        let report = Report {
            direction: Direction::Push,
            bytes: 1_610_612_736,
            requests_in: 49_152,
            slices_out: 48_000,
            elapsed_ns: 805_306_368,
            layer_p50_ns: 16_000_000,
            layer_p99_ns: 20_500_000,
        };
        let text = table(&[report.clone(), Report { direction: Direction::Pull, ..report }], "tcp");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains("1,610,612,736") && lines[1].contains("2.00") && lines[1].ends_with("tcp"));
        assert_eq!(lines[1].len(), lines[0].len());
        assert_eq!(lines[1].find("49,152"), lines[2].find("49,152"));
    }
}
