//! The arguments. Each can be given by an environment variable, so that a unit file needs no arguments.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Parser, Subcommand};
use ferry::{Config, Engine};
use ferry_pool::limits::TENANT_SECRET_BYTES_MAX;
use ferry_pool::{Chain, DirectoryOptions, PoolOptions, Quota};

const FORM: &str = "give TENANT=SIZE or TENANT=SIZE:FILE";

#[derive(Parser)]
#[command(name = "ferry-pool", version, about = "A node of ferry's KV pool")]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Lend memory to the pool until SIGTERM.
    Serve(Serve),
    /// Print the nodes that a node knows.
    Status(Status),
    /// Take a node out: it moves its values to the other nodes, and ends.
    Drain(Drain),
    /// Print the values that nodes hold, those used last first.
    Ls(Ls),
    /// Print what each node does, again and again.
    Top(Top),
}

#[derive(Args)]
pub struct Serve {
    /// Memory to lend: bytes, or a number with K, M, G or T.
    #[arg(long, env = "FERRY_POOL_MEMORY", value_parser = bytes)]
    pub memory: u64,
    /// The host:port to listen at. Other nodes name it in --nodes.
    #[arg(long, env = "FERRY_POOL_LISTEN", default_value = "0.0.0.0:7400")]
    pub listen: String,
    /// The host:port under which others reach this node, if it is not the one to listen at.
    #[arg(long, env = "FERRY_POOL_ADVERTISE")]
    pub advertise: Option<String>,
    /// A name that no other node has; the address otherwise.
    #[arg(long, env = "FERRY_POOL_NAME", default_value = "")]
    pub name: String,
    /// A file or a block device for values beyond the memory; they are there again when the node is started again.
    #[arg(long, env = "FERRY_POOL_FILE", requires = "file_bytes")]
    pub file: Option<PathBuf>,
    /// How much of it to use, as --memory.
    #[arg(long, env = "FERRY_POOL_FILE_BYTES", value_parser = bytes, requires = "file")]
    pub file_bytes: Option<u64>,
    /// What a tenant may have of this node's memory, and the same share of its file: TENANT=SIZE, or
    /// TENANT=SIZE:FILE with the file of the secret that the tenant's keys are made with, which nobody but its owner may
    /// read. Once for each tenant, or separated by commas.
    #[arg(
        long = "quota",
        env = "FERRY_POOL_QUOTAS",
        value_name = "TENANT=SIZE[:FILE]",
        value_delimiter = ','
    )]
    pub quotas: Vec<String>,
    /// Values are stored on this many nodes.
    #[arg(long, env = "FERRY_POOL_REPLICAS", default_value_t = 1)]
    pub replicas: usize,
    /// Serve metrics for Prometheus by HTTP at this host:port.
    #[arg(long, env = "FERRY_POOL_METRICS")]
    pub metrics: Option<String>,
    #[command(flatten)]
    pub cluster: Cluster,
}

#[derive(Args)]
pub struct Status {
    #[command(flatten)]
    pub cluster: Cluster,
}

#[derive(Args)]
pub struct Drain {
    /// The name or the address of the node.
    #[arg(long)]
    pub node: String,
    /// The node ends at once, and what it alone holds is lost.
    #[arg(long)]
    pub no_copy: bool,
    #[command(flatten)]
    pub cluster: Cluster,
}

#[derive(Args)]
pub struct Ls {
    /// The name or the address of one node; all nodes otherwise.
    #[arg(long)]
    pub node: Option<String>,
    /// At most this many values of each node.
    #[arg(long, default_value_t = 100)]
    pub limit: usize,
    #[command(flatten)]
    pub cluster: Cluster,
}

#[derive(Args)]
pub struct Top {
    /// Seconds from one table to the next.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// End after this many tables.
    #[arg(long)]
    pub count: Option<usize>,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// How to be one of a cluster.
#[derive(Args)]
pub struct Cluster {
    /// The addresses of the nodes, separated by commas; a node's own may be among them.
    #[arg(long, env = "FERRY_POOL_NODES", value_delimiter = ',')]
    pub nodes: Vec<String>,
    /// A directory that lists the nodes, and where this one registers its name: etcd:http://host:port,.../prefix.
    /// FERRY_ETCD_USER, FERRY_ETCD_PASSWORD, FERRY_ETCD_CA, FERRY_ETCD_CERT and FERRY_ETCD_KEY give access to it.
    #[arg(long, env = "FERRY_POOL_DIRECTORY")]
    pub directory: Option<String>,
    /// How long etcd lists a node that it does not hear from, in seconds.
    #[arg(long, env = "FERRY_POOL_DIRECTORY_TTL", default_value_t = 10)]
    pub directory_ttl: u64,
    /// How long the start waits for etcd, and for a name that another node has, in seconds.
    #[arg(long, env = "FERRY_POOL_DIRECTORY_TIMEOUT", default_value_t = 5)]
    pub directory_timeout: u64,
    /// Nodes of other clusters are refused.
    #[arg(long, env = "FERRY_POOL_CLUSTER", default_value = "ferry")]
    pub cluster: String,
    /// A file with the secret that all nodes and engines of the cluster share. Without one, only processes of the same
    /// user on this host can connect, unless --allow-unauthenticated is given.
    #[arg(long, env = "FERRY_POOL_SECRET_FILE")]
    pub secret_file: Option<PathBuf>,
    /// Anyone who reaches the port may read and write the pool.
    #[arg(long, env = "FERRY_POOL_ALLOW_UNAUTHENTICATED")]
    pub allow_unauthenticated: bool,
    /// Tokens of one chunk; all nodes and engines of a cluster have the same.
    #[arg(long, env = "FERRY_POOL_CHUNK_TOKENS", default_value_t = 256)]
    pub chunk_tokens: u32,
}

impl Cluster {
    /// The options that all nodes of the cluster share.
    pub fn options(&self) -> Result<PoolOptions> {
        Ok(PoolOptions {
            cluster: self.cluster.clone(),
            nodes: self.nodes.clone(),
            directory: self.directory.clone(),
            directory_options: DirectoryOptions {
                ttl: Duration::from_secs(self.directory_ttl),
                open_timeout: Some(Duration::from_secs(self.directory_timeout)),
                ..DirectoryOptions::default()
            },
            chain: Chain::new(self.chunk_tokens)?,
            ..PoolOptions::default()
        })
    }

    pub fn engine(&self, listen: &str, advertise: Option<&str>) -> Result<Engine> {
        let mut config = Config::new()?;
        config.set("listen_address", listen)?;
        if let Some(advertise) = advertise {
            config.set("advertise_address", advertise)?;
        }
        if let Some(file) = &self.secret_file {
            let file = file.to_str().context("--secret-file: the path is no UTF-8")?;
            config.set("secret_file", file)?;
        }
        if self.allow_unauthenticated {
            config.set("allow_unauthenticated", "true")?;
        }
        let engine = Engine::open(config)?;
        engine.warnings().iter().for_each(|warning| eprintln!("ferry-pool: {warning}"));
        Ok(engine)
    }
}

/// Reads a tenant's quota, and its secret.
pub fn quota(text: &str) -> Result<Quota> {
    let (tenant, rest) =
        text.split_once('=').with_context(|| format!("--quota: {text:?} has no =; {FORM}"))?;
    let (size, file) = rest.split_once(':').map_or((rest, None), |(size, file)| (size, Some(file)));
    let bytes = bytes(size).with_context(|| format!("--quota: the size of {tenant}; {FORM}"))?;
    let secret =
        file.map(|file| secret(file).with_context(|| format!("--quota: the secret of {tenant}: {file}")));
    let quota = Quota::new(tenant, secret.transpose()?.as_deref(), bytes);
    quota.with_context(|| format!("--quota: {text:?}"))
}

/// Reads a secret as --secret-file is read: a text without its line end, other bytes as they are.
fn secret(path: &str) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o777;
    ensure!(mode & 0o077 == 0, "its mode {mode:03o} lets others in; use chmod 600");
    let mut bytes = Vec::new();
    // A secret that is too long shows that by the bytes behind a line end.
    file.take(TENANT_SECRET_BYTES_MAX as u64 + 3).read_to_end(&mut bytes)?;
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let is_text = line.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    Ok(if is_text { line.to_vec() } else { bytes })
}

/// Reads a number of bytes with a unit.
fn bytes(text: &str) -> Result<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        unit => bail!("{unit} is no unit: K, M, G or T"),
    };
    let number: u64 = digits.trim().parse().with_context(|| format!("{text:?} is no number of bytes"))?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).with_context(|| format!("{text:?} cannot be"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let good = [("4096", 4096), ("16K", 16 << 10), ("3 GiB", 3 << 30), ("1t", 1 << 40)];
        good.into_iter().for_each(|(text, expected)| assert_eq!(bytes(text).unwrap(), expected, "{text}"));
        for text in ["", "0", "G", "-1", "1.5G", "5 parsecs", "99999999999T"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn quotas_have_tenants_sizes_and_files_of_secrets() {
        let plain = quota("a b=1G").unwrap();
        assert_eq!(plain, Quota::new("a b", None, 1 << 30).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a:b=c");
        let of = |bytes: &[u8], mode: u32| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            quota(&format!("t=5K:{}", path.display()))
        };
        for (written, secret) in [
            ("0123456789 abcdef\r\n", "0123456789 abcdef"),
            ("\x01 23456789 abcdef\n", "\x01 23456789 abcdef\n"),
        ] {
            let made = of(written.as_bytes(), 0o600).unwrap();
            assert_eq!(made, Quota::new("t", Some(secret.as_bytes()), 5 << 10).unwrap(), "{written:?}");
        }
        for (text, told) in [
            ("a", "has no =; give TENANT=SIZE"),
            ("a=x", "the size of a"),
            ("a=1:/-", "the secret of a"),
            ("=1", "tenant: 0"),
        ] {
            let error = format!("{:#}", quota(text).unwrap_err());
            assert!(error.contains(told), "{error}");
        }
        let error = format!("{:#}", of(b"too short", 0o600).unwrap_err());
        assert!(
            error.contains("secret: 9 bytes, which are not 16 to 1024") && !error.contains("short"),
            "{error}"
        );
        let error = format!("{:#}", of(b"0123456789abcdef", 0o640).unwrap_err());
        assert!(
            error.contains("its mode 640 lets others in; use chmod 600") && !error.contains("0123"),
            "{error}"
        );
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}
