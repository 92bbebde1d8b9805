//! What an engine is told before it opens: one table of settings, each with its default, its valid
//! values and the sentence that documents it. Stands beside the data path; `api` reads it once at
//! open and hands numbers, not the configuration, to the steps below. `value` holds the types of
//! settings, `secret` the one that must never be shown, `ascend` other software's names for some.

mod ascend;
mod secret;
#[cfg(test)]
mod tests;
mod value;

pub use secret::{Secret, SecretFile};
pub(crate) use value::is_any_address;
pub use value::{AscendFabric, Congestion, Names, TcpPoller, Transports, Valid};

use crate::limits;
use crate::status::{Error, Result, Status};
use crate::sys::host;
use std::ffi::OsString;
use value::Value;

/// One row of the table: what a setting is called, what it may be and what it does.
pub struct Setting {
    /// The key of `Config::set`; ends in the unit where there is one. The environment variable is
    /// `FERRY_` and this in capitals.
    pub name: &'static str,
    pub valid: Valid,
    /// One sentence for the reference documentation.
    pub doc: &'static str,
    read: fn(&Config) -> String,
    write: fn(&mut Config, &str, &Valid) -> Result<()>,
    is_valid: fn(&Config, &Valid) -> bool,
}

/// Makes the struct, its defaults and the table from one list, so that they cannot disagree.
macro_rules! settings {
    ($($name:ident: $type:ty = $default:expr, $valid:expr, $doc:literal;)*) => {
        /// The settings of an engine. The fields may be assigned directly; `validate` then checks them.
        #[derive(Clone, Debug)]
        pub struct Config { $(#[doc = $doc] pub $name: $type,)* }

        impl Default for Config {
            /// The built-in defaults, without a look at the environment.
            fn default() -> Config { Config { $($name: $default,)* } }
        }

        static SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            valid: $valid,
            doc: $doc,
            read: |config| config.$name.show(),
            write: |config, text, valid| { config.$name = value::parse(text, valid)?; Ok(()) },
            is_valid: |config, valid| config.$name.is_valid(valid),
        },)*];
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const HANDLES: u64 = crate::handle::INDEX_MAX as u64;

settings! {
    listen_address: String = "127.0.0.1:0".into(), Valid::ListenAddress,
        "Where to listen, as host:port; port 0 takes a free one, and an empty value does not listen at all.";
    advertise_address: String = String::new(), Valid::PeerAddress,
        "The host:port that peers are told to connect to; an empty value derives it from where the engine listens, and tells nothing where that is any address (`0.0.0.0`, `[::]`).";
    secret_file: SecretFile = SecretFile::default(), Valid::SecretFile,
        "A file that holds the secret shared by all peers, read when this is set; replaces `secret`.";
    secret: Secret = Secret::default(), Valid::Secret,
        "The secret shared by all peers, in hexadecimal; it is never shown, and replaces `secret_file`.";
    allow_unauthenticated: bool = false, Valid::Bool,
        "Accept peers that prove nothing; only for networks where everyone may write to registered memory.";
    same_user: bool = true, Valid::Bool,
        "Without a secret, accept peers that are proven to run as the same user on this host.";
    transports: Transports = Transports::AUTO, Valid::Transports,
        "The transports that may be used; a transfer that none of them can carry fails rather than falls back.";
    local: bool = true, Valid::Bool,
        "Offer and use the same-host path to peers that are proven to be processes of this user on this host.";
    local_threads: u32 = 0, Valid::Range(0, limits::WORKERS_MAX as u64),
        "Threads that copy to and from one peer on this host at one time, callers that wait included; 0 takes one per core, at most 4.";
    local_any_tracer: bool = false, Valid::Bool,
        "Where Yama limits ptrace to ancestors, let every process of this user copy from and to this one's memory (PR_SET_PTRACER_ANY).";
    rdma: bool = true, Valid::Bool,
        "Offer and use the RDMA devices of this host, if libibverbs and devices are there.";
    rdma_devices: Names = Names::default(), Valid::Names,
        "RDMA devices to use, by the names that libibverbs gives them; empty takes all that have an active port.";
    rdma_gid_index: Option<u32> = None, Valid::AutoOr(0, 255),
        "GID of each device's port; auto takes RoCEv2 with an IPv4 address, then IPv6, and link-local ones last.";
    rdma_mtu: u32 = 0, Valid::Mtu,
        "Path MTU at most; 0 leaves it to the ports of both ends.";
    rdma_qps: u32 = 2, Valid::Range(1, limits::QPS_MAX as u64),
        "Queue pairs for large transfers between two devices; small ones have one of their own.";
    rdma_inline_bytes: u32 = 220, Valid::Range(0, 1024),
        "Up to this size a WRITE is copied into its work request, as far as the device can.";
    rdma_ack_timeout_ms: u32 = 500, Valid::Range(1, 60_000),
        "How long a packet may go unacknowledged before it is sent again; the device rounds up to a power of two.";
    rdma_retries: u32 = 2, Valid::Range(0, 6),
        "How often a packet is sent again before the path counts as broken and another takes over.";
    rdma_idle_ms: u64 = 600_000, Valid::Range(0, 86_400_000),
        "How long queue pairs with nothing to do are kept; they are made again when there is, and 0 keeps them.";
    rdma_mr_bytes_max: u64 = 0, Valid::ZeroOr(limits::SPLIT_BYTES_MIN, 1 << 48),
        "Larger regions are registered with a device in several pieces; 0 takes the device's own limit.";
    rdma_gpudirect: bool = true, Valid::Bool,
        "Let RDMA devices read and write memory of GPUs by themselves (GPUDirect RDMA by dma-buf) where driver, kernel and NIC can; other memory of devices is staged.";
    cuda: bool = true, Valid::Bool,
        "Use memory of CUDA devices, if the driver's library is there.";
    ascend: bool = true, Valid::Bool,
        "Use memory of Ascend devices, if AscendCL is there.";
    ascend_library: String = String::new(), Valid::Library,
        "AscendCL's library; empty opens libascendcl.so, or else libacl_rt.so.";
    ascend_fabric: AscendFabric = AscendFabric::Off, Valid::Words(AscendFabric::WORDS),
        "The fabric over which Ascend devices of different hosts move data by themselves (HIXL), the same at both ends; it is neither authenticated nor sealed, so the networks of devices and hosts must be your own.";
    hixl_library: String = String::new(), Valid::Library,
        "HIXL's library, 9.1 or later, for `ascend_fabric`; empty opens libcann_hixl.so.";
    staging_slots: u32 = 8, Valid::Range(2, 64),
        "Pieces of locked host memory, of 2 MiB each, through which memory of devices goes out; as many again are for memory that comes in.";
    device_timeout_ms: u64 = 10_000, Valid::Range(10, limits::DEVICE_TIMEOUT_MS_MAX),
        "How long one copy on a device may take before the device counts as broken.";
    cuda_library: String = String::new(), Valid::Library,
        "The CUDA driver's library to open instead of libcuda.so.1, for tests.";
    lanes: u32 = 2, Valid::Range(1, limits::LANES_MAX as u64),
        "Data connections to each peer over TCP for what is not small, opened when it is first sent; the express lane is not counted.";
    workers: u32 = 0, Valid::Range(0, limits::WORKERS_MAX as u64),
        "Threads that drive the lanes; 0 takes one per core, at most 4.";
    tcp_poller: TcpPoller = TcpPoller::Auto, Valid::Words(TcpPoller::WORDS),
        "How lane threads wait for sockets; auto takes what the kernel has and was measured to be fastest.";
    tcp_congestion: Congestion = Congestion::Auto, Valid::Congestion,
        "Congestion control of data lanes; auto takes reno to peers on this host where the kernel allows it.";
    socket_buffer_bytes: u32 = 0, Valid::ZeroOr(64 * KIB, 64 * MIB),
        "Send and receive buffer of each data socket; 0 leaves the kernel's autotuning alone.";
    frame_bytes_max: u32 = limits::FRAME_BYTES_MAX, Valid::Range(limits::FRAME_BYTES_MIN as u64, limits::FRAME_BYTES_MAX as u64),
        "Payload of one data frame at most; smaller frames let small transfers overtake sooner.";
    express_bytes_max: u64 = 64 * KIB, Valid::Range(0, MIB),
        "Transfers up to this size take the express lane and are sent by the submitting thread; 0 sends none so.";
    spin_us: u64 = 50, Valid::Range(0, 1000),
        "How long a waiting thread polls before it sleeps; 0 never polls.";
    lease_ms: u64 = 3000, Valid::Range(50, 600_000),
        "How long after it was posted a frame may still be applied; a struck transfer is final within this time.";
    drain_ms: u64 = 100, Valid::Range(0, 60_000),
        "How long a struck transfer waits for confirmation before its lanes are cut; must be below lease_ms.";
    deadline_ms: u64 = 30_000, Valid::Range(0, 86_400_000),
        "Deadline of transfers that name none; 0 sets none.";
    progress_timeout_ms: u64 = 5000, Valid::Range(100, 600_000),
        "How long a lane with work may stand still before it counts as broken.";
    connect_timeout_ms: u64 = 5000, Valid::Range(1, 600_000),
        "How long one connection attempt may take.";
    reconnect_timeout_ms: u64 = 10_000, Valid::Range(0, 600_000),
        "How long a lost peer is redialled before its transfers fail with PEER_LOST, and transfers that only RDMA may carry wait for RDMA ports that went down, and then fail with UNAVAILABLE; 0 does neither.";
    reconnect_backoff_ms: u64 = 20, Valid::Range(1, 1000),
        "Pause before the second redial; it doubles with each one, up to a second.";
    handshake_timeout_ms: u64 = 5000, Valid::Range(1, 600_000),
        "How long a new connection may take to authenticate.";
    transfers_max: u32 = 65_536, Valid::Range(1, HANDLES),
        "Transfers that are not yet released; more are refused with LIMIT.";
    peers_max: u32 = 65_536, Valid::Range(1, HANDLES),
        "Peers known at one time; more are refused with LIMIT.";
}

impl Setting {
    /// The default as text, as `Config::set` takes it.
    pub fn default_text(&self) -> String {
        (self.read)(&Config::default())
    }

    /// The environment variable that overrides the default.
    pub fn variable(&self) -> String {
        format!("FERRY_{}", self.name.to_ascii_uppercase())
    }

    /// The sentence that refuses a value. What was given for a secret is not repeated, nor is what was given for its
    /// file: that may be the secret, pasted in the wrong place.
    fn refuse(&self, key: &str, text: &str, cause: &Error) -> Error {
        let is_secret = matches!(self.valid, Valid::Secret | Valid::SecretFile);
        let given = if is_secret { "the value given".into() } else { format!("{text:?}") };
        let message = format!("{key}: {given} is refused: {}; valid: {}", cause.message, self.valid);
        Error { message, ..cause.clone() }
    }
}

impl Config {
    /// The defaults, overridden by `FERRY_<NAME>` variables of the environment and, weaker than these and where
    /// `ascend` is on, by some `ASCEND_` ones (docs/settings.md lists them). INVALID names the
    /// variable whose value is no good. A process that has more rights than its caller (set-user-id, capabilities
    /// of its file) heeds none of them: they name libraries to load and files to read. Rules between settings wait for `validate`, because what the
    /// environment leaves inconsistent the caller may yet put right.
    pub fn new() -> Result<Config> {
        Config::from_environment(host::has_more_rights_than_its_caller(), |name| std::env::var_os(name))
    }

    fn from_environment(is_privileged: bool, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config> {
        Config::from_variables(|name| lookup(name).filter(|_| !is_privileged))
    }

    fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config> {
        let mut config = Config::default();
        let read = |setting: &Setting, config: &mut Config| {
            let variable = setting.variable();
            let Some(value) = lookup(&variable) else { return Ok(()) };
            let Some(text) = value.to_str() else {
                return Err(Error::invalid(format!("{variable}: the value is not UTF-8")));
            };
            (setting.write)(config, text, &setting.valid)
                .map_err(|cause| setting.refuse(&variable, text, &cause))
        };
        // Whether the others' names count is the first question, and ferry's own come last.
        SETTINGS
            .iter()
            .filter(|setting| setting.name == "ascend")
            .try_for_each(|it| read(it, &mut config))?;
        if config.ascend {
            ascend::apply(&mut config, &lookup)?;
        }
        SETTINGS.iter().try_for_each(|setting| read(setting, &mut config))?;
        if config.secret.is_set() && config.secret_file.is_set() {
            return Err(Error::invalid("FERRY_SECRET and FERRY_SECRET_FILE are both set; keep one"));
        }
        Ok(config)
    }

    /// Changes one setting. INVALID for an unknown key (with the nearest known one) or a bad value;
    /// the configuration is then as it was. Of `secret` and `secret_file` the later one holds, so
    /// that explicit configuration overrides the environment.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let setting = find(key).ok_or_else(|| unknown(key))?;
        (setting.write)(self, value, &setting.valid).map_err(|cause| setting.refuse(key, value, &cause))?;
        match key {
            "secret" if self.secret.is_set() => self.secret_file = SecretFile::default(),
            "secret_file" if self.secret_file.is_set() => self.secret = Secret::default(),
            _ => {}
        }
        Ok(())
    }

    /// A setting as `set` would take it, or None for an unknown key. A secret reads as a placeholder.
    pub fn get(&self, key: &str) -> Option<String> {
        find(key).map(|setting| (setting.read)(self))
    }

    /// The table, in the order of the documentation.
    pub fn settings() -> &'static [Setting] {
        SETTINGS
    }

    /// The shared secret, from whichever setting gave it.
    pub fn shared_secret(&self) -> Option<&[u8]> {
        self.secret.bytes().or(self.secret_file.bytes())
    }

    /// The host to advertise, as it is written before a port, where the port is to be the one that is bound.
    pub fn advertised_host(&self) -> Option<&str> {
        let (_, port) = value::split_address(&self.advertise_address)?;
        self.advertise_address.rsplit_once(':').filter(|_| port == 0).map(|(host, _)| host)
    }

    /// Checks every setting (the fields are public) and the rules between them. INVALID names what is
    /// wrong.
    pub fn validate(&self) -> Result<()> {
        if let Some(setting) = SETTINGS.iter().find(|setting| !(setting.is_valid)(self, &setting.valid)) {
            let cause = Error::invalid("out of range");
            return Err(setting.refuse(setting.name, &(setting.read)(self), &cause));
        }
        if self.drain_ms >= self.lease_ms {
            let (drain, lease) = (self.drain_ms, self.lease_ms);
            return Err(Error::invalid(format!("drain_ms ({drain}) must be less than lease_ms ({lease})")));
        }
        if self.advertised_host().is_some() && self.listen_address.is_empty() {
            return Err(Error::invalid(
                "advertise_address: port 0 stands for the port that is bound, and listen_address is empty",
            ));
        }
        if self.secret.is_set() && self.secret_file.is_set() {
            return Err(Error::invalid("secret and secret_file are both set; keep one"));
        }
        if self.shared_secret().is_none() && !self.same_user && !self.allow_unauthenticated {
            return Err(Error::invalid(
                "no peer could ever be accepted: set secret or secret_file, same_user, or allow_unauthenticated",
            ));
        }
        Ok(())
    }
}

fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == key)
}

fn unknown(key: &str) -> Error {
    // A key may be any text a caller has at hand: what is compared and repeated is bounded.
    let key: String = key.chars().take(64).collect();
    let distance = |setting: &&Setting| edit_distance(&key, setting.name);
    let near = SETTINGS.iter().min_by_key(distance).filter(|s| distance(s) <= (s.name.len() / 3).max(2));
    let hint = near.map_or(String::new(), |setting| format!("; did you mean {:?}?", setting.name));
    Error::new(Status::Invalid, format!("unknown setting {key:?}{hint}"))
}

/// Levenshtein's distance, one row at a time: `row[j]` is the distance between what has been read of
/// `a` and the first `j` characters of `b`.
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
