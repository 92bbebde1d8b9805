//! Opens and closes an engine.

use super::burial::Remains;
use super::devices;
use super::own::{local_threads, Own};
use crate::config::{Config, TcpPoller};
use crate::context::Context;
use crate::control::{Control, Parts};
use crate::device::Drivers;
use crate::handle::Tag;
use crate::limits;
use crate::notify::{Hub, Queue};
use crate::peer::{Installed, TransportService};
use crate::region::grants::Grants;
use crate::region::Registry;
use crate::session::handshake::{derive_secret, AuthPolicy, Local};
use crate::status::{reason, Error, Result, Status};
use crate::sys::atomic::{AtomicU32, Ordering};
use crate::sys::clock;
use crate::sys::fd::OwnedFd;
use crate::sys::fork::ForkGuard;
use crate::sys::host::{self, Process};
use crate::sys::lock::Mutex;
use crate::sys::poller::{Poller, PollerKind};
use crate::sys::tcp::Listener;
use crate::sys::thread::JoinHandle;
use crate::sys::{self, addresses, names, socket, thread, unix};
use crate::transport::file::Files;
use crate::transport::local::{self, LocalService};
#[cfg(test)]
use crate::transport::loopback;
use crate::transport::rdma;
use crate::transport::tcp::{self, worker::Workers};
use crate::types::{EngineId, PlaceId, Transport};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

pub(super) const OPEN: u32 = 0;
pub(super) const CLOSING: u32 = 1;
pub(super) const CLOSED: u32 = 2;

/// An engine: registers memory, connects to peers, and moves bytes. Clones share the engine. Dropping the last clone
/// closes the engine if `close` was not called: inside a callback or a waker another thread does, soon afterwards.
#[derive(Clone)]
pub struct Engine {
    pub(super) inner: Arc<Inner>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("address", &self.inner.address).finish_non_exhaustive()
    }
}

pub(super) struct Inner {
    pub context: Arc<Context>,
    pub guard: ForkGuard,
    pub address: String,
    pub workers: Arc<Workers>,
    /// The services of the transports besides TCP that this engine has, in the order in which they start.
    pub services: Vec<Arc<dyn TransportService>>,
    pub rdma: Option<Arc<rdma::RdmaService>>,
    pub drivers: Arc<Drivers>,
    pub own: Arc<Own>,
    pub files: Arc<Files>,
    pub control: Mutex<Option<JoinHandle<()>>>,
    pub state: AtomicU32,
    pub closing: Mutex<()>,
}

impl Engine {
    /// Opens an engine: listens if the configuration says so, and starts the engine's threads.
    pub fn open(config: Config) -> Result<Engine> {
        Engine::open_with(config, |_, _| ())
    }

    /// Opens an engine after `change` to its services: tests replace some.
    pub(crate) fn open_with(
        config: Config,
        change: impl FnOnce(&Arc<Context>, &mut [Installed]),
    ) -> Result<Engine> {
        config.validate()?;
        let guard = ForkGuard::new().map_err(|error| Error::system("mapping the fork marker", &error))?;
        let listener = listen(&config)?;
        let address = advertised(&config, listener.as_ref())?;
        let (proof_listener, unix_name) = proofs(&config, listener.is_some())?.unzip();
        let tag = Tag::of_engine(sys::random::next_u64());
        let local = local_of(&config, tag, address.clone(), unix_name, listener.as_ref())?;
        let grants = grants(&config);
        let registry = Arc::new(Registry::new(tag, grants.as_ref().ok().cloned()));
        let context = Arc::new(Context::new(config, tag, local, registry, Arc::new(Hub::new(tag))));
        let workers = Arc::new(new_workers(&context)?);
        let service = match grants {
            Ok(grants) => Ok(new_service(&context, grants)?),
            Err(why) => Err(why),
        };
        let (files, drivers) = devices::drivers(&context.config);
        let rdma = new_rdma(&context, &drivers)?;
        let stage = devices::stage(&context, drivers.clone());
        let mut installed = vec![
            Installed {
                transport: Transport::Local,
                service: service.map(|service| service as Arc<dyn TransportService>),
            },
            Installed {
                transport: Transport::Rdma,
                service: rdma.clone().map(|rdma| rdma as Arc<dyn TransportService>),
            },
            #[cfg(test)]
            Installed { transport: Transport::Loopback, service: loopback::Service::installed(&context) },
            Installed {
                transport: Transport::Staged,
                service: Ok(stage.clone() as Arc<dyn TransportService>),
            },
        ];
        change(&context, &mut installed);
        let own = Own::new(context.clone(), stage, local_threads(&context.config));
        let mut services: Vec<_> = installed.iter().filter_map(|it| it.service.clone().ok()).collect();
        services.push(own.clone());
        let poller = Arc::new(Poller::new(PollerKind::Epoll)?);
        let control = Control::new(Parts {
            context: context.clone(),
            poller: poller.clone(),
            listener,
            proofs: proof_listener,
            lanes: Arc::new(tcp::service::TcpService::new(context.clone(), workers.clone(), poller)),
            services: installed,
        })?;
        let inner = Inner {
            context,
            guard,
            address,
            workers,
            services,
            rdma: rdma.ok(),
            drivers,
            own,
            files,
            control: Mutex::new(None),
            state: AtomicU32::new(OPEN),
            closing: Mutex::new(()),
        };
        let health = inner.context.health();
        health.set_undertaker(Some(Arc::new(Remains {
            context: inner.context.clone(),
            lanes: inner.workers.lanes.clone(),
            services: inner.services.clone(),
            rdma: inner.rdma.clone(),
        })));
        // From here on, dropping `inner` ends everything that was started.
        health.within(|| inner.start(control))?;
        Ok(Engine { inner: Arc::new(inner) })
    }

    /// Returns the "host:port" at which peers reach this engine; "" if the engine does not listen. If the engine
    /// listens at any address and `advertise_address` is not set, the host is the source address of the default route
    /// or, without one, the only address of an interface besides the loopback.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// Returns what the engine's owner should know although the engine has opened, as sentences: `FERRY_*` variables of
    /// the environment that are no settings. Empty for a `Config` that did not read the environment.
    pub fn warnings(&self) -> &[String] {
        self.config().warnings()
    }

    pub fn config(&self) -> &Config {
        &self.inner.context.config
    }

    /// Returns the context. CLOSED once closing has begun and in a forked child; PANIC if the engine is broken.
    pub(super) fn context(&self) -> Result<&Arc<Context>> {
        self.inner.check_open()?;
        self.inner.context.health().check()?;
        Ok(&self.inner.context)
    }

    /// Runs engine work on the caller's thread. PANIC if the engine is broken or breaks during the call, on this or
    /// another thread.
    pub(crate) fn call<T>(&self, doing: &'static str, body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.inner.check_not_forked()?;
        self.inner.check_state_below(CLOSED)?;
        self.inner.context.health().call(doing, body)
    }

    /// Returns OK, or PANIC with the text of the panic. After a PANIC every call returns PANIC; close the engine.
    pub fn check_health(&self) -> Result<()> {
        self.inner.context.health().check()
    }

    /// True when this engine moves nothing any more: `close` has returned OK, or the engine is broken and its teardown
    /// is over. If no thread of the engine is left to do the teardown, the call may wait for it, for one lease.
    pub fn is_over(&self) -> bool {
        let health = self.inner.context.health();
        let is_buried = || health.check().is_err() && health.wait_over(Some(clock::now())).is_ok();
        self.check_not_closed().is_err() || is_buried()
    }

    /// True in a child process that inherited the engine by fork. The child must not use the engine.
    pub fn is_forked(&self) -> bool {
        self.inner.guard.is_child()
    }

    /// Returns CLOSED once `close` has returned OK, and in a forked child. While an engine is closing, its transfers
    /// can still be waited for and read.
    pub fn check_not_closed(&self) -> Result<()> {
        self.inner.check_not_forked()?;
        self.inner.check_state_below(CLOSED)
    }

    /// True if the calling thread is inside a callback of this engine, where blocking calls are refused.
    pub fn in_callback(&self) -> bool {
        self.inner.context.hub.in_callback()
    }

    /// Ends the engine: every transfer becomes final, sessions end, threads stop. Idempotent. BUSY after the timeout
    /// (the engine is still closing; call again), and inside a callback, or a waker that ferry calls.
    pub fn close(&self, timeout: Option<Duration>) -> Result<()> {
        self.inner.close(timeout)
    }

    /// Creates a queue for events of the kinds in `what` (`notify::WHAT_*`) with room for `capacity` transfers.
    /// Its notifications are those of channel 0.
    pub fn queue(&self, what: u32, capacity: usize) -> Result<Arc<Queue>> {
        self.channel_queue(what, capacity, 0)
    }

    /// Creates a queue as `queue` does, for the notifications of `channel`, below `limits::CHANNELS_MAX`. Channels keep
    /// the notifications of libraries that share an engine apart; each has an order and credits of its own.
    pub fn channel_queue(&self, what: u32, capacity: usize, channel: u16) -> Result<Arc<Queue>> {
        self.context()?.hub.create(what, capacity, channel)
    }

    /// Returns the engine's queues.
    pub fn hub(&self) -> Result<&Hub> {
        Ok(&self.context()?.hub)
    }

    /// Returns the engine's queues even after `close`, because the events that wait in them can still be drained.
    pub fn hub_of_closed(&self) -> Result<&Hub> {
        self.inner.check_not_forked()?;
        Ok(&self.inner.context.hub)
    }
}

/// The parts that tests inside the crate look at.
#[cfg(test)]
impl Engine {
    pub fn stage(&self) -> &crate::stage::StageService {
        &self.inner.own.stage
    }

    pub fn whole(&self) -> &Arc<Context> {
        &self.inner.context
    }

    pub fn rdma(&self) -> Option<&Arc<rdma::RdmaService>> {
        self.inner.rdma.as_ref()
    }
}

impl Inner {
    /// Starts the threads that listen. `Control::prepare` starts those that peers need.
    fn start(&self, control: Control) -> Result<()> {
        self.services.iter().try_for_each(|service| service.clone().start())?;
        *self.control.lock() = Some(control.start()?);
        Ok(())
    }

    pub fn check_not_forked(&self) -> Result<()> {
        if self.guard.is_child() {
            return Err(Error::new(
                Status::Closed,
                "this process inherited the engine by fork and cannot use it",
            ));
        }
        Ok(())
    }

    fn check_open(&self) -> Result<()> {
        self.check_not_forked()?;
        self.check_state_below(CLOSING)
    }

    pub fn check_state_below(&self, limit: u32) -> Result<()> {
        if self.state.load(Ordering::Acquire) >= limit {
            return Err(Error::new(Status::Closed, "the engine is closed"));
        }
        Ok(())
    }
}

/// Returns the default number of threads for one purpose: the cores that this process may use, at most 4.
pub(super) fn cores() -> u32 {
    thread::available_parallelism().map_or(1, |count| count.get() as u32).clamp(1, 4)
}

/// Creates the table of grants by which other processes of this host copy. Err says why the same-host path is off.
fn grants(config: &Config) -> std::result::Result<Arc<Grants>, String> {
    let transports = config.transports.0;
    if !config.local || (transports != 0 && transports & Transport::Local.bit() == 0) {
        return Err("switched off by the settings".into());
    }
    Grants::new().map(Arc::new).map_err(|error| format!("shared memory: {}", reason(&error)))
}

fn new_service(context: &Context, grants: Arc<Grants>) -> Result<Arc<LocalService>> {
    let config = &context.config;
    let settings = local::LocalSettings {
        threads: local_threads(config),
        spin_ns: context.spin_ns,
        any_tracer: config.local_any_tracer,
        listen: !config.listen_address.is_empty(),
    };
    LocalService::new(settings, context.registry.clone(), grants, context.commands.clone())
}

/// Opens the RDMA devices. The inner Err says why RDMA is not used.
fn new_rdma(
    context: &Context,
    drivers: &Arc<Drivers>,
) -> Result<std::result::Result<Arc<rdma::RdmaService>, String>> {
    let config = &context.config;
    if !config.rdma || !config.transports.allows(Transport::Rdma) {
        return Ok(Err("switched off by the settings".into()));
    }
    let settings = rdma::RdmaSettings {
        devices: rdma::DeviceSettings {
            gid_index: config.rdma_gid_index,
            mtu: config.rdma_mtu,
            inline_bytes: config.rdma_inline_bytes,
            ack_timeout_ms: config.rdma_ack_timeout_ms,
            retries: config.rdma_retries,
            mr_bytes_max: config.rdma_mr_bytes_max,
        },
        names: config.rdma_devices.0.clone(),
        qps: config.rdma_qps,
        spin_ns: context.spin_ns,
        lease_ns: config.lease_ms * 1_000_000,
        patience: Duration::from_millis(config.reconnect_timeout_ms),
        idle: Duration::from_millis(config.rdma_idle_ms),
    };
    let direct = rdma::Direct::new(config.rdma_gpudirect.then(|| drivers.clone()));
    rdma::RdmaService::new(settings, context.registry.clone(), context.commands.clone(), direct)
}

fn new_workers(context: &Context) -> Result<Workers> {
    let count = match context.config.workers {
        0 => cores(),
        count => count,
    };
    let kind = match context.config.tcp_poller {
        TcpPoller::Auto => PollerKind::Auto,
        TcpPoller::Epoll => PollerKind::Epoll,
        TcpPoller::IoUring => PollerKind::IoUring,
    };
    Workers::new(count, kind, context.spin_ns)
}

/// Opens the socket on which processes prove that they run as this user, if the settings allow that.
fn proofs(config: &Config, listens: bool) -> Result<Option<(OwnedFd, Vec<u8>)>> {
    let wanted = listens && config.same_user && config.shared_secret().is_none();
    let open = || unix::listen_abstract(unix::Type::STREAM);
    let opened = wanted.then(open).transpose();
    opened.map_err(|error| Error::system("opening the same-user proof socket", &error))
}

fn listen(config: &Config) -> Result<Option<Listener>> {
    if config.listen_address.is_empty() {
        return Ok(None);
    }
    let (wanted, name) = (&config.listen_address, config.name_of("listen_address"));
    let none = |why: &str| Error::invalid(format!("{name}: {wanted:?} is no address of this host: {why}"));
    let found = names::look_up(wanted).map_err(|error| none(&reason(&error)))?;
    let mut failed = none("the name has no address");
    for address in found {
        match Listener::bind(address, config.socket_buffer_bytes as usize) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) => failed = not_listening(&name, address, &error),
        }
    }
    Err(failed)
}

fn not_listening(name: &str, address: SocketAddr, error: &std::io::Error) -> Error {
    let is_full = address.port() == 0 && error.raw_os_error() == Some(libc::EADDRINUSE);
    let why = if is_full { ": this host has no free port (net.ipv4.ip_local_port_range)" } else { "" };
    Error::system(format!("{name}: listening on {address}{why}"), error)
}

/// Returns the address that peers are told to dial.
fn advertised(config: &Config, listener: Option<&Listener>) -> Result<String> {
    let Some(listener) = listener else { return Ok(config.advertise_address.clone()) };
    let bound = listener.address().map_err(|error| Error::system("reading the listen address", &error))?;
    Ok(match (config.advertised_host(), config.advertise_address.as_str()) {
        (Some(host), _) => format!("{host}:{}", bound.port()),
        (None, "") if bound.ip().to_canonical().is_unspecified() => reachable(config, bound)?.to_string(),
        (None, "") if is_of_link(bound.ip()) => {
            let (listen, advertise) = (config.name_of("listen_address"), config.name_of("advertise_address"));
            return Err(Error::invalid(format!(
                "{listen}: {bound} is an address of one link, and ferry can't tell by which interface peers reach the \
                 address; set {advertise}, with the interface: [fe80::1%eth0]:0"
            )));
        }
        (None, "") => bound.to_string(),
        (None, address) => address.to_owned(),
    })
}

/// True for an address that a peer can dial only with the name of its own interface.
fn is_of_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns the address that peers of an engine that listens at any address reach: that of the default route, or the
/// only one that an interface has besides the loopback. A guess among several would be wrong for some peers.
fn reachable(config: &Config, bound: SocketAddr) -> Result<SocketAddr> {
    // A socket of IPv6 also takes connections over IPv4.
    let families = if bound.ip().to_canonical().is_ipv6() { &[true, false][..] } else { &[false] };
    if let Some(ip) = families.iter().find_map(|v6| addresses::of_default_route(*v6)) {
        return Ok(SocketAddr::new(ip, bound.port()));
    }
    let read = |error: std::io::Error| Error::system("reading the addresses of this host", &error);
    let mut found = Vec::new();
    for v6 in families {
        found.extend(addresses::of_interfaces(*v6).map_err(read)?);
    }
    if let [ip] = found[..] {
        return Ok(SocketAddr::new(ip, bound.port()));
    }
    let (listen, advertise) = (config.name_of("listen_address"), config.name_of("advertise_address"));
    let why = if found.is_empty() {
        "only the loopback has an address here".to_owned()
    } else {
        let all: Vec<String> = found.iter().take(8).map(ToString::to_string).collect();
        format!("there is no default route, and this host has several addresses ({})", all.join(", "))
    };
    Err(Error::invalid(format!(
        "{listen}: {bound} is any address, and ferry can't tell which one peers reach: {why}; set {advertise}, or listen \
         at one address"
    )))
}

/// Returns what handshakes tell of an engine.
fn local_of(
    config: &Config,
    tag: Tag,
    address: String,
    unix_name: Option<Vec<u8>>,
    listener: Option<&Listener>,
) -> Result<Local> {
    Ok(Local {
        // Random, so that no other engine has the same id, not even an engine on a clone of this machine.
        engine_id: random_id(),
        incarnation: sys::random_u64().max(1),
        address,
        tag: tag.number(),
        lanes_max: config.lanes,
        frame_bytes_max: config.frame_bytes_max,
        reads_max: limits::LANE_READS_MAX as u32,
        notify_credits: limits::NOTIFY_CREDITS,
        unix_name,
        place: listener.and_then(place),
        process: Process::own(),
        auth: AuthPolicy {
            secret: config.shared_secret().map(derive_secret).transpose()?,
            same_user: config.same_user,
            allow_unauthenticated: config.allow_unauthenticated,
        },
    })
}

fn random_id() -> EngineId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&sys::random_u64().to_le_bytes());
    id[8..].copy_from_slice(&sys::random_u64().to_le_bytes());
    EngineId(id)
}

/// Returns a number for the place at which this engine listens: the boot of the kernel, the network namespace and the
/// bound address. Only one socket listens at a place at a time, so a peer that meets another engine with the same place
/// knows that the first engine has ended. None if the kernel does not provide enough.
fn place(listener: &Listener) -> Option<PlaceId> {
    let fd = listener.as_raw_fd();
    let mut hasher = blake3::Hasher::new_derive_key("ferry engine place v1");
    // Needed only on sandboxed kernels, which do not have a different boot id for each boot.
    hasher.update(&host::machine_id());
    hasher.update(&host::boot_id()?);
    hasher.update(&socket::network_namespace(fd)?.to_le_bytes());
    hasher.update(&socket::bound_interface(fd).unwrap_or(0).to_le_bytes());
    hasher.update(listener.address().ok()?.to_string().as_bytes());
    let mut place = [0; 16];
    place.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Some(PlaceId(place))
}
