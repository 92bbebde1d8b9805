//! One server of etcd on loopback, with its own ports and its own folder, ended by its number. `client` does what
//! another program would do to etcd.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use rustix::process::{kill_process, Pid, Signal};

pub struct Server {
    folder: tempfile::TempDir,
    port: u16,
    peer_port: u16,
    arguments: Vec<String>,
    child: Option<Child>,
    runs: usize,
}

/// The etcd that FERRY_TEST_ETCD names, or else the first one in PATH.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("FERRY_TEST_ETCD").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("etcd")).find(|file| file.is_file());
    named.or(found)
}

/// True if there is no etcd. Says so on standard error, because the test harness captures standard output.
pub fn is_missing(test: &str) -> bool {
    if program().is_some() {
        return false;
    }
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: there is no etcd (Debian's package etcd-server)");
    true
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Hands bytes on, each some time after it has come.
fn hand_on(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let mut chunk = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut chunk) {
        std::thread::sleep(delay);
        if to.write_all(&chunk[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

impl Server {
    /// A server that does not run yet.
    pub fn absent() -> Server {
        Server {
            folder: tempfile::tempdir().unwrap(),
            port: free_port(),
            peer_port: free_port(),
            arguments: Vec::new(),
            child: None,
            runs: 0,
        }
    }

    /// A server that answers, for this test; None if there is no etcd.
    pub fn started(test: &str) -> Option<Server> {
        if is_missing(test) {
            return None;
        }
        let began = std::time::Instant::now();
        let mut server = Server::absent();
        server.start();
        server.client(None, async |client| {
            while let Err(error) = client.get("x", None).await {
                assert!(began.elapsed() < super::PATIENCE, "{error}");
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        Some(server)
    }

    /// A server that speaks TLS with the certificate in these files.
    pub fn with_tls(cert: &str, key: &str) -> Server {
        let mut server = Server::absent();
        server.arguments = vec!["--cert-file".into(), cert.into(), "--key-file".into(), key.into()];
        server.start();
        server
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        format!("etcd:http://{}/test", self.host())
    }

    /// The URL of a proxy that delays the server's answers by this long. The proxy lasts as long as the process.
    pub fn slow_url(&self, delay: Duration) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, host) = (listener.local_addr().unwrap().port(), self.host());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(&host).unwrap());
                let (asks, asked) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || hand_on(asks, asked, Duration::ZERO));
                std::thread::spawn(move || hand_on(far, near, delay));
            }
        });
        format!("etcd:http://127.0.0.1:{port}/test")
    }

    /// Starts etcd with the data that it had. It answers some time later.
    pub fn start(&mut self) {
        let scheme = if self.arguments.is_empty() { "http" } else { "https" };
        let (own, peer) =
            (format!("{scheme}://{}", self.host()), format!("http://127.0.0.1:{}", self.peer_port));
        self.runs += 1;
        let log = File::create(self.folder.path().join(format!("log{}", self.runs))).unwrap();
        let child = Command::new(program().unwrap())
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args(["--listen-client-urls", &own, "--advertise-client-urls", &own])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"])
            .args(&self.arguments)
            .env_clear()
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends etcd, and removes what it knows.
    pub fn lose_data(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.folder.path().join("data")).unwrap();
    }

    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().unwrap()), signal).unwrap();
    }

    /// Does something with a client of etcd's.
    pub fn client<T>(&self, user: Option<(&str, &str)>, work: impl AsyncFnOnce(&mut Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = user.map(|(user, password)| ConnectOptions::new().with_user(user, password));
            let mut client = Client::connect([self.host()], options).await.unwrap();
            work(&mut client).await
        })
    }

    pub fn put(&self, key: &str, value: impl Into<Vec<u8>>) {
        self.client(None, async |client| client.put(key, value, None).await.unwrap());
    }

    pub fn delete(&self, key: &str) {
        self.client(None, async |client| client.delete(key, None).await.unwrap());
    }

    /// When a key was made: the number changes if it was gone in between.
    pub fn made(&self, key: &str) -> Option<i64> {
        self.client(None, async |client| {
            let got = client.get(key, None).await.unwrap();
            got.kvs().first().map(|pair| pair.create_revision())
        })
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<String> {
        self.client(None, async |client| {
            let got = client.get(key, None).await.unwrap();
            got.kvs().first().map(|pair| pair.value_str().unwrap().to_owned())
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
