//! One server of etcd on loopback, with its own ports and its own folder, ended by its number. `ask` does what
//! another program would do to etcd.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::engine::general_purpose::STANDARD as BASE64;
use base64::Engine as _;
use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};

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
        while let Err(error) = server.try_ask("", "kv/range", &json!({ "key": base64("x") })) {
            assert!(began.elapsed() < super::PATIENCE, "{error}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    /// A server that speaks TLS with the certificate in these files, with further arguments.
    pub fn with_tls(cert: &str, key: &str, more: &[&str]) -> Server {
        let mut server = Server::absent();
        let arguments = ["--cert-file", cert, "--key-file", key];
        server.arguments = arguments.iter().chain(more).map(|text| text.to_string()).collect();
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

    /// Asks etcd's JSON gateway, with a user's token or "". HTTP/1.0 has neither chunks nor further answers.
    fn try_ask(&self, token: &str, path: &str, question: &Value) -> Result<Value, String> {
        let asked = TcpStream::connect(self.host()).and_then(|mut stream| {
            let (body, mut answer) = (question.to_string(), String::new());
            let token = if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
            write!(
                stream,
                "POST /v3/{path} HTTP/1.0\r\n{token}Content-Length: {}\r\n\r\n{body}",
                body.len()
            )?;
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        });
        let answer = asked.map_err(|error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let is_well = head.split(' ').nth(1) == Some("200");
        is_well.then(|| serde_json::from_str(body).unwrap()).ok_or_else(|| answer.clone())
    }

    pub fn ask_as(&self, token: &str, path: &str, question: Value) -> Value {
        self.try_ask(token, path, &question).unwrap_or_else(|error| panic!("{path} {question}: {error}"))
    }

    pub fn ask(&self, path: &str, question: Value) -> Value {
        self.ask_as("", path, question)
    }

    pub fn put(&self, key: &str, value: impl AsRef<[u8]>) {
        self.ask("kv/put", json!({ "key": base64(key), "value": base64(value) }));
    }

    pub fn delete(&self, key: &str) {
        self.ask("kv/deleterange", json!({ "key": base64(key) }));
    }

    /// When a key was made: the number changes if it was gone in between.
    pub fn made(&self, key: &str) -> Option<String> {
        self.pair(key)["create_revision"].as_str().map(str::to_owned)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<String> {
        let pair = self.pair(key);
        pair.is_object()
            .then(|| String::from_utf8(BASE64.decode(pair["value"].as_str().unwrap()).unwrap()).unwrap())
    }

    fn pair(&self, key: &str) -> Value {
        self.ask("kv/range", json!({ "key": base64(key) }))["kvs"][0].clone()
    }
}

pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    BASE64.encode(bytes)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
