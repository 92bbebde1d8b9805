//! perftest's screen: the rule, the banner, its columns, the histogram and the listing.
//!
//! Scripts that read perftest's output can read this: a line's values stand in the order of its headings, separated by
//! blanks.

use std::io::{self, Write};

use hdrhistogram::Histogram;

use crate::cpu::Machine;
use crate::options::{Settings, Test, Transport};
use crate::report::Bandwidth;
use crate::stats::Latency;
use crate::workload::{Described, Named, GB, MIB};

const RULE: &str = "---------------------------------------------------------------------------------------";
const LATENCY: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]";
/// The bandwidth headings, with blanks for the unit.
const BANDWIDTH: &str = " #bytes     #iterations    BW peak[_/sec]    BW average[_/sec]   MsgRate[Mpps]";
const CPU_UTIL: &str = "    CPU_Util[%]";
const STANDIN: &str = "no device has moved a byte; the figures are a stand-in's and say nothing about speed";
/// Three significant digits: no bucket is off by more than a thousandth.
const HISTOGRAM_DIGITS: u8 = 3;

/// The bandwidth headings in use.
#[derive(Clone, Copy, Debug)]
pub struct BandwidthColumns {
    pub gbits: bool,
    /// perftest's -N: the column stays, with 0.00.
    pub no_peak: bool,
    pub cpu_util: bool,
}

impl BandwidthColumns {
    pub fn heading(self) -> String {
        let heading = BANDWIDTH.replace('_', if self.gbits { "Gb" } else { "MiB" });
        heading + if self.cpu_util { CPU_UTIL } else { "" }
    }

    pub fn row(self, row: &Bandwidth) -> String {
        let bandwidth = |gb_per_second: f64| {
            if self.gbits {
                format!("{:.2}", gb_per_second * 8.0)
            } else {
                format!("{:.2}", gb_per_second * GB / MIB as f64)
            }
        };
        let mut values = vec![
            row.request_bytes.to_string(),
            row.transfers.to_string(),
            bandwidth(if self.no_peak { 0.0 } else { row.peak_gb_per_second }),
            bandwidth(row.average_gb_per_second),
            format!("{:.6}", row.requests_per_second / 1e6),
        ];
        if self.cpu_util {
            // Of both ends, in percent of one core.
            values.push(format!("{:.2}", row.cpu_seconds.sum() / row.seconds * 100.0));
        }
        let names = ["#bytes", "#iterations", "BW peak", "BW average", "MsgRate", "CPU_Util"];
        align(&self.heading(), &names, &values)
    }
}

pub fn latency_heading() -> &'static str {
    LATENCY
}

/// perftest's "typical" is the median.
pub fn latency_row(latency: &Latency) -> String {
    let us = |us: f64| format!("{us:.2}");
    let values = [
        latency.request_bytes.to_string(),
        latency.samples.to_string(),
        us(latency.min_us),
        us(latency.max_us),
        us(latency.p50_us),
        us(latency.mean_us),
        us(latency.stdev_us),
        us(latency.p99_us),
        us(latency.p99_9_us),
    ];
    let names =
        ["#bytes", "#iterations", "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "99% p", "99.9% p"];
    align(LATENCY, &names, &values)
}

/// Puts each value under its name, or one blank after a value too wide for its column.
fn align(heading: &str, names: &[&str], values: &[String]) -> String {
    let mut line = String::new();
    for (name, value) in names.iter().zip(values) {
        let column = heading.find(name).expect("a name of this heading");
        let blanks = column.saturating_sub(line.len()).max(1);
        line.push_str(&" ".repeat(blanks));
        line.push_str(value);
    }
    line
}

pub fn rule(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{RULE}")
}

/// Prints the devices of the memory, and that a stand-in's times mean nothing.
fn devices(out: &mut dyn Write, devices: &[Option<Described>; 2]) -> io::Result<()> {
    for (end, device) in ["Client", "Server"].into_iter().zip(devices) {
        let text = device.as_ref().map_or("memory of the host", |device| &device.text);
        if devices.iter().any(Option::is_some) {
            writeln!(out, " {end:<16}: {text}")?;
        }
    }
    if devices.iter().flatten().any(|device| device.is_standin) {
        writeln!(out, " STAND-IN        : {STANDIN}")?;
    }
    Ok(())
}

/// Prints the setup, before the first figure.
pub fn banner(
    out: &mut dyn Write,
    settings: &Settings,
    engine: &str,
    path: &str,
    devices: &[Option<Described>; 2],
) -> io::Result<()> {
    rule(out)?;
    let direction = if settings.said.bidirectional { "Bidirectional " } else { "" };
    writeln!(out, "{:^87}", format!("{engine} {direction}{}", settings.test.title()))?;
    let transport = settings.said.transport.name();
    let lanes = settings.said.lanes.map_or("default".to_owned(), |lanes| lanes.to_string());
    let layout = settings.said.layout.name();
    let on_off = |on| if on { "ON" } else { "OFF" };
    let is_rdma = settings.said.transport == Transport::Rdma || path.starts_with(&Transport::Rdma.name());
    let several = if settings.said.transport == Transport::Rdma { "Queue pairs" } else { "Lanes" };
    writeln!(out, " Transport type  : {transport:<20} {several:<15} : {lanes}")?;
    writeln!(out, " TX depth        : {:<20} Requests        : {}", settings.tx_depth, settings.requests)?;
    let validation = on_off(settings.said.data_validation);
    writeln!(out, " Layout          : {layout:<20} Data validation : {validation}")?;
    if is_rdma {
        writeln!(out, " RDMA            : {}", rdma(settings))?;
    }
    for (index, part) in path.split("; ").enumerate() {
        writeln!(out, "{} : {part}", [" Path           ", "                "][index.min(1)])?;
    }
    if settings.said.verbose {
        writeln!(out, " Machine         : {}", Machine::describe())?;
    }
    let warm_up = match settings.warm_up {
        Some(limit) => format!("{limit} of each size, not counted"),
        None => "off: the first, cold transfers count".to_owned(),
    };
    writeln!(out, " Warm-up         : {warm_up}")?;
    self::devices(out, devices)?;
    let latency = match settings.test {
        Test::WriteBw | Test::ReadBw => return rule(out),
        Test::WriteLat if settings.said.pingpong => {
            "half a round trip between two applications that poll their memory"
        }
        Test::WriteLat => "from the call until done at the target: a whole round trip",
        Test::ReadLat => "from the call until the bytes are here: a whole round trip",
        Test::NotifyLat => "half a round trip between two applications that sleep on eventfds",
    };
    writeln!(out, " Latency         : {latency}")?;
    rule(out)
}

/// Returns the meaning of "done", and the settings that differ from ferry's own choice of devices.
fn rdma(settings: &Settings) -> String {
    let visibility = if settings.said.acked_only { "acked only" } else { "proven" };
    let named = settings.said.rdma.settings().into_iter().map(|(key, value)| format!("; {key} {value}"));
    format!("visibility: {visibility}{}", named.collect::<String>())
}

/// Prints every sample, in the order taken.
pub fn unsorted(out: &mut dyn Write, nanoseconds: &[u64]) -> io::Result<()> {
    writeln!(out, "#, usec")?;
    for (index, sample) in nanoseconds.iter().enumerate() {
        writeln!(out, "{}, {:.3}", index + 1, *sample as f64 / 1e3)?;
    }
    Ok(())
}

/// Prints the distribution, densest where latencies matter: each line halves the rest above it.
pub fn histogram(out: &mut dyn Write, nanoseconds: &[u64]) -> anyhow::Result<()> {
    let mut histogram = Histogram::<u64>::new(HISTOGRAM_DIGITS)?;
    for &sample in nanoseconds {
        histogram.record(sample)?;
    }
    writeln!(out, "{:>14} {:>12} {:>12} {:>14}", "usec", "percentile", "count", "total count")?;
    let mut total = 0;
    for step in histogram.iter_quantiles(2) {
        let count = step.count_since_last_iteration();
        total += count;
        let us = step.value_iterated_to() as f64 / 1e3;
        // The last step's own value may lie above every sample; its quantile then is 100 %.
        writeln!(out, "{us:>14.3} {:>12.4} {count:>12} {total:>14}", step.quantile() * 100.0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::CpuSeconds;

    #[test]
    fn bandwidth_values_stand_under_their_headings() {
        let columns = BandwidthColumns { gbits: false, no_peak: false, cpu_util: true };
        let gb = |mib_per_second: f64| mib_per_second * MIB as f64 / GB;
        let row = Bandwidth {
            request_bytes: 65_536,
            requests_per_transfer: 1,
            transfers: 1_000,
            bytes: 0,
            seconds: 2.0,
            peak_gb_per_second: gb(6_000.0),
            average_gb_per_second: gb(5_900.5),
            average_gib_per_second: 0.0,
            median_gb_per_second: 0.0,
            batches_gb_per_second: Vec::new(),
            warm_up: None,
            requests_per_second: 94_408.0,
            cpu_seconds: CpuSeconds { initiator: 1.75, target: 2.0 },
            cpu_seconds_per_gib_both_ends: 0.0,
        };
        let expected = concat!(
            " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]    CPU_Util[%]\n",
            " 65536      1000           6000.00             5900.50               0.094408         187.50",
        );
        assert_eq!(format!("{}\n{}", columns.heading(), columns.row(&row)), expected);
        let gbits = BandwidthColumns { gbits: true, no_peak: true, cpu_util: false };
        assert!(gbits.heading().contains("BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"));
        let text = gbits.row(&row);
        assert!(text.contains(" 0.00 ") && text.contains(" 49.50 "), "5,900.5 MiB/s are 49.50 Gb/s: {text}");
    }

    #[test]
    fn latency_values_stand_under_their_headings() {
        let samples: Vec<u64> = (1..=1_000).map(|us| us * 1_000).collect();
        let line = latency_row(&Latency::of(2, &samples).expect("not empty"));
        let expected = concat!(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    ",
            "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n",
            " 2      1000           1.00           1000.00      500.00             500.50         ",
            "288.82          990.00                 999.00",
        );
        assert_eq!(format!("{}\n{line}", latency_heading()), expected);
    }

    fn banner_of(line: &str, path: &str) -> String {
        let mut out = Vec::new();
        banner(
            &mut out,
            &crate::options::settings_of(line).expect("a valid line"),
            "ferry",
            path,
            &[None, None],
        )
        .expect("written");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_table_of_rdma_says_what_done_means() {
        let text = banner_of("write_bw --transport rdma -q 4 -d rva0 -x 1 host", "rdma (why)");
        assert!(text.contains(" Queue pairs     : 4\n"), "{text}");
        assert!(text.contains(": visibility: proven; rdma_devices rva0; rdma_gid_index 1\n"), "{text}");
        assert!(banner_of("write_lat host", "rdma (why)").contains("visibility: proven\n"));
        let text = banner_of("write_bw --transport rdma --acked-only host", "rdma (why)");
        assert!(text.contains("visibility: acked only\n"), "{text}");
        assert!(!banner_of("write_bw host", "tcp (why); not used: rdma (x)").contains("visibility"));
    }

    #[test]
    fn each_part_of_the_path_has_a_line_and_the_machine_is_for_those_who_ask() {
        let text = banner_of("write_bw -v host", "tcp (why); not used: rdma (why not); defaults");
        let blank = " ".repeat(16);
        assert!(
            text.contains(&format!(" : tcp (why)\n{blank} : not used: rdma (why not)\n{blank} : defaults\n"))
        );
        assert!(
            text.contains(" Machine         : ") && !banner_of("write_bw host", "tcp").contains(" Machine ")
        );
    }

    #[test]
    fn the_banner_says_what_is_left_out() {
        for (line, expected) in [
            ("write_bw -n 1000 host", ": 200 transfers of each size, not counted\n"),
            ("write_bw --warm-up 0 host", ": off: the first, cold transfers count\n"),
        ] {
            let text = banner_of(line, "tcp");
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_wide_value_pushes_its_neighbour_instead_of_touching_it() {
        let values = ["1234567890".to_owned(), "5".to_owned()];
        assert_eq!(align(" #a #b", &["#a", "#b"], &values), " 1234567890 5");
    }

    #[test]
    fn the_rule_has_87_dashes() {
        assert_eq!((RULE.len(), RULE.trim_matches('-')), (87, ""));
    }

    #[test]
    fn the_histogram_counts_every_sample() {
        let mut out = Vec::new();
        let samples: Vec<u64> = (0..1_000).collect();
        histogram(&mut out, &samples).expect("written");
        let text = String::from_utf8(out).expect("text");
        let last = text.lines().last().expect("a last line");
        assert!(last.ends_with(" 1000") && last.contains("100.0000"), "{text}");
    }

    #[test]
    fn the_listing_keeps_the_order() {
        let mut out = Vec::new();
        unsorted(&mut out, &[3_000, 1_500]).expect("written");
        assert_eq!(out, b"#, usec\n1, 3.000\n2, 1.500\n");
    }
}
