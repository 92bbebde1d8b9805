//! `ferry_pool`: a node of a pool on an engine, from open to free, and the check that its other calls begin with.

use super::chain::chain;
use super::keyspace::{optional, secret};
use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::handles::timeout;
use crate::kv::directory::check_may_wait;
use crate::pointers::{reference, slice, text, Out};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use ::ferry_pool::limits::{NODES_MAX, QUOTAS_MAX};
use ::ferry_pool::{FileOptions, Pool, PoolOptions, Quota};
use engine::status::Result;
use engine::{Engine, Error, Status};
use std::ffi::{c_char, c_void, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// A node of a pool: a cache for a whole cluster. All threads may use it at the same time; only ferry_pool_free must
/// be alone.
pub struct ferry_pool {
    pub(super) pool: Pool,
    engine: Engine,
}

impl ferry_pool {
    /// Returns the caller's pool. CLOSED in a forked child.
    ///
    /// # Safety
    /// `pointer` is NULL or a pool that is not freed during `'a`.
    pub(super) unsafe fn own<'a>(pointer: *const ferry_pool) -> Result<&'a ferry_pool> {
        // SAFETY: the caller's promise.
        let pool = unsafe { reference(pointer, "pool") }?;
        // The pool's lock may be taken for ever in a child, so this comes before it.
        pool.engine.hub_of_closed()?;
        Ok(pool)
    }

    /// Returns the caller's pool for a call that waits. BUSY inside a callback, unless the timeout is 0.
    ///
    /// # Safety
    /// As for `own`.
    pub(super) unsafe fn blocking<'a>(pointer: *const ferry_pool, timeout_ns: u64) -> Result<&'a ferry_pool> {
        // SAFETY: the caller's promise.
        let pool = unsafe { ferry_pool::own(pointer) }?;
        if timeout_ns != 0 {
            check_may_wait(&pool.engine)?;
        }
        Ok(pool)
    }
}

/// How much of a node one tenant may have. This struct never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_quota {
    /// The tenant, as in ferry_pool_identity; terminated.
    pub tenant: *const c_char,
    /// The secret that the tenant's keys are made with; NULL if it has none. It is not kept.
    pub secret: *const c_void,
    /// Bytes of secret.
    pub secret_length: u64,
    /// Bytes of memory, at least one unit. The tenant may have the same share of the file. Beyond them the tenant's
    /// values that were used longest ago go for its later ones.
    pub bytes: u64,
}

/// Options of a node. Texts and lists are copied. FERRY_POOL_OPTIONS_INIT sets struct_size; all other fields may be 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_options {
    /// sizeof(ferry_pool_options).
    pub struct_size: u32,
    /// Tokens of a chunk, as in ferry_pool_chain_options; 0 means 256. Nodes with another number refuse each other.
    pub chunk_tokens: u32,
    /// The node's name, which no other node of the cluster has: 1 to 255 bytes, terminated. NULL: the engine's
    /// address.
    pub name: *const c_char,
    /// Nodes of another cluster are refused; terminated. NULL: "ferry".
    pub cluster: *const c_char,
    /// "host:port" of the engines of the other nodes, terminated; the node's own may be among them.
    pub nodes: *const *const c_char,
    /// Length of nodes; at most 4,096.
    pub node_count: u64,
    /// Bytes of memory that the node lends. 0: the node is a client, which stores nothing.
    pub memory_bytes: u64,
    /// Each value takes a multiple of this: a power of two from 512 to 1 GiB; 0 means 16,384.
    pub unit_bytes: u64,
    /// How many nodes hold each value that is put: 1 to 8; 0 means 1.
    pub replicas: u32,
    /// The pause before a node that is not connected is dialed again, in milliseconds; 0 means 250.
    pub redial_ms: u32,
    /// A file, which is made if it is missing, or a block device: the node copies its values there, and finds them
    /// again when it is opened again with it. Terminated. NULL: values are in memory alone. The file is this node's
    /// alone.
    pub file: *const c_char,
    /// Bytes of the file that the node uses, at least 1 MiB. The same each time.
    pub file_bytes: u64,
    /// The URL of a directory that lists the nodes which lend memory, as for ferry_directory_open; terminated. A node
    /// that lends memory registers there, as pool/CLUSTER/NAME; variables FERRY_ETCD_* give access. NULL: none.
    pub directory: *const c_char,
    /// How long etcd lists a node that it does not hear from: 1 to 3,600 seconds; 0 means 10.
    pub directory_ttl_s: u32,
    /// How long ferry_pool_open waits for the directory, and for a name that another node has: milliseconds; 0 means
    /// 5,000.
    pub directory_timeout_ms: u32,
    /// Tenants whose share of this node is bounded. All others share what is free.
    pub quotas: *const ferry_pool_quota,
    /// Length of quotas; at most 4,096.
    pub quota_count: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_options {
    const SIZE_MIN: usize = 64;
}

/// Opens a node of a pool on an engine, and dials the other nodes in the background. End it with ferry_pool_close,
/// then ferry_pool_free. `options` NULL means the defaults: a client that knows no other node. The node takes the
/// engine's notifications of channel 2, has a thread, and allocates memory_bytes, which peers cannot reach.
///
/// FERRY_ERR_BUSY: the engine has a pool, or another queue takes channel 2. FERRY_ERR_INVALID: an option cannot be;
/// the message names it: for example a file of another program, or one of another size, format or hashing.
/// FERRY_ERR_BUSY: another node has the file. FERRY_ERR_NO_MEMORY: there is no room for memory_bytes.
/// FERRY_ERR_LIMIT: too many nodes or quotas. FERRY_ERR_SYSTEM: the system is out of descriptors or threads, or
/// refuses the file. With a directory: FERRY_ERR_UNREACHABLE if etcd does not answer in time, FERRY_ERR_REFUSED if it
/// refuses the user, FERRY_ERR_BUSY if another node has the name there, and inside a callback; FERRY_ERR_UNAVAILABLE
/// if a node that lends memory does not listen.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_open(
    engine: *mut ferry_engine,
    options: *const ferry_pool_options,
    out_pool: *mut *mut ferry_pool,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?.engine.clone();
            let options =
                versioned::read(options, "options")?.map(|options| options.options()).transpose()?;
            let out = Out::new(out_pool, "out_pool")?;
            let options = options.unwrap_or_default();
            if options.directory.is_some() {
                check_may_wait(&engine)?;
            }
            let pool = Pool::open(&engine, options)?;
            out.set(Box::into_raw(Box::new(ferry_pool { pool, engine })));
            Ok(())
        })
    }
}

/// Closes a node: withdraws its name from the directory, refuses further calls, waits for those that are open, for
/// what the node serves and for what is copied to its file, tells the other nodes, and gives its memory back. Values
/// that only its memory held are lost. ferry_pool_poll still returns all ends afterwards. A later call returns
/// FERRY_OK again.
///
/// FERRY_ERR_BUSY: that took longer than the timeout. The node is still closing; call again. Also FERRY_ERR_BUSY
/// inside a callback, unless the timeout is 0. Closing the engine ends the node too, and all its calls with
/// FERRY_POOL_OUTCOME_CLOSED. In a forked child the call does nothing and returns FERRY_OK.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_close(
    pool: *mut ferry_pool,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            if reference(pool, "pool")?.engine.is_forked() {
                return Ok(());
            }
            ferry_pool::blocking(pool, timeout_ns)?.pool.close(timeout(timeout_ns))
        })
    }
}

/// Frees a pool and the ends that were not taken. NULL does nothing. The engine may be freed before or after.
///
/// Call it only after ferry_pool_close has returned FERRY_OK, and while no other call uses the pool. If the pool is
/// not closed, this call closes it and does not wait. The node's thread then ends the remaining calls, and the caller
/// does not learn when it owns their memory again; only ferry_engine_close makes that certain. In a forked child the
/// call does nothing.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_free(pool: *mut ferry_pool) {
    quietly(|| {
        // SAFETY: NULL, or from `ferry_pool_open` and not freed before.
        let is_forked = unsafe { pool.as_ref() }.is_none_or(|pool| pool.engine.is_forked());
        if !is_forked {
            // SAFETY: as above; the caller gives the pool up, and no other call uses it.
            drop(unsafe { Box::from_raw(pool) });
        }
    });
}

impl ferry_pool_options {
    /// # Safety
    /// Texts are NULL or terminated, and lists are NULL or as long as they say.
    unsafe fn options(&self) -> Result<PoolOptions> {
        let mut options = PoolOptions { chain: chain(self.chunk_tokens)?, ..PoolOptions::default() };
        if self.node_count > NODES_MAX as u64 {
            let message = format!("options.nodes has {} entries; at most {NODES_MAX}", self.node_count);
            return Err(Error::new(Status::Limit, message));
        }
        // SAFETY: the caller's promise.
        options.quotas = unsafe { self.quotas() }?;
        // SAFETY: the caller's promise.
        unsafe {
            options.name = optional(self.name, "options.name")?;
            if !self.cluster.is_null() {
                options.cluster = text(self.cluster, "options.cluster")?.to_owned();
            }
            if !self.directory.is_null() {
                options.directory = Some(text(self.directory, "options.directory")?.to_owned());
            }
            for (at, node) in slice(self.nodes, self.node_count as usize, "options.nodes")?.iter().enumerate()
            {
                options.nodes.push(text(*node, &format!("options.nodes[{at}]"))?.to_owned());
            }
        }
        if self.file.is_null() && self.file_bytes != 0 {
            let bytes = self.file_bytes;
            let text = format!("options.file_bytes: {bytes} of no file; set options.file, or 0 here");
            return Err(Error::invalid(text));
        }
        if !self.file.is_null() {
            // SAFETY: the caller's promise.
            let path = unsafe { CStr::from_ptr(self.file) }.to_bytes();
            let path = PathBuf::from(OsStr::from_bytes(path));
            options.file = Some(FileOptions { path, bytes: self.file_bytes });
        }
        options.memory_bytes = self.memory_bytes;
        if self.unit_bytes != 0 {
            options.unit_bytes = self.unit_bytes;
        }
        if self.replicas != 0 {
            options.replicas = self.replicas as usize;
        }
        if self.redial_ms != 0 {
            options.redial = Duration::from_millis(self.redial_ms.into());
        }
        if self.directory_ttl_s != 0 {
            options.directory_options.ttl = Duration::from_secs(self.directory_ttl_s.into());
        }
        if self.directory_timeout_ms != 0 {
            let timeout = Duration::from_millis(self.directory_timeout_ms.into());
            options.directory_options.open_timeout = Some(timeout);
        }
        Ok(options)
    }

    /// # Safety
    /// As for `options`.
    unsafe fn quotas(&self) -> Result<Vec<Quota>> {
        if self.quota_count > QUOTAS_MAX as u64 {
            let message = format!("options.quotas has {} entries; at most {QUOTAS_MAX}", self.quota_count);
            return Err(Error::new(Status::Limit, message));
        }
        // SAFETY: the caller's promise.
        let quotas = unsafe { slice(self.quotas, self.quota_count as usize, "options.quotas") }?;
        let quota = |(at, quota): (usize, &ferry_pool_quota)| {
            let name = |field: &str| format!("options.quotas[{at}].{field}");
            // SAFETY: the caller's promise.
            let tenant = unsafe { text(quota.tenant, &name("tenant")) }?;
            // SAFETY: as above.
            let secret = unsafe { secret(quota.secret, quota.secret_length, &name("secret")) }?;
            Quota::new(tenant, secret, quota.bytes)
                .map_err(|error| Error { message: name(&error.message), ..error })
        };
        quotas.iter().enumerate().map(quota).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_arrives_where_it_belongs() {
        let nodes = [c"a:1".as_ptr(), c"b:2".as_ptr()];
        let secret = [7u8; 20];
        let quota = |tenant: &CStr, secret: &[u8], bytes| ferry_pool_quota {
            tenant: tenant.as_ptr(),
            secret: if secret.is_empty() { std::ptr::null() } else { secret.as_ptr().cast() },
            secret_length: secret.len() as u64,
            bytes,
        };
        let quotas = [quota(c"a", &secret, 11), quota(c"b", &[], 12)];
        let set = ferry_pool_options {
            struct_size: 112,
            chunk_tokens: 3,
            name: c"name".as_ptr(),
            cluster: c"cluster".as_ptr(),
            nodes: nodes.as_ptr(),
            node_count: 2,
            memory_bytes: 4,
            unit_bytes: 5,
            replicas: 6,
            redial_ms: 7,
            file: c"file".as_ptr(),
            file_bytes: 8,
            directory: c"static:".as_ptr(),
            directory_ttl_s: 9,
            directory_timeout_ms: 10,
            quotas: quotas.as_ptr(),
            quota_count: 2,
        };
        // SAFETY: static texts, and a list of this stack.
        let options = unsafe { set.options() }.unwrap();
        assert_eq!((options.name.as_str(), options.cluster.as_str()), ("name", "cluster"));
        assert_eq!(options.nodes, ["a:1", "b:2"]);
        assert_eq!((options.chain.chunk_tokens(), options.memory_bytes, options.unit_bytes), (3, 4, 5));
        assert_eq!((options.replicas, options.redial), (6, Duration::from_millis(7)));
        let file = options.file.unwrap();
        assert_eq!((file.path.as_os_str(), file.bytes), (OsStr::new("file"), 8));
        let directory = options.directory_options;
        assert_eq!((options.directory.as_deref(), directory.ttl.as_secs()), (Some("static:"), 9));
        assert_eq!(directory.open_timeout, Some(Duration::from_millis(10)));
        let expected = [Quota::new("a", Some(&secret), 11).unwrap(), Quota::new("b", None, 12).unwrap()];
        assert_eq!(options.quotas, expected);
    }
}
