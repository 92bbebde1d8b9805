//! Debian's perftest, run as its users run it: a server on one device, a client on the other, both ended after the
//! run. perftest has its own data, and does not check it for WRITE.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context};

use super::parse::{bytes_per_second, typical_ns};
use super::Places;
use crate::child::ended_within;

/// A server loads, opens its device and listens; a client then measures for a second or so.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
/// The least that perftest accepts.
const ITERATIONS_MIN: u64 = 5;
/// "LISTEN" in /proc/net/tcp.
const LISTENING: &str = "0A";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    WriteBw,
    ReadBw,
    WriteLat,
}

impl Tool {
    pub fn name(self) -> &'static str {
        match self {
            Tool::WriteBw => "ib_write_bw",
            Tool::ReadBw => "ib_read_bw",
            Tool::WriteLat => "ib_write_lat",
        }
    }
}

/// The options of a bandwidth test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    pub tool: Tool,
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
    twice(|| Ok(typical_ns(&run(places, Tool::WriteLat, arguments.clone())?)? / 1e3))
}

/// Under emulation one perftest run in dozens reports zeros, and the next run is normal: such a failure says nothing
/// about the side.
fn twice(mut measure: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    measure().or_else(|_| measure())
}

/// Runs both ends; returns the client's output.
fn run(places: &Places, tool: Tool, mut arguments: Vec<String>) -> anyhow::Result<String> {
    let port = free_port()?;
    arguments.extend(["-F".to_owned(), format!("-x{}", places.gid_index), format!("-p{port}")]);
    arguments.extend(places.inline_bytes.map(|bytes| format!("-I{bytes}")));
    let device = |name: &str| format!("-d{name}");
    let start = |device: String, host: Option<&str>| Running::start(tool, &arguments, device, host);
    let mut server = start(device(&places.target), None)?;
    server.await_listening(port)?;
    let mut client = start(device(&places.initiator), Some("127.0.0.1"))?;
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
        tool: Tool,
        arguments: &[String],
        device: String,
        host: Option<&str>,
    ) -> anyhow::Result<Running> {
        let name = tool.name();
        let child = Command::new(name)
            .arg(device)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_are_whole_lists_and_fill_the_queue_twice() {
        let terms = Bandwidth { tool: Tool::WriteBw, bytes: 4_096, list: 100, tx_depth: 200 };
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
