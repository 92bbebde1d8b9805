//! The engine: creating and destroying it, its address, its transports.

use crate::batches::Batches;
use crate::call::{caught, lock, negative, value};
use crate::log;
use crate::memory::Registered;
use crate::notices::Inbox;
use crate::pointers::{null, opened, put_text, text};
use crate::segments::Segments;
use crate::types::NicLoadStat;
use ferry::status::Result;
use ferry::types::Transport;
use ferry::{Config, Error, Status};
use std::ffi::{c_char, c_int, c_void};
use std::net::ToSocketAddrs;
use std::ptr;
use std::sync::Mutex;

/// The only supported kind of metadata.
const METADATA: &str = "P2PHANDSHAKE";
/// The transports that "tcp" allows: on one host, a copy between processes or devices does TCP's work at less cost.
const TCP: u64 =
    Transport::Local.bit() | Transport::Tcp.bit() | Transport::Cuda.bit() | Transport::Ascend.bit();
const ANY: u64 = 0;

/// The target of `transfer_engine_t`.
pub struct Engine {
    pub ferry: ferry::Engine,
    pub segments: Segments,
    pub memory: Registered,
    pub batches: Batches,
    pub inbox: Inbox,
    /// "host:port" with the host as the caller wrote it: the name by which peers open the segment.
    address: String,
    /// The installed transports of ferry; None until one is installed.
    installed: Mutex<Option<u64>>,
}

impl Engine {
    fn open(metadata: &str, server_name: &str, discover: bool) -> Result<Engine> {
        if metadata != METADATA {
            return Err(Error::invalid(format!("metadata_conn_string is {metadata:?}, not {METADATA:?}")));
        }
        let host = host_of(server_name);
        let mut config = Config::new()?;
        check_may_listen(host, &config)?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        config.set("listen_address", &format!("{host}:0"))?;
        let advertised = !config.advertise_address.is_empty();
        let ferry = ferry::Engine::open(config)?;
        let port = ferry.address().rsplit_once(':').map_or("", |(_, port)| port);
        Ok(Engine {
            segments: Segments::default(),
            memory: Registered::default(),
            batches: Batches::default(),
            inbox: Inbox::new(&ferry)?,
            address: if advertised { ferry.address().to_owned() } else { format!("{host}:{port}") },
            installed: Mutex::new(discover.then_some(ANY)),
            ferry,
        })
    }

    /// Returns the mask for `TransferOptions::transports_allowed`.
    pub fn transports(&self) -> u64 {
        lock(&self.installed).unwrap_or(ANY)
    }

    fn install(&self, protocol: &str) -> Result<()> {
        let wanted = match protocol {
            "tcp" => TCP,
            "rdma" | "ascend" => ANY,
            _ => {
                let text = format!(
                    "proto {protocol:?} is not part of this version; \"tcp\", \"rdma\" and \"ascend\" are"
                );
                return Err(Error::new(Status::Unsupported, text));
            }
        };
        if protocol == "rdma" {
            log::line(format_args!(
                "installTransport: RDMA is used where both sides have a device, TCP otherwise"
            ));
        }
        let mut installed = lock(&self.installed);
        // With two different transports installed, every path may be used.
        *installed = Some(installed.map_or(wanted, |before| if before == wanted { wanted } else { ANY }));
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Transfers in progress become final here: nothing touches memory afterwards.
        let _ = self.ferry.close(None);
    }
}

/// Returns the host without its port, if it has one.
fn host_of(name: &str) -> &str {
    if let Some(rest) = name.strip_prefix('[') {
        return rest.split_once(']').map_or(rest, |(host, _)| host);
    }
    match name.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty()
                && !host.contains(':')
                && port.bytes().all(|digit| digit.is_ascii_digit()) =>
        {
            host
        }
        _ => name,
    }
}

/// Succeeds if only this host can reach the address, if peers must authenticate, or if the configuration allows peers
/// that do not.
fn check_may_listen(host: &str, config: &Config) -> Result<()> {
    if host.is_empty() {
        return Err(Error::invalid("local_server_name names no host"));
    }
    if config.shared_secret().is_some() || config.allow_unauthenticated {
        return Ok(());
    }
    // If the name has no address, the engine refuses it.
    let found = (host, 0).to_socket_addrs().into_iter().flatten();
    if found.into_iter().all(|address| address.ip().is_loopback()) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "local_server_name: {host} can be reached from other hosts: name a file with the shared secret in \
         FERRY_SECRET_FILE, or set FERRY_ALLOW_UNAUTHENTICATED=1"
    )))
}

#[no_mangle]
pub unsafe extern "C" fn createTransferEngine(
    metadata_conn_string: *const c_char,
    local_server_name: *const c_char,
    _ip_or_host_name: *const c_char,
    _rpc_port: u64,
    auto_discover: c_int,
) -> Option<Box<Engine>> {
    value("createTransferEngine", None, || {
        // SAFETY: both are NULL or terminated strings that the caller keeps for the length of the call.
        let metadata = unsafe { text(metadata_conn_string, "metadata_conn_string") }?;
        // SAFETY: as above.
        let name = unsafe { text(local_server_name, "local_server_name") }?;
        Ok(Some(Box::new(Engine::open(metadata, name, auto_discover != 0)?)))
    })
}

#[no_mangle]
pub extern "C" fn destroyTransferEngine(engine: Option<Box<Engine>>) {
    let _ = caught("destroyTransferEngine", || {
        drop(engine);
        Ok(())
    });
}

#[no_mangle]
pub unsafe extern "C" fn getLocalIpAndPort(
    engine: Option<&Engine>,
    buf_out: *mut c_char,
    buf_len: usize,
) -> c_int {
    negative("getLocalIpAndPort", || {
        let engine = opened(engine);
        // A caller that ignores a failure then reads an empty text.
        let address = engine.as_ref().map_or("", |engine| engine.address.as_str());
        // SAFETY: the buffer is NULL or the caller's to write, for the length of the call.
        unsafe { put_text(buf_out, buf_len, address) }?;
        engine.map(|_| ())
    })
}

#[no_mangle]
pub unsafe extern "C" fn installTransport(
    engine: Option<&Engine>,
    proto: *const c_char,
    _args: *mut *mut c_void,
) -> *const c_void {
    value("installTransport", ptr::null(), || {
        let engine = opened(engine)?;
        // SAFETY: NULL or a terminated string that the caller keeps for the length of the call.
        engine.install(unsafe { text(proto, "proto") }?)?;
        // The result is not NULL, and the caller must not dereference it.
        Ok(ptr::from_ref(engine).cast())
    })
}

/// Installed transports stay installed.
#[no_mangle]
pub unsafe extern "C" fn uninstallTransport(engine: Option<&Engine>, proto: *const c_char) -> c_int {
    negative("uninstallTransport", || {
        opened(engine)?;
        // SAFETY: NULL or a terminated string that the caller keeps for the length of the call.
        unsafe { text(proto, "proto") }.map(|_| ())
    })
}

/// Checks its argument only: devices are found when the engine is made.
#[no_mangle]
pub extern "C" fn discoverTopology(engine: Option<&Engine>) -> c_int {
    negative("discoverTopology", || opened(engine).map(|_| ()))
}

/// ferry has no figures of this kind: the list is empty.
#[no_mangle]
pub extern "C" fn getNicLoadStats(
    engine: Option<&Engine>,
    stats: *mut NicLoadStat,
    count: Option<&mut usize>,
) -> c_int {
    negative("getNicLoadStats", || {
        opened(engine)?;
        if stats.is_null() {
            return Err(null("stats"));
        }
        *count.ok_or_else(|| null("count"))? = 0;
        Ok(())
    })
}

/// ferry installs no signal handlers.
#[no_mangle]
pub extern "C" fn enableGracefulShutdown(engine: Option<&Engine>) {
    let _ = caught("enableGracefulShutdown", || {
        opened(engine)?;
        let text = "ferry installs no signal handlers: call destroyTransferEngine from your own";
        Err::<(), Error>(Error::new(Status::Unsupported, text))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_the_name_is_ignored() {
        let cases = [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1:12345", "127.0.0.1"),
            ("localhost:1", "localhost"),
            ("localhost:", "localhost"),
            ("::1", "::1"),
            ("[::1]:12345", "::1"),
            ("[::1]", "::1"),
            (":12345", ":12345"),
            ("", ""),
        ];
        for (name, host) in cases {
            assert_eq!(host_of(name), host, "{name}");
        }
    }

    #[test]
    fn other_hosts_need_a_secret_or_the_word_that_none_is_wanted() {
        let mut config = Config::default();
        assert!(check_may_listen("127.0.0.1", &config).is_ok());
        assert!(check_may_listen("::1", &config).is_ok());
        assert!(check_may_listen("", &config).is_err());
        for host in ["0.0.0.0", "192.0.2.1"] {
            let message = check_may_listen(host, &config).unwrap_err().message;
            assert!(
                message.contains("FERRY_SECRET_FILE") && message.contains("FERRY_ALLOW_UNAUTHENTICATED=1")
            );
        }
        config.set("secret", &"5a".repeat(32)).unwrap();
        assert!(check_may_listen("0.0.0.0", &config).is_ok());
        let mut config = Config::default();
        config.set("allow_unauthenticated", "true").unwrap();
        assert!(check_may_listen("0.0.0.0", &config).is_ok());
    }
}
