//! Speaks with one server: questions and a watch of etcd's JSON gateway, with TLS and a user. Each question has a
//! connection of its own, which HTTP/1.0 ends with the answer: there are neither chunks nor stale connections. A session
//! asks some questions in a lease, and TLS resumes earlier connections. No call waits longer than `patience`, or than
//! the directory is open.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::engine::general_purpose::STANDARD as BASE64;
use base64::Engine as _;
use ferry::status::{Error, Result};
use ferry::Status;
use rustix::event::PollFlags;
use rustix::net::sockopt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{json, Value};

use super::Plan;
use crate::limits::ANSWER_BYTES_MAX;
use crate::options::DirectoryOptions;
use crate::shared::{wait_for_any, Shared};

/// Codes of gRPC, which the gateway repeats.
const INVALID_ARGUMENT: i64 = 3;
const NOT_FOUND: i64 = 5;
const PERMISSION_DENIED: i64 = 7;
const FAILED_PRECONDITION: i64 = 9;
const UNAUTHENTICATED: i64 = 16;

/// Bytes of an error's text: the server may have written it.
const TEXT_BYTES_MAX: usize = 200;

pub struct Client<'a> {
    pub plan: &'a Plan,
    pub server: &'a str,
    /// To end a wait when the directory is closed; None after that.
    shared: Option<&'a Shared>,
    patience: Duration,
    token: Option<String>,
}

struct Connection {
    io: Box<dyn Io>,
    /// The socket under `io`.
    socket: TcpStream,
    /// What has come, and was not taken yet.
    input: Vec<u8>,
}

trait Io: Read + Write {}
impl<T: Read + Write> Io for T {}

/// What etcd tells from some revision on.
pub struct Watch<'a> {
    server: &'a str,
    status: u16,
    connection: Connection,
}

/// A key and its value.
pub struct Pair {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub lease: i64,
    pub mod_revision: i64,
}

impl Pair {
    pub fn of(value: &Value) -> Pair {
        let bytes = |text: &Value| BASE64.decode(text.as_str().unwrap_or_default()).unwrap_or_default();
        let (lease, mod_revision) = (int(&value["lease"]), int(&value["mod_revision"]));
        Pair { key: bytes(&value["key"]), value: bytes(&value["value"]), lease, mod_revision }
    }
}

/// A number of 64 bits, which JSON has as text. A zero may be left out.
pub fn int(value: &Value) -> i64 {
    value.as_str().and_then(|text| text.parse().ok()).or(value.as_i64()).unwrap_or(0)
}

/// Bytes, as JSON has them.
pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    BASE64.encode(bytes)
}

/// The settings of TLS. INVALID names the option that is no PEM.
pub fn tls(options: &DirectoryOptions) -> Result<Arc<ClientConfig>> {
    let wrong = |what: &str, why: &dyn std::fmt::Display| Error::invalid(format!("{what}: {why}"));
    let certificates =
        |pem: &str| CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let mut roots = RootCertStore::empty();
    let ca = options.ca.as_deref().unwrap_or_default();
    for certificate in certificates(ca).map_err(|why| wrong("ca", &why))? {
        roots.add(certificate).map_err(|why| wrong("ca", &why))?;
    }
    if roots.is_empty() {
        return Err(wrong("ca", &"there is no certificate in PEM"));
    }
    let config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into());
    let config = config.with_safe_default_protocol_versions().map_err(|why| wrong("url", &why))?;
    let config = config.with_root_certificates(roots);
    let Some((certificate, key)) = &options.identity else { return Ok(config.with_no_client_auth().into()) };
    let chain = certificates(certificate).map_err(|why| wrong("cert", &why))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|why| wrong("key", &why))?;
    Ok(config.with_client_auth_cert(chain, key).map_err(|why| wrong("cert", &why))?.into())
}

impl<'a> Client<'a> {
    /// Reaches a server, as the user. `shared` ends a wait when the directory is closed.
    pub fn connect(
        plan: &'a Plan,
        server: &'a str,
        shared: Option<&'a Shared>,
        patience: Duration,
    ) -> Result<Self> {
        let mut client = Client { plan, server, shared, patience, token: None };
        client.authenticate()?;
        Ok(client)
    }

    fn authenticate(&mut self) -> Result<()> {
        self.token = None;
        let Some((name, password)) = &self.plan.options.user else { return Ok(()) };
        let answer = self.ask("auth/authenticate", &json!({ "name": name, "password": password }))?;
        let token =
            answer["token"].as_str().filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
        self.token = token.map(str::to_owned);
        Ok(())
    }

    /// Asks, and returns the answer. REFUSED if the user or its password is wrong or may not do this, LIMIT if the
    /// answer is too large, UNREACHABLE otherwise.
    pub fn ask(&mut self, path: &str, question: &Value) -> Result<Value> {
        let server = self.server;
        let answer = self.try_ask(path, question)?;
        answer.ok_or_else(|| Error::new(Status::Unreachable, format!("{server}: {path} is not found")))
    }

    /// The same. None if etcd lacks what the question names.
    pub fn try_ask(&mut self, path: &str, question: &Value) -> Result<Option<Value>> {
        let mut answer = self.exchange(path, question)?;
        if answer.0 != 200 && int(&answer.1["code"]) == UNAUTHENTICATED && self.token.is_some() {
            // The token has expired.
            self.authenticate()?;
            answer = self.exchange(path, question)?;
        }
        match answer {
            (200, answer) => Ok(Some(answer)),
            (_, answer) if int(&answer["code"]) == NOT_FOUND => Ok(None),
            (status, answer) => Err(refusal(self.server, status, &answer)),
        }
    }

    /// Watches: the messages are lines of an answer without an end.
    pub fn watch(&self, question: &Value) -> Result<Watch<'a>> {
        let until = Instant::now() + self.patience;
        let mut connection = self.send("watch", question, until)?;
        loop {
            if let Some((status, head)) = head(&connection.input) {
                connection.input.drain(..head);
                return Ok(Watch { server: self.server, status, connection });
            }
            if !self.has_more(&mut connection, until)? {
                return Err(ended(self.server));
            }
        }
    }

    /// The status and the answer.
    fn exchange(&self, path: &str, question: &Value) -> Result<(u16, Value)> {
        let until = Instant::now() + self.patience;
        let mut connection = self.send(path, question, until)?;
        while self.has_more(&mut connection, until)? {}
        let (status, head) = head(&connection.input).ok_or_else(|| ended(self.server))?;
        // A stream that ends at once, as that of a lease's sign of life, has one answer too.
        match serde_json::from_slice(&connection.input[head..]) {
            Ok(answer) => Ok((status, unwrapped(answer))),
            Err(_) if status == 200 => Err(ended(self.server)),
            Err(_) => Ok((status, Value::Null)),
        }
    }

    /// Waits for bytes. False at the end.
    fn has_more(&self, connection: &mut Connection, until: Instant) -> Result<bool> {
        loop {
            match connection.read(self.server)? {
                Some(count) => return Ok(count > 0),
                None => self.pause(&connection.socket, PollFlags::IN, until)?,
            }
        }
    }

    fn open(&self, until: Instant) -> Result<Connection> {
        let failed = |error: io::Error| Error::unreachable(self.server, &error);
        let host = self.server.split_once("://").map_or(self.server, |(_, host)| host);
        let mut connected = Err(io::Error::from(io::ErrorKind::NotFound));
        for address in host.to_socket_addrs().map_err(failed)? {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            connected = TcpStream::connect_timeout(&address, left);
            if connected.is_ok() {
                break;
            }
        }
        let socket = connected.map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        // The signs of life go over another connection than the watch: the kernel looks after that one.
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let _ = sockopt::set_tcp_keepidle(&socket, self.plan.beat);
        let _ = sockopt::set_tcp_keepintvl(&socket, self.patience);
        let _ = sockopt::set_tcp_keepcnt(&socket, 3);
        let stream = socket.try_clone().map_err(failed)?;
        let Some(tls) = &self.plan.tls else {
            return Ok(Connection { io: Box::new(stream), socket, input: Vec::new() });
        };
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
        let name = ServerName::try_from(name.to_owned()).map_err(|why| failed(io::Error::other(why)))?;
        let tls = ClientConnection::new(tls.clone(), name).map_err(|why| failed(io::Error::other(why)))?;
        let mut stream = StreamOwned::new(tls, stream);
        while stream.conn.is_handshaking() {
            match stream.conn.complete_io(&mut stream.sock) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let wants = if stream.conn.wants_write() { PollFlags::OUT } else { PollFlags::IN };
                    self.pause(&socket, wants, until)?;
                }
                done => done.map(drop).map_err(failed)?,
            }
        }
        Ok(Connection { io: Box::new(stream), socket, input: Vec::new() })
    }

    /// Opens a connection, and sends a question.
    fn send(&self, path: &str, question: &Value, until: Instant) -> Result<Connection> {
        let mut connection = self.open(until)?;
        let (host, body) = (self.server.rsplit('/').next().unwrap_or_default(), question.to_string());
        let token = self.token.iter().map(|token| format!("Authorization: {token}\r\n")).collect::<String>();
        // A server without a leader refuses, instead of telling what is old.
        let head = format!(
            "POST /v3/{path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nGrpc-Metadata-hasleader: true\r\n{token}\r\n",
            body.len()
        );
        let request = head + &body;
        let mut left = request.as_bytes();
        loop {
            let done =
                if left.is_empty() { connection.io.flush().map(|()| 0) } else { connection.io.write(left) };
            match done {
                Ok(_) if left.is_empty() => return Ok(connection),
                Ok(count) => left = &left[count..],
                Err(error) if is_early(&error) => self.pause(&connection.socket, PollFlags::OUT, until)?,
                Err(error) => return Err(Error::unreachable(self.server, &error)),
            }
        }
    }

    /// Waits for a socket. UNREACHABLE when the time is over, CLOSED when the directory is closed.
    fn pause(&self, socket: &TcpStream, wants: PollFlags, until: Instant) -> Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let text = format!("{} has not answered for {} ms", self.server, self.patience.as_millis());
            return Err(Error::new(Status::Unreachable, text));
        }
        match self.shared {
            Some(shared) => shared.pause(Some((socket.as_fd(), wants)), left),
            None => wait_for_any(&[(socket.as_fd(), wants)], left),
        }
    }
}

impl Connection {
    /// Takes what has come, and says how much: 0 at the end, None if nothing has come. LIMIT: it is too much.
    fn read(&mut self, server: &str) -> Result<Option<usize>> {
        let mut bytes = [0; 16 << 10];
        match self.io.read(&mut bytes) {
            Ok(count) if self.input.len() + count > ANSWER_BYTES_MAX => {
                let text = format!("{server}: the answer has more than {ANSWER_BYTES_MAX} bytes");
                Err(Error::new(Status::Limit, text))
            }
            Ok(count) => {
                self.input.extend_from_slice(&bytes[..count]);
                Ok(Some(count))
            }
            Err(error) if is_early(&error) => Ok(None),
            Err(error) => Err(Error::unreachable(server, &error)),
        }
    }
}

impl Watch<'_> {
    pub fn socket(&self) -> &TcpStream {
        &self.connection.socket
    }

    /// The next message, if it has come.
    pub fn message(&mut self) -> Result<Option<Value>> {
        loop {
            let input = &mut self.connection.input;
            if let Some(end) = input.iter().position(|&byte| byte == b'\n') {
                let message: Value = serde_json::from_slice(&input[..end]).unwrap_or_default();
                input.drain(..=end);
                if message["result"].is_object() {
                    return Ok(Some(unwrapped(message)));
                }
                return Err(refusal(self.server, self.status, &unwrapped(message)));
            }
            match self.connection.read(self.server)? {
                None => return Ok(None),
                Some(0) => return Err(ended(self.server)),
                Some(_) => {}
            }
        }
    }
}

/// The status of an answer, and the bytes of its head. None if the head has not come, or is none.
fn head(input: &[u8]) -> Option<(u16, usize)> {
    let end = input.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let line = std::str::from_utf8(&input[..end]).ok()?.strip_prefix("HTTP/1.")?;
    Some((line.split(' ').nth(1)?.parse().ok()?, end + 4))
}

fn ended(server: &str) -> Error {
    Error::new(Status::Unreachable, format!("{server} has ended the connection before its answer"))
}

/// A stream has each answer in an object of its own.
fn unwrapped(mut answer: Value) -> Value {
    match ["result", "error"].into_iter().find(|name| answer[name].is_object()) {
        Some(name) => answer[name].take(),
        None => answer,
    }
}

fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The error of an answer that is none. REFUSED if the user may not do this, or its password is wrong.
fn refusal(server: &str, status: u16, answer: &Value) -> Error {
    let http = format!("HTTP {status}");
    let text = answer["message"].as_str().or(answer["error"].as_str()).unwrap_or(&http);
    // Without a user, or with a wrong one, etcd answers that an argument is invalid.
    let of_user = text.contains("authentication") || text.contains("user name");
    let code = int(&answer["code"]);
    let is_refusal = matches!(code, PERMISSION_DENIED | UNAUTHENTICATED | FAILED_PRECONDITION)
        || code == INVALID_ARGUMENT && of_user;
    let status = if is_refusal { Status::Refused } else { Status::Unreachable };
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let text: String = text[..end].chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    Error::new(status, format!("{server}: {text}"))
}
