//! Starts processes of `ferry-bench`, or of `ferry-compare` for its tests, and reads their output.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

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
        let port = line.trim().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port in {line:?}"));
        Server { child, out, port }
    }

    pub fn client(&self, test: &str, options: &str) -> Ended {
        self.client_in(&[], test, options)
    }

    pub fn client_in(&self, environment: &[(&str, &str)], test: &str, options: &str) -> Ended {
        let port = self.port.to_string();
        let words = [test, "-p", &port, "127.0.0.1"].into_iter().chain(options.split_whitespace());
        run_in(environment, &words.collect::<Vec<_>>())
    }

    /// Starts a client that never ends, reads this many rows of its table, and stops it.
    pub fn rows_of_endless_client(&self, test: &str, options: &str, count: usize) -> Vec<String> {
        let mut child = program()
            .args([test, "-p", &self.port.to_string(), "127.0.0.1"])
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let lines = out.lines().map(|line| line.expect("readable"));
        let rows = lines.skip_while(|line| !line.starts_with(" #bytes")).skip(1).take(count).collect();
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
    let (client, server) = measure(test, "", &format!("{options} --json {}", file.display()));
    assert_success(&client);
    assert_success(&server);
    (client, object(&file))
}

/// Runs a command that must succeed; returns the object that it wrote.
pub fn json(arguments: &[&str]) -> (Ended, Value) {
    let file = temporary("json");
    let ended = run(&[arguments, &["--json", &file.display().to_string()]].concat());
    assert_success(&ended);
    (ended, object(&file))
}

/// Reads and removes a file of one object.
fn object(file: &Path) -> Value {
    let text = fs::read_to_string(file).expect("the file was written");
    fs::remove_file(file).expect("removable");
    serde_json::from_str(&text).expect("one object")
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

pub fn temporary(kind: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("ferry-bench-{}-{}.{kind}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    std::env::temp_dir().join(name)
}

/// Two secrets in files that only their owner may read.
pub struct Secrets([(&'static str, PathBuf); 2]);

impl Secrets {
    pub fn new() -> Secrets {
        let secrets = ["one", "two"].map(|name| {
            let path = temporary("secret");
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&path).expect("a new file");
            std::io::Write::write_all(&mut file, name.repeat(20).as_bytes()).expect("written");
            (name, path)
        });
        Secrets(secrets)
    }

    pub fn path(&self, name: &str) -> String {
        let found = self.0.iter().find(|secret| secret.0 == name);
        found.expect("one of the two").1.display().to_string()
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        for (_, path) in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
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
