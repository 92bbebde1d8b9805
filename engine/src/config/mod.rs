//! The settings of an engine: one table with the default, the valid values and the documentation of each setting.
//! This module is beside the data path: `api` reads the configuration once at open and passes numbers to the steps
//! below. `value` has the types of settings, `address` the form of addresses, `secret` the settings that must never be
//! shown, `ascend` the names that other software uses for some settings, and `environment` the record of what the
//! environment variables set.

mod address;
mod ascend;
mod environment;
mod secret;
#[cfg(test)]
mod tests;
mod value;

pub use address::check_address;
#[cfg(feature = "internals")]
pub(crate) use environment::is_known;
pub use environment::Environment;
pub use secret::{Secret, SecretFile};
pub use value::{AscendFabric, Congestion, FileIo, Names, TcpPoller, Transports, Valid};

use crate::limits;
use crate::status::{Error, Result, Status};
use crate::sys::host;
use std::ffi::OsString;
use std::fmt;
use value::Value;

/// One row of the table.
pub struct Setting {
    /// The key of `Config::set`; it ends in the unit if the setting has one. The environment variable is
    /// `FERRY_` and the key in capitals.
    pub name: &'static str,
    pub valid: Valid,
    /// One sentence for the reference documentation.
    pub doc: &'static str,
    read: fn(&Config) -> String,
    write: fn(&mut Config, &str, &Valid) -> Result<()>,
    check: fn(&Config, &Valid) -> Result<()>,
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setting")
            .field("name", &self.name)
            .field("valid", &self.valid)
            .finish_non_exhaustive()
    }
}

/// Makes the struct, its defaults and the table from one list, so that they cannot disagree.
macro_rules! settings {
    ($($name:ident: $type:ty = $default:expr, $valid:expr, $doc:literal;)*) => {
        /// The settings of an engine. The fields may be assigned directly; `validate` then checks them.
        #[derive(Clone, Debug)]
        pub struct Config {
            $(#[doc = $doc] pub $name: $type,)*
            #[doc(hidden)]
            pub environment: Environment,
        }

        impl Default for Config {
            /// Returns the built-in defaults; ignores the environment.
            fn default() -> Config { Config { $($name: $default,)* environment: Environment::default() } }
        }

        static SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            valid: $valid,
            doc: $doc,
            read: |config| config.$name.show(),
            write: |config, text, valid| { config.$name = value::parse(text, valid)?; Ok(()) },
            check: |config, valid| config.$name.check(valid),
        },)*];
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const HANDLES: u64 = crate::handle::INDEX_MAX as u64;

settings! {
    listen_address: String = "127.0.0.1:0".into(), Valid::ListenAddress,
        "The host:port to listen at; port 0 takes a free port, and an empty value disables listening.";
    advertise_address: String = String::new(), Valid::PeerAddress,
        "The host:port that peers are told to connect to; an empty value derives it from the bound address, and from the default route or the only interface if that is any address (`0.0.0.0`, `[::]`).";
    secret_file: SecretFile = SecretFile::default(), Valid::SecretFile,
        "A file with the secret that all peers share, read when the setting is set; replaces `secret`.";
    secret: Secret = Secret::default(), Valid::Secret,
        "The secret that all peers share, in hexadecimal; never shown, replaces `secret_file`.";
    allow_unauthenticated: bool = false, Valid::Bool,
        "Accept peers without proof; only for networks where everyone may write to registered memory.";
    same_user: bool = true, Valid::Bool,
        "Without a secret, accept peers that are proven to run as the same user on this host.";
    transports: Transports = Transports::AUTO, Valid::Transports,
        "The transports that may be used; a transfer that none of them can carry fails rather than falls back.";
    local: bool = true, Valid::Bool,
        "Offer and use the same-host path to processes that are proven to belong to this user on this host.";
    local_threads: u32 = 0, Valid::Range(0, limits::WORKERS_MAX as u64),
        "Threads that copy for one peer on this host at a time, waiting callers included; 0 takes one per core, at most 4.";
    local_any_tracer: bool = false, Valid::Bool,
        "If Yama limits ptrace to ancestors, let every process of this user copy from and to this process's memory (PR_SET_PTRACER_ANY).";
    rdma: bool = true, Valid::Bool,
        "Offer and use the RDMA devices of this host, if libibverbs and devices are present.";
    rdma_devices: Names = Names::default(), Valid::Names,
        "RDMA devices to use, by their names in libibverbs; empty takes every device with an active port.";
    rdma_gid_index: Option<u32> = None, Valid::AutoOr(0, 255),
        "GID index of each device's port; auto prefers RoCEv2 with an IPv4 address, then IPv6, then link-local addresses.";
    rdma_mtu: u32 = 0, Valid::Mtu,
        "Largest path MTU; 0 leaves the choice to the ports of both ends.";
    rdma_qps: u32 = 2, Valid::Range(1, limits::QPS_MAX as u64),
        "Queue pairs for large transfers between two devices; small transfers use one more of their own.";
    rdma_inline_bytes: u32 = 220, Valid::Range(0, 1024),
        "A WRITE up to this size is copied into its work request, as far as the device supports this.";
    rdma_ack_timeout_ms: u32 = 500, Valid::Range(1, 60_000),
        "How long a packet may stay unacknowledged before it is sent again; the device rounds up to a power of two.";
    rdma_retries: u32 = 2, Valid::Range(0, 6),
        "How often a packet is sent again before the path counts as broken and another path takes over.";
    rdma_idle_ms: u64 = 600_000, Valid::Range(0, 86_400_000),
        "How long idle queue pairs are kept before they are closed until the next use; 0 never closes them.";
    rdma_mr_bytes_max: u64 = 0, Valid::ZeroOr(limits::SPLIT_BYTES_MIN, 1 << 48),
        "Larger regions are registered with a device in several pieces; 0 takes the device's own limit.";
    rdma_gpudirect: bool = true, Valid::Bool,
        "Let RDMA devices read and write GPU memory by themselves (GPUDirect RDMA by dma-buf) if driver, kernel and NIC support it; other device memory is staged.";
    cuda: bool = true, Valid::Bool,
        "Use memory of CUDA devices, if the driver's library is present.";
    ascend: bool = true, Valid::Bool,
        "Use memory of Ascend devices, if AscendCL is present.";
    ascend_library: String = String::new(), Valid::Library,
        "Library of AscendCL to open; empty opens libascendcl.so, or else libacl_rt.so.";
    ascend_fabric: AscendFabric = AscendFabric::Off, Valid::Words(AscendFabric::WORDS),
        "The fabric on which Ascend devices of different hosts move data by themselves (HIXL), the same at both ends; it is neither authenticated nor encrypted, so the networks of devices and hosts must be your own.";
    hixl_library: String = String::new(), Valid::Library,
        "Library of HIXL to open for `ascend_fabric`, version 9.1 or later; empty opens libcann_hixl.so.";
    staging_slots: u32 = 8, Valid::Range(2, limits::STAGING_SLOTS_MAX),
        "Pieces of pinned host memory, 2 MiB each, that stage outgoing device memory; incoming memory uses as many more.";
    device_timeout_ms: u64 = 10_000, Valid::Range(10, limits::DEVICE_TIMEOUT_MS_MAX),
        "How long one copy on a device may take before the device counts as broken.";
    file_io: FileIo = FileIo::Auto, Valid::Words(FileIo::WORDS),
        "How registered files are read and written: io_uring, threads, or auto, which takes io_uring if the kernel allows it.";
    cuda_library: String = String::new(), Valid::Library,
        "Library of the CUDA driver to open instead of libcuda.so.1, for tests.";
    lanes: u32 = 2, Valid::Range(1, limits::LANES_MAX as u64),
        "Bulk TCP connections to each peer, opened when bulk data is first sent; the express lane for small transfers is not counted.";
    workers: u32 = 0, Valid::Range(0, limits::WORKERS_MAX as u64),
        "Threads that drive bulk lanes, with as many for express lanes, all started with the first peer; 0 takes one per core, at most 4.";
    tcp_poller: TcpPoller = TcpPoller::Auto, Valid::Words(TcpPoller::WORDS),
        "How lane threads wait for sockets; auto takes the method that was measured to be fastest among those the kernel has.";
    tcp_congestion: Congestion = Congestion::Auto, Valid::Congestion,
        "Congestion control of data lanes; auto takes reno to peers on this host if the kernel allows it.";
    socket_buffer_bytes: u32 = 0, Valid::ZeroOr(64 * KIB, 64 * MIB),
        "Send and receive buffer of each data socket; 0 leaves the kernel's autotuning alone.";
    frame_bytes_max: u32 = limits::FRAME_BYTES_MAX, Valid::Range(limits::FRAME_BYTES_MIN as u64, limits::FRAME_BYTES_MAX as u64),
        "Largest payload of one data frame; smaller frames let small transfers overtake sooner.";
    express_bytes_max: u64 = 64 * KIB, Valid::Range(0, MIB),
        "Transfers up to this size use the express lane, and the submitting thread sends them; 0 disables this.";
    spin_us: u64 = 50, Valid::Range(0, 1000),
        "How long a waiting thread polls before it sleeps; 0 disables polling.";
    lease_ms: u64 = 3000, Valid::Range(50, 600_000),
        "How long after its post a frame may still be applied; a cancelled, failed or timed-out transfer is final within this time.";
    drain_ms: u64 = 100, Valid::Range(0, 60_000),
        "How long a cancelled, failed or timed-out transfer waits for confirmation before its lanes are cut; must be below lease_ms.";
    deadline_ms: u64 = 30_000, Valid::Range(0, 86_400_000),
        "Deadline of transfers that set none; 0 means no deadline.";
    progress_timeout_ms: u64 = 5000, Valid::Range(100, 600_000),
        "How long a lane with work may make no progress before it counts as broken.";
    connect_timeout_ms: u64 = 5000, Valid::Range(1, 600_000),
        "How long one connection attempt may take.";
    reconnect_timeout_ms: u64 = 10_000, Valid::Range(0, 600_000),
        "How long ferry redials a lost peer before its transfers fail with PEER_LOST, and how long transfers that only RDMA may carry wait for RDMA ports that went down before they fail with UNAVAILABLE; 0 does neither.";
    reconnect_backoff_ms: u64 = 20, Valid::Range(1, 1000),
        "Pause before the second redial; it doubles with each further redial, up to a second.";
    keepalive_ms: u64 = 60_000, Valid::Range(0, 3_600_000),
        "How long a peer may be silent before its connection counts as lost (event PEER_DOWN); a peer that is silent for two thirds of it is asked for a sign of life; 0 asks only while something is under way.";
    handshake_timeout_ms: u64 = 5000, Valid::Range(1, 600_000),
        "How long a new connection may take to authenticate, and a TCP lane to be welcomed.";
    transfers_max: u32 = 65_536, Valid::Range(1, HANDLES),
        "Transfers that are not yet released, and the parts in which transfers of device memory are staged; further \
         transfers are refused with LIMIT, while parts have 128 places more.";
    peers_max: u32 = 65_536, Valid::Range(1, HANDLES),
        "Peers that are known at one time; further peers are refused with LIMIT.";
}

impl Setting {
    /// Returns the default as text, in the form that `Config::set` takes.
    pub fn default_text(&self) -> String {
        (self.read)(&Config::default())
    }

    /// Returns the environment variable that overrides the default.
    pub fn variable(&self) -> String {
        format!("FERRY_{}", self.name.to_ascii_uppercase())
    }

    /// Returns the error that refuses a value of `key`, the variable or the setting's name. Does not repeat the value
    /// of a secret, nor of the secret's file: that value may be the secret, pasted in the wrong place.
    fn refuse(&self, key: &str, text: &str, cause: &Error) -> Error {
        let is_secret = matches!(self.valid, Valid::Secret | Valid::SecretFile);
        let given = if is_secret { "the value given".into() } else { format!("{text:?}") };
        let message = format!("{key}: {given} is refused: {}; valid: {}", cause.message, self.valid);
        Error { message, ..cause.clone() }
    }
}

impl Config {
    /// Returns the defaults, overridden by `FERRY_<NAME>` environment variables. If `ascend` is on, some `ASCEND_`
    /// variables override the defaults too, but not the `FERRY_` variables (docs/settings.md lists them). INVALID
    /// names the variable with a bad value. A process that has more rights than its caller (set-user-id,
    /// capabilities of its file) ignores all of them: they name libraries to load and files to read. `validate`
    /// checks the rules between settings, because the caller may still correct what the environment set.
    pub fn new() -> Result<Config> {
        let is_privileged = host::has_more_rights_than_its_caller();
        let mut config = Config::from_environment(is_privileged, |name| std::env::var_os(name))?;
        if !is_privileged {
            config.environment.warnings = environment::unknown(std::env::vars_os().map(|(name, _)| name));
        }
        Ok(config)
    }

    fn from_environment(is_privileged: bool, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config> {
        Config::from_variables(|name| lookup(name).filter(|_| !is_privileged))
    }

    /// Returns a sentence for each environment variable that looks like a setting and is none. `Engine::warnings`
    /// repeats them.
    pub fn warnings(&self) -> &[String] {
        &self.environment.warnings
    }

    pub(crate) fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config> {
        let mut config = Config::default();
        let read = |setting: &Setting, config: &mut Config| {
            let variable = setting.variable();
            let Some(value) = lookup(&variable) else { return Ok(()) };
            let Some(text) = value.to_str() else {
                return Err(Error::invalid(format!("{variable}: the value is not UTF-8")));
            };
            (setting.write)(config, text, &setting.valid)
                .map_err(|cause| setting.refuse(&variable, text, &cause))?;
            let shown = (setting.read)(config);
            config.environment.gave(setting, shown);
            Ok(())
        };
        // `ascend` comes first: it decides whether the other names count. ferry's own names come last.
        SETTINGS
            .iter()
            .filter(|setting| setting.name == "ascend")
            .try_for_each(|setting| read(setting, &mut config))?;
        if config.ascend {
            ascend::apply(&mut config, &lookup)?;
        }
        SETTINGS.iter().try_for_each(|setting| read(setting, &mut config))?;
        if config.secret.is_set() && config.secret_file.is_set() {
            return Err(Error::invalid("FERRY_SECRET and FERRY_SECRET_FILE are both set; keep one"));
        }
        Ok(config)
    }

    /// Changes one setting. INVALID for an unknown key (with the nearest known key) or a bad value; the
    /// configuration is then unchanged. A later `secret` replaces `secret_file`, and the reverse, so that explicit
    /// configuration overrides the environment.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let setting = find(key).ok_or_else(|| unknown(key))?;
        (setting.write)(self, value, &setting.valid).map_err(|cause| setting.refuse(key, value, &cause))?;
        match key {
            "secret" if self.secret.is_set() => self.secret_file = SecretFile::default(),
            "secret_file" if self.secret_file.is_set() => self.secret = Secret::default(),
            _ => {}
        }
        self.environment.overridden(key);
        Ok(())
    }

    /// Returns the name under which the caller gave a setting: the environment variable, or the key.
    pub(crate) fn name_of(&self, key: &'static str) -> String {
        let shown = |setting: &Setting| self.environment.name_of(setting, &(setting.read)(self));
        find(key).map_or_else(|| key.to_owned(), shown)
    }

    /// Returns a setting in the form that `set` takes; None for an unknown key. A secret reads as a placeholder.
    pub fn get(&self, key: &str) -> Option<String> {
        find(key).map(|setting| (setting.read)(self))
    }

    /// Returns the table, in the order of the documentation.
    pub fn settings() -> &'static [Setting] {
        SETTINGS
    }

    /// Returns the shared secret, from `secret` or `secret_file`.
    pub fn shared_secret(&self) -> Option<&[u8]> {
        self.secret.bytes().or(self.secret_file.bytes())
    }

    /// Returns the host of `advertise_address` if its port is 0, which stands for the bound port.
    pub fn advertised_host(&self) -> Option<&str> {
        let (_, port) = address::split(&self.advertise_address).ok()?;
        self.advertise_address.rsplit_once(':').filter(|_| port == 0).map(|(host, _)| host)
    }

    /// Checks every setting (the fields are public) and the rules between settings. INVALID names the setting.
    pub fn validate(&self) -> Result<()> {
        for setting in SETTINGS {
            (setting.check)(self, &setting.valid).map_err(|cause| {
                setting.refuse(&self.name_of(setting.name), &(setting.read)(self), &cause)
            })?;
        }
        if self.drain_ms >= self.lease_ms {
            let (drain_ms, lease_ms) = (self.name_of("drain_ms"), self.name_of("lease_ms"));
            let (drain, lease) = (self.drain_ms, self.lease_ms);
            return Err(Error::invalid(format!(
                "{drain_ms} ({drain}) must be less than {lease_ms} ({lease})"
            )));
        }
        if self.advertised_host().is_some() && self.listen_address.is_empty() {
            let (advertise, listen) = (self.name_of("advertise_address"), self.name_of("listen_address"));
            return Err(Error::invalid(format!(
                "{advertise}: port 0 stands for the bound port, but {listen} is empty"
            )));
        }
        if self.secret.is_set() && self.secret_file.is_set() {
            let (secret, file) = (self.name_of("secret"), self.name_of("secret_file"));
            return Err(Error::invalid(format!("{secret} and {file} are both set; keep one")));
        }
        if self.shared_secret().is_none() && !self.same_user && !self.allow_unauthenticated {
            let same_user = self.name_of("same_user");
            return Err(Error::invalid(format!(
                "no peer could be accepted, because {same_user} is false: set secret, secret_file, same_user or \
                 allow_unauthenticated"
            )));
        }
        Ok(())
    }
}

fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == key)
}

fn unknown(key: &str) -> Error {
    // A key may be any text of the caller: bound the part that is compared and repeated.
    let key: String = key.chars().take(64).collect();
    let hint = nearest(&key).map_or(String::new(), |setting| format!("; did you mean {:?}?", setting.name));
    Error::new(Status::Invalid, format!("unknown setting {key:?}{hint}"))
}

/// Returns the setting that `key` likely means: one with a similar name, or one whose name is `key` with more words
/// after it, for example a unit.
fn nearest(key: &str) -> Option<&'static Setting> {
    let distance = |setting: &&Setting| edit_distance(key, setting.name);
    let near = SETTINGS.iter().min_by_key(distance).filter(|it| distance(it) <= (it.name.len() / 3).max(2));
    near.or_else(|| {
        let goes_on = |it: &&Setting| it.name.strip_prefix(key).is_some_and(|rest| rest.starts_with('_'));
        SETTINGS.iter().find(goes_on)
    })
}

/// Returns Levenshtein's distance, one row at a time: `row[j]` is the distance between the part of `a` read so
/// far and the first `j` characters of `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
