//! Starts processes of `ferry-bench`, or of `ferry-compare` for its tests, and reads their output.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;
use tempfile::NamedTempFile;

/// The outcome of a process.
#[derive(Debug)]
pub struct Ended {
    pub success: bool,
    pub out: String,
    pub errors: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { success: output.status.success(), out: text(&output.stdout), errors: text(&output.stderr) }
    }
}

fn program() -> Command {
    let bench = option_env!("CARGO_BIN_EXE_ferry-bench");
    Command::new(bench.or(option_env!("CARGO_BIN_EXE_ferry-compare")).expect("the program of these tests"))
}

/// Runs the program with these variables in its environment.
pub fn run_in(environment: &[(&str, &str)], arguments: &[&str]) -> Ended {
    let output = program().envs(environment.iter().copied()).args(arguments).output();
    output.expect("the program starts").into()
}

pub fn run(arguments: &[&str]) -> Ended {
    run_in(&[], arguments)
}

/// A server that waits on a port of its own.
pub struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    /// The server's address, as the server prints it.
    pub address: String,
    port: u16,
}

impl Server {
    pub fn start(test: &str, options: &str) -> Server {
        Server::start_in(&[], test, options)
    }

    pub fn start_in(environment: &[(&str, &str)], test: &str, options: &str) -> Server {
        // The system chooses the port, and the server prints it.
        let mut child = program()
            .envs(environment.iter().copied())
            .args([test, "-p", "0"])
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("readable");
        let address = line.split_whitespace().last().unwrap_or_default().to_owned();
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port in {line:?}"));
        Server { child, out, address, port }
    }

    pub fn client(&self, test: &str, options: &str) -> Ended {
        self.client_in(&[], test, options)
    }

    pub fn client_in(&self, environment: &[(&str, &str)], test: &str, options: &str) -> Ended {
        let port = self.port.to_string();
        let words = [test, "-p", &port, "127.0.0.1"].into_iter().chain(options.split_whitespace());
        run_in(environment, &words.collect::<Vec<_>>())
    }

    /// Starts a client that never ends, reads this many rows of its table, does something else, and stops the client.
    pub fn rows_of_endless_client(
        &self,
        test: &str,
        options: &str,
        count: usize,
        meanwhile: impl FnOnce(),
    ) -> Vec<String> {
        let mut child = program()
            .args([test, "-p", &self.port.to_string(), "127.0.0.1"])
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = out.lines().map(|line| line.expect("readable"));
        // The client's output stays open: it would end at a closed one.
        let rows =
            lines.by_ref().skip_while(|line| !line.starts_with(" #bytes")).skip(1).take(count).collect();
        meanwhile();
        child.kill().expect("it runs until it is stopped");
        child.wait().expect("a child of ours");
        rows
    }

    /// Waits for the server's end.
    pub fn end(mut self) -> Ended {
        let (mut out, mut errors) = (String::new(), String::new());
        self.out.read_to_string(&mut out).expect("readable");
        let stderr = self.child.stderr.as_mut().expect("piped");
        stderr.read_to_string(&mut errors).expect("readable");
        let success = self.child.wait().expect("a child of ours").success();
        Ended { success, out, errors }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already if a test waited for it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a client and its server from start to end.
pub fn measure(test: &str, server_options: &str, client_options: &str) -> (Ended, Ended) {
    let server = Server::start(test, server_options);
    let client = server.client(test, client_options);
    (client, server.end())
}

/// Runs a client that must succeed; returns the object that it wrote.
pub fn json_of(test: &str, options: &str) -> (Ended, Value) {
    let file = temporary("json");
    let (client, server) = measure(test, "", &format!("{options} --json {}", file.path().display()));
    assert_success(&client);
    assert_success(&server);
    (client, serde_json::from_str(&text(&file)).expect("one object"))
}

/// Runs a command that must succeed; returns the object that it wrote.
pub fn json(arguments: &[&str]) -> (Ended, Value) {
    let file = temporary("json");
    let ended = run(&[arguments, &["--json", &file.path().display().to_string()]].concat());
    assert_success(&ended);
    (ended, serde_json::from_str(&text(&file)).expect("one object"))
}

pub fn assert_success(ended: &Ended) {
    assert!(ended.success, "{}{}", ended.out, ended.errors);
}

/// Asserts that the process failed, and printed all of these texts.
pub fn assert_failure(ended: &Ended, said: &[&str]) {
    assert!(!ended.success, "{}", ended.out);
    for part in said {
        assert!(ended.errors.contains(part), "{part}: {}", ended.errors);
    }
}

/// Makes a file that is removed when it is dropped.
pub fn temporary(kind: &str) -> NamedTempFile {
    NamedTempFile::with_suffix(format!(".{kind}")).expect("a new file")
}

/// Returns what a process wrote into the file.
pub fn text(file: &NamedTempFile) -> String {
    fs::read_to_string(file.path()).expect("text")
}

/// Makes a file that only its owner may read, with a secret.
pub fn secret(text: &str) -> NamedTempFile {
    let mut file = temporary("secret");
    file.write_all(text.repeat(20).as_bytes()).expect("written");
    file
}

/// Returns whether the virtual machine's RDMA devices are present; prints if not.
pub fn has_rdma() -> bool {
    let there = std::path::Path::new("/sys/class/infiniband/rva0").exists();
    assert!(there || std::env::var_os("FERRY_TEST_RDMA").is_none(), "FERRY_TEST_RDMA is set, and no rva0");
    if !there {
        eprintln!("SKIPPED: no RDMA device rva0 here; scripts/rdma-vm.sh runs this with one");
    }
    there
}
