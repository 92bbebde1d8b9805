//! How a pool is opened.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use ferry::status::{Error, Result};
use ferry_directory::DirectoryOptions;

use super::tenants::Quota;
use crate::key::Chain;
use crate::limits::{FILE_BYTES_MIN, NODES_MAX, QUOTAS_MAX, REPLICAS_MAX, UNIT_BYTES_DEFAULT};

/// How a node of a pool takes part. The default lends no memory: a client.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// The node's name, which no other node of the cluster has. Empty: the engine's address.
    pub name: String,
    /// Nodes of other clusters are refused.
    pub cluster: String,
    /// Addresses (`host:port`) of the engines of the other nodes; the node's own may be among them.
    pub nodes: Vec<String>,
    /// The URL of a directory that lists the members (`etcd:http://host:port/prefix`): under `pool/CLUSTER/`, where this
    /// node registers its name if it lends memory.
    pub directory: Option<String>,
    /// How the directory is reached. `Pool::open` waits for it, and for the name, as long as `open_timeout` says.
    pub directory_options: DirectoryOptions,
    /// Bytes that the node lends; 0: the node is a client, which stores nothing.
    pub memory_bytes: u64,
    /// A file behind the memory: it has copies of the node's values, and those that memory has no room for.
    pub file: Option<FileOptions>,
    /// Bytes of the unit in which memory is given to objects.
    pub unit_bytes: u64,
    /// Tenants that may have a part of this node. The others share what is free with all.
    pub quotas: Vec<Quota>,
    /// What hashes keys: nodes that hash in another way are refused.
    pub chain: Chain,
    /// Nodes that hold each value that is put.
    pub replicas: usize,
    /// The pause before a node that is not connected is dialed again.
    pub redial: Duration,
}

/// The second tier of a node.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// A file, which is made if it is missing, or a block device. It is the node's alone, and keeps its values: a node that
    /// begins anew with it has the values again.
    pub path: PathBuf,
    /// Bytes of it that the node uses, from its beginning on.
    pub bytes: u64,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            name: String::new(),
            cluster: "ferry".into(),
            nodes: Vec::new(),
            directory: None,
            directory_options: DirectoryOptions::default(),
            memory_bytes: 0,
            file: None,
            unit_bytes: UNIT_BYTES_DEFAULT,
            quotas: Vec::new(),
            chain: Chain::default(),
            replicas: 1,
            redial: Duration::from_millis(250),
        }
    }
}

impl PoolOptions {
    /// INVALID names the option that cannot be.
    pub(super) fn check(&self) -> Result<()> {
        let power = self.unit_bytes.is_power_of_two() && (512..=1 << 30).contains(&self.unit_bytes);
        let tenants: BTreeSet<&str> = self.quotas.iter().map(|quota| quota.tenant.as_str()).collect();
        let refused = match () {
            _ if !power => "unit_bytes: a power of two from 512 to 1 GiB".into(),
            _ if self.memory_bytes > 0 && self.memory_bytes < self.unit_bytes => {
                format!("memory_bytes: {} are less than one unit of {}", self.memory_bytes, self.unit_bytes)
            }
            _ if self.memory_bytes / self.unit_bytes >= u64::from(u32::MAX) => {
                format!(
                    "unit_bytes: {} bytes of memory are more than 2^32 units; take larger units",
                    self.memory_bytes
                )
            }
            _ if self.file.is_some() && self.memory_bytes == 0 => {
                "file: a node with a file lends memory too: give it memory_bytes".into()
            }
            _ if self.file.as_ref().is_some_and(|file| file.bytes < FILE_BYTES_MIN) => {
                format!("file.bytes: at least {FILE_BYTES_MIN}")
            }
            _ if self.quotas.len() > QUOTAS_MAX => format!("quotas: more than {QUOTAS_MAX}"),
            _ if !self.quotas.is_empty() && self.memory_bytes == 0 => {
                "quotas: a node with quotas lends memory: give it memory_bytes".into()
            }
            _ if self.quotas.iter().any(|quota| quota.bytes < self.unit_bytes) => {
                format!("quotas: one has less than a unit of {} bytes; give it more", self.unit_bytes)
            }
            _ if tenants.len() < self.quotas.len() => {
                "quotas: a tenant is there twice; give each tenant one quota".into()
            }
            _ if self.replicas == 0 || self.replicas > REPLICAS_MAX => {
                format!("replicas: {}, and 1 to {REPLICAS_MAX} can be", self.replicas)
            }
            _ if self.nodes.len() > NODES_MAX => format!("nodes: more than {NODES_MAX}"),
            // A node that does not know who is missing would say "no" where it has to say "unknown".
            _ if self.directory_options.open_timeout.is_none() => {
                "directory_options.open_timeout: must be set, because a pool waits for its directory".into()
            }
            _ if self.directory.is_some() && (self.cluster.contains('/') || self.name.contains('/')) => {
                "cluster and name: have no '/' where a directory lists them".into()
            }
            _ if self.redial.is_zero() => "redial: is 0".into(),
            () => return Ok(()),
        };
        Err(Error::invalid(format!("options.{refused}")))
    }
}
