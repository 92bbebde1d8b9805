//! Debian's perftest, run as its users run it: a server on one device, a client on the other, both ended after the
//! run. perftest has its own data, and does not check it for WRITE.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context};
use ferry_bench::child::ended_within;
use ferry_bench::workload::MIB;

use super::Places;

/// A server loads, opens its device and listens; a client then measures for a second or so.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
/// The least that perftest accepts.
const ITERATIONS_MIN: u64 = 5;
/// The first heading of the line above the values.
const FIRST_HEADING: &str = "#bytes";
/// "LISTEN" in /proc/net/tcp.
const LISTENING: &str = "0A";

pub const WRITE_BW: &str = "ib_write_bw";
pub const READ_BW: &str = "ib_read_bw";
const WRITE_LAT: &str = "ib_write_lat";

/// The options of a bandwidth test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// The name of the program.
    pub tool: &'static str,
    pub bytes: usize,
    /// Work requests posted at once.
    pub list: usize,
    pub tx_depth: usize,
}

impl Bandwidth {
    /// Returns the options that users would give, except the duration.
    pub fn settings(&self) -> Vec<String> {
        let list = (self.list > 1).then(|| format!("-l{}", self.list));
        [format!("-s{}", self.bytes), format!("-t{}", self.tx_depth)].into_iter().chain(list).collect()
    }

    /// -D is not used, because version 4.5 halves the results of short durations. -N skips the samples for the peak.
    fn arguments(&self, bytes_wanted: f64) -> Vec<String> {
        let list = self.list as u64;
        let iterations = (bytes_wanted / self.bytes as f64) as u64;
        let iterations = iterations.max(2 * self.tx_depth as u64).max(ITERATIONS_MIN).next_multiple_of(list);
        let [mut arguments, settings] = [vec!["-N".to_owned(), format!("-n{iterations}")], self.settings()];
        arguments.extend(settings);
        arguments
    }
}

/// Returns MB/s of a run that moves about `bytes_wanted`.
pub fn bandwidth(places: &Places, terms: &Bandwidth, bytes_wanted: f64) -> anyhow::Result<f64> {
    let mut arguments = terms.arguments(bytes_wanted);
    arguments.extend(places.mtu.map(|mtu| format!("-m{mtu}")));
    arguments.extend(places.queue_pairs.map(|count| format!("-q{count}")));
    let measure = || Ok(bytes_per_second(&run(places, terms.tool, arguments.clone())?)? / 1e6);
    twice(measure)
}

/// Returns microseconds of the median.
pub fn latency(places: &Places, bytes: usize, samples: usize) -> anyhow::Result<f64> {
    let arguments = vec![format!("-s{bytes}"), format!("-n{}", (samples as u64).max(ITERATIONS_MIN))];
    twice(|| Ok(typical_ns(&run(places, WRITE_LAT, arguments.clone())?)? / 1e3))
}

/// Under emulation one perftest run in dozens reports zeros, and the next run is normal: such a failure says nothing
/// about the side.
fn twice(mut measure: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    measure().or_else(|_| measure())
}

/// Runs both ends; returns the client's output.
fn run(places: &Places, tool: &'static str, mut arguments: Vec<String>) -> anyhow::Result<String> {
    let port = free_port()?;
    arguments.extend(["-F".to_owned(), format!("-x{}", places.gid_index), format!("-p{port}")]);
    arguments.extend(places.inline_bytes.map(|bytes| format!("-I{bytes}")));
    let mut server = Running::start(tool, &arguments, &places.target, None)?;
    server.await_listening(port)?;
    let mut client = Running::start(tool, &arguments, &places.initiator, Some("127.0.0.1"))?;
    let printed = client.end().context("the client")?;
    server.end().context("the server")?;
    Ok(printed)
}

/// No other process takes the port in between: the machine is ours.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("0.0.0.0:0")?.local_addr()?.port())
}

/// Killed when dropped.
struct Running {
    child: Child,
    name: &'static str,
}

impl Running {
    fn start(
        name: &'static str,
        arguments: &[String],
        device: &str,
        host: Option<&str>,
    ) -> anyhow::Result<Running> {
        let child = Command::new(name)
            .arg(format!("-d{device}"))
            .args(arguments)
            .args(host)
            .stdin(Stdio::null())
            // Output of a page or two fits into the pipes until the end.
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name} (of Debian's package perftest)"))?;
        Ok(Running { child, name })
    }

    fn await_listening(&mut self, port: u16) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !is_listening(port)? {
            if self.child.try_wait()?.is_some() {
                self.end().context("the server")?;
                bail!("{} ended before a client connected", self.name);
            }
            ensure!(Instant::now() < deadline, "{} does not listen", self.name);
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits for the end; returns the output, if the process succeeded.
    fn end(&mut self) -> anyhow::Result<String> {
        let status = ended_within(&mut self.child, RUN_TIMEOUT);
        let status = status.with_context(|| format!("{} does not end", self.name))?;
        let (mut out, mut errors) = (String::new(), String::new());
        self.child.stdout.take().context("the output was taken already")?.read_to_string(&mut out)?;
        self.child.stderr.take().context("the output was taken already")?.read_to_string(&mut errors)?;
        let last = errors.lines().chain(out.lines()).rfind(|line| !line.trim().is_empty());
        ensure!(status.success(), "{} ended with {status}: {}", self.name, last.unwrap_or("nothing said"));
        Ok(out)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Usually it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_listening(port: u16) -> anyhow::Result<bool> {
    let suffix = format!(":{port:04X}");
    let listens = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        matches!(words[..], [_, local, _, state, ..] if local.ends_with(&suffix) && state == LISTENING)
    };
    for path in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // A machine without IPv6 has no such file.
        if fs::read_to_string(path).unwrap_or_default().lines().any(listens) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns bytes per second on average, from the output of a bandwidth test of one size. "MB/sec" and "MiB/sec" are
/// both 2^20 bytes: the printed name depends on the version, the number does not.
fn bytes_per_second(output: &str) -> anyhow::Result<f64> {
    let (heading, values) = table(output)?;
    let unit = if heading.contains("Gb/sec") { 1e9 / 8.0 } else { MIB as f64 };
    // bytes, iterations, peak, average, messages
    let average = value(&values, 3)? * unit;
    ensure!(average > 0.0, "perftest measured nothing: {}", values.join(" "));
    Ok(average)
}

/// Returns nanoseconds of the median, "t_typical", from the output of a latency test of one size.
fn typical_ns(output: &str) -> anyhow::Result<f64> {
    let (heading, values) = table(output)?;
    ensure!(heading.contains("t_typical[usec]"), "perftest measured no typical latency: {heading}");
    // bytes, iterations, min, max, typical
    let typical = value(&values, 4)? * 1e3;
    ensure!(typical > 0.0, "perftest measured nothing: {}", values.join(" "));
    Ok(typical)
}

fn table(output: &str) -> anyhow::Result<(&str, Vec<&str>)> {
    let mut lines = output.lines().skip_while(|line| !line.trim_start().starts_with(FIRST_HEADING));
    let heading = lines.next().context("perftest printed no headings")?;
    let values = lines.next().context("perftest printed no values")?;
    Ok((heading, values.split_whitespace().collect()))
}

fn value(values: &[&str], index: usize) -> anyhow::Result<f64> {
    let word = values.get(index).with_context(|| format!("only {} values in a line", values.len()))?;
    let number: f64 = word.parse().with_context(|| format!("{word} is no number"))?;
    ensure!(number.is_finite(), "{word} is no number");
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str =
        "---------------------------------------------------------------------------------------\n";
    /// perftest 4.5 as Debian has it, in the virtual machine.
    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      500              64.30              49.68  \t\t   0.000795
";
    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 2       1000          19.22          10996.48      21.50    \t       230.47      \t1035.71\t\t6164.86 \t\t10996.48
";

    #[test]
    fn what_debians_perftest_prints() {
        let text = format!("{RULE} Mtu             : 4096[B]\n{RULE}{BANDWIDTH}{RULE}");
        assert_eq!(bytes_per_second(&text).expect("a table"), 49.68 * MIB as f64);
        let gbits = text.replace("MB/sec", "Gb/sec");
        assert_eq!(bytes_per_second(&gbits).expect("a table"), 49.68e9 / 8.0);
        assert_eq!(
            bytes_per_second(&text.replace("MB/sec", "MiB/sec")).expect("a table"),
            49.68 * MIB as f64
        );
        assert_eq!(typical_ns(&format!("{RULE}{LATENCY}{RULE}")).expect("a table"), 21_500.0);
    }

    #[test]
    fn what_is_no_table_is_an_error() {
        for text in [
            "",
            RULE,
            " Couldn't connect to 127.0.0.1:18515\n",
            " #bytes #iterations",
            &BANDWIDTH.replace("49.68", "-nan"),
            &BANDWIDTH.replace("49.68", "0.00"),
            &BANDWIDTH.replace("49.68", "fast"),
            &BANDWIDTH[..BANDWIDTH.find("49.68").expect("it is there")],
        ] {
            assert!(bytes_per_second(text).is_err(), "{text}");
        }
        assert!(typical_ns(BANDWIDTH).is_err());
        assert!(typical_ns(&LATENCY[..LATENCY.find("21.50").expect("it is there")]).is_err());
    }

    #[test]
    fn iterations_are_whole_lists_and_fill_the_queue_twice() {
        let terms = Bandwidth { tool: WRITE_BW, bytes: 4_096, list: 100, tx_depth: 200 };
        assert_eq!(terms.arguments(4_096.0 * 450.0), ["-N", "-n500", "-s4096", "-t200", "-l100"]);
        assert_eq!(terms.arguments(0.0)[1], "-n400");
        let single = Bandwidth { list: 1, tx_depth: 1, ..terms };
        assert_eq!(single.arguments(0.0), ["-N", "-n5", "-s4096", "-t1"]);
    }

    #[test]
    fn a_listener_is_found_and_its_absence_too() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        assert!(is_listening(port).expect("readable"));
        drop(listener);
        assert!(!is_listening(port).expect("readable"));
    }
}
