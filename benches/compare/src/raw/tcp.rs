//! The reference over TCP: a thread at each end of each connection, gathering and scattering in place.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context};
use ferry_bench::child::{read_line, ChildProcess};
use ferry_bench::dispense::Dispenser;
use ferry_bench::layout::Layout;
use ferry_bench::memory::private;
use ferry_bench::walk::Walk;
use ferry_bench::workload::{format_bytes, Engine, LatencyWorkload, Operation, Workload, KIB, MIB};
use serde::{Deserialize, Serialize};

use super::lane::{answer, Lane};
use super::pieces::Pieces;
use super::reference::{fastest, on_threads, tell_parent, Ground, Reference, Way, TRY};
use super::socket::{open, Link, Wait};
use crate::role::{Role, SocketOptions};

/// Connections opened; a run may use fewer.
const CONNECTIONS_MAX: usize = 4;
const CONNECTIONS: [usize; 3] = [1, 2, CONNECTIONS_MAX];
const IN_FLIGHT: [usize; 4] = [1, 2, 4, 8];
/// `SO_SNDBUF` = `SO_RCVBUF`. The small one keeps data under way in the cache if that helps (Zen 5: 7 % at 1 MiB);
/// elsewhere 4 MiB was best, and autotuning is the default of every program.
const BUFFERS: [Option<usize>; 3] = [Some(512 * KIB), Some(4 * MIB), None];
/// ferry's default.
const SPIN_DEFAULT: Duration = Duration::from_micros(50);
/// The parent connects at once; after this time the parent is gone.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// ferry's own choice between ends on one host.
pub const CONGESTION_CONTROL: &str = "reno";

/// The target's task in a run: serve this many connections, on this CPU if set.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Told {
    workload: Workload,
    connections: usize,
    /// If `None`, the target sleeps at once.
    spin: Option<Duration>,
    cpu: Option<usize>,
}

/// Serves the parent until it closes this process's input.
pub fn serve(memory_bytes: usize, token: u64, socket: &SocketOptions) -> anyhow::Result<()> {
    let memory = private(memory_bytes)?;
    tell_parent(&(memory.address() as u64))?;
    let links = accept(token, socket)?;
    tell_parent(&links.len())?;
    while let Some(Told { workload, connections, spin, cpu }) = read_line(&mut io::stdin().lock())? {
        let walk = Walk::new(workload);
        tell_parent(&())?;
        let (ground, wait) = (Ground { walk: &walk, memory: &memory }, spin.map_or(Wait::Block, Wait::Spin));
        on_threads(connections, |index| answer(&links[index], ground, wait, cpu))?;
    }
    Ok(())
}

fn accept(token: u64, socket: &SocketOptions) -> anyhow::Result<Vec<Link>> {
    let socket = open(socket).context("socket options")?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    socket.listen(16)?;
    // Bounds accept.
    socket.set_read_timeout(Some(ACCEPT_TIMEOUT))?;
    let listener = TcpListener::from(socket);
    tell_parent(&listener.local_addr()?.port())?;
    let mut links = Vec::new();
    while links.len() < CONNECTIONS_MAX {
        let accepted = listener.accept().context("waiting for the initiator's connections");
        let link = Link::new(accepted?.0)?;
        if link.receive_header(Wait::Block)? == token {
            links.push(link);
        }
    }
    Ok(links)
}

/// A run's use of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    pub connections: usize,
    /// Transfers under way in total, at least one per connection.
    pub in_flight: usize,
}

pub struct Tcp {
    /// Closed before the child is told to end.
    links: Vec<Link>,
    buffer_bytes: Option<usize>,
}

pub type RawEngine = Reference<Tcp>;

impl RawEngine {
    /// Starts the target from `program`, this program, and connects to it.
    pub fn start(program: &Path, memory_bytes: usize, socket: &SocketOptions) -> anyhow::Result<RawEngine> {
        let memory = private(memory_bytes).context("the initiator's memory")?;
        let token = ferry::internals::sys::random_u64();
        let role = Role::RawTarget { memory_bytes, token, socket: socket.clone() };
        let mut child = ChildProcess::start(program, &role)?;
        let address = child.reply().context("the raw target")?;
        let port = child.reply().context("the raw target")?;
        let mut links = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let link = Link::new(connect(port, socket)?)?;
            link.send_header(token)?;
            links.push(link);
        }
        let accepted: usize = child.reply().context("the raw target")?;
        ensure!(accepted == CONNECTIONS_MAX, "only {accepted} connections are open");
        Reference::new(Tcp { links, buffer_bytes: socket.buffer_bytes }, child, memory, address)
    }

    /// Starts with the socket buffers of `BUFFERS` that move large transfers fastest here.
    pub fn start_best(
        program: &Path,
        memory_bytes: usize,
        congestion_control: &str,
    ) -> anyhow::Result<RawEngine> {
        let mut engines = Vec::with_capacity(BUFFERS.len());
        for buffer_bytes in BUFFERS {
            let congestion_control = Some(congestion_control.to_owned());
            engines.push(RawEngine::start(
                program,
                memory_bytes,
                &SocketOptions { buffer_bytes, congestion_control },
            )?);
        }
        let large = large(memory_bytes);
        let fastest = fastest(&mut engines, |engine| engine.throughput(&large, TRY))?;
        Ok(engines.swap_remove(fastest))
    }
}

impl Tcp {
    fn lane<'a>(&'a self, index: usize, ground: Ground<'a>, wait: Wait) -> Lane<'a> {
        Lane { link: &self.links[index], ground, wait }
    }
}

/// A run's use of the connections, and the state that synchronous transfers reuse.
pub struct Run {
    tuning: Tuning,
    told: Told,
    wait: Wait,
    pieces: Pieces,
}

impl Way for Tcp {
    type Setting = Tuning;
    type Run = Run;

    fn name(&self) -> &'static str {
        "raw"
    }

    fn path(&self) -> String {
        let congestion_control = self.links.first().map(Link::congestion_control).unwrap_or_default();
        let buffers = self.buffer_bytes.map_or("autotuned".to_owned(), |bytes| format_bytes(bytes) + " each");
        format!("tcp 127.0.0.1, {congestion_control}, socket buffers {buffers}")
    }

    /// The first is good everywhere, but nowhere the best.
    fn settings(&self) -> Vec<Tuning> {
        let usual = Tuning { connections: 2, in_flight: 4 };
        let pairs =
            CONNECTIONS.into_iter().flat_map(|c| IN_FLIGHT.map(|f| Tuning { connections: c, in_flight: f }));
        let others = pairs.filter(|tuning| tuning.in_flight >= tuning.connections && *tuning != usual);
        std::iter::once(usual).chain(others).collect()
    }

    fn describe(&self, Tuning { connections, in_flight }: Tuning, _: &Workload) -> String {
        format!("{connections} connections, {in_flight} in flight")
    }

    fn ready(
        &self,
        workload: &Workload,
        tuning: Tuning,
        latency: Option<&LatencyWorkload>,
    ) -> anyhow::Result<Run> {
        let (Tuning { connections, in_flight }, workload) = (tuning, *workload);
        ensure!(connections > 0 && in_flight >= connections, "each connection needs a transfer in flight");
        ensure!(connections <= self.links.len(), "only {} connections are open", self.links.len());
        let told = match latency {
            None => Told { workload, connections, spin: None, cpu: None },
            Some(latency) => {
                let (spin, cpu) =
                    (latency.spin.or(Some(SPIN_DEFAULT)), latency.cpus.map(|[_, target]| target));
                Told { workload, connections: 1, spin, cpu }
            }
        };
        Ok(Run { tuning, told, wait: told.spin.map_or(Wait::Block, Wait::Spin), pieces: Pieces::default() })
    }

    fn begin(&self, run: &Run, target: &mut ChildProcess) -> anyhow::Result<()> {
        target.tell(&run.told)?;
        target.reply()
    }

    /// Uses a thread per connection.
    fn drive(&self, ground: Ground, run: &mut Run, dispenser: &Dispenser) -> io::Result<Instant> {
        let (Tuning { connections, in_flight }, wait) = (run.tuning, run.wait);
        on_threads(connections, |index| {
            let window = in_flight / connections + usize::from(index < in_flight % connections);
            self.lane(index, ground, wait).run(window, dispenser)
        })
    }

    /// Uses the first connection.
    fn carry(&self, ground: Ground, run: &mut Run, number: u64) -> io::Result<()> {
        self.lane(0, ground, run.wait).carry(number, &mut run.pieces)
    }

    fn end(&self) -> io::Result<()> {
        self.links.first().map_or(Ok(()), |link| link.end(Wait::Block))
    }
}

fn connect(port: u16, options: &SocketOptions) -> anyhow::Result<TcpStream> {
    let socket = open(options).context("socket options")?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    socket.connect(&address.into()).context("connecting to the raw target")?;
    Ok(socket.into())
}

/// Returns 1 MiB × 16, or the part of it that the memory holds.
fn large(memory_bytes: usize) -> Workload {
    let blocks = (memory_bytes / MIB).clamp(1, 16);
    let block_bytes = MIB.min(memory_bytes);
    let (operation, layout) = (Operation::Write, Layout::Contiguous);
    Workload { operation, layout, block_bytes, blocks, walk_bytes: memory_bytes }
}
