//! Names and addresses: a name server that is silent, addresses of one link, a host without free ports, a connection
//! that leads to itself. Each case runs in namespaces of its own, which end with its process.

use crate::common::{config, engine, eventually, PATIENCE};
use ferry::notify::{EventBody, WHAT_PEERS};
use ferry::{Engine, Status};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

const ROLE: &str = "FERRY_TEST_NAMES";
/// The names that an engine looks up at one time.
const LOOK_UPS_MAX: usize = 16;
const SHORT: Duration = Duration::from_millis(300);
/// Less than the resolver waits for one answer (5 s).
const SOON: Duration = Duration::from_secs(3);

/// Runs `role` as `case` in namespaces of its own, whose only name server is 127.0.0.1.
fn inside(case: &str) {
    let resolv = std::env::temp_dir().join(format!("ferry-resolv-{}-{case}", std::process::id()));
    std::fs::write(&resolv, "nameserver 127.0.0.1\n").unwrap();
    let script = "ip link set lo up && mount --bind \"$1\" /etc/resolv.conf && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-rmn", "sh", "-c", script, "sh"]).arg(&resolv).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "names::role", "--ignored", "--nocapture"]).env(ROLE, case);
    let output = command.output().unwrap();
    std::fs::remove_file(&resolv).unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() && errors.contains("unshare failed") {
        return println!("SKIPPED: no namespaces can be made here: {errors}");
    }
    text.lines().filter(|line| line.starts_with("SKIPPED")).for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{text}{errors}");
}

#[test]
#[ignore = "the other tests run it, in namespaces of its own"]
fn role() {
    match std::env::var(ROLE).unwrap_or_default().as_str() {
        "silence" => silence(),
        "itself" => itself(),
        "ports" => ports(),
        "link" => link(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_silent_name_server_holds_up_nobody_beyond_the_timeout() {
    inside("silence");
}

#[test]
fn a_connection_to_itself_is_unreachable_and_leaves_the_port_free() {
    inside("itself");
}

#[test]
fn a_host_without_free_ports_is_said_as_such() {
    inside("ports");
}

#[test]
fn an_address_of_one_link_is_dialed_by_its_interface_and_never_told_without() {
    inside("link");
}

/// Counts the threads of this process that look up names.
fn look_ups() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "ferry-names").count()
}

fn silence() {
    let _server = UdpSocket::bind("127.0.0.1:53").unwrap();
    let (a, b) = (engine(&[]), engine(&[]));
    let by_name = format!("localhost:{}", b.address().rsplit_once(':').unwrap().1);
    let peer = a.connect(&by_name, Some(PATIENCE)).unwrap();
    let queue = a.queue(WHAT_PEERS, 64).unwrap();

    let begun = Instant::now();
    let error = a.connect("one.example:7000", Some(SHORT)).unwrap_err();
    let expected = "TIMEOUT: one.example:7000: no name server has answered within ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(begun.elapsed() >= SHORT && begun.elapsed() < SOON, "{:?}", begun.elapsed());

    // Many more names than are looked up at one time; the first is one whose look-up runs already.
    let begun = Instant::now();
    let names = (0..2 * LOOK_UPS_MAX as u64).map(|at| match at {
        0 => "one.example:7000".to_owned(),
        _ => format!("name{at}.example:7000"),
    });
    names.enumerate().for_each(|(at, name)| a.connect_async(&name, Some(SHORT), &queue, at as u64).unwrap());
    assert!(begun.elapsed() < SOON, "the calls took {:?}", begun.elapsed());
    let mut events = Vec::new();
    eventually("every connect ends", || {
        queue.drain(&mut events, 64);
        events.len() == 2 * LOOK_UPS_MAX
    });
    assert!(begun.elapsed() >= SHORT && begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(look_ups(), LOOK_UPS_MAX, "and the threads are bounded");
    for event in &events {
        let EventBody::PeerConnect { user_data, status, why, .. } = &event.body else { panic!("{event:?}") };
        assert_eq!(*status, Status::Timeout);
        let has_begun = *user_data < LOOK_UPS_MAX as u64;
        let expected = if has_begun { "no name server has answered within" } else { "has not begun within" };
        assert!(why.contains(expected), "{user_data}: {why}");
    }

    // Nothing else waits for the name server: a connected peer, an address, the end of the engine.
    assert_eq!(a.connect(&by_name, Some(SHORT)).unwrap(), peer);
    let c = engine(&[]);
    a.connect(c.address(), Some(PATIENCE)).unwrap();
    a.close(Some(PATIENCE)).unwrap();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

/// Sets the ports that this network namespace gives to connections. False, with the reason printed, if it may not.
fn set_ports(range: &str) -> bool {
    let set = std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range);
    set.inspect_err(|error| println!("SKIPPED: net.ipv4.ip_local_port_range can't be set here: {error}"))
        .is_ok()
}

/// The system has one port for connections, so a connection to that port comes from the same.
fn itself() {
    if !set_ports("40000 40000") {
        return;
    }
    let a = engine(&[("listen_address", "")]);
    let at = SocketAddr::from(([127, 0, 0, 1], 40000));
    let error = a.connect(&at.to_string(), Some(PATIENCE)).unwrap_err();
    assert_eq!((error.status, error.os_error), (Status::Unreachable, libc::ECONNREFUSED), "{error}");
    // Without SO_REUSEADDR, which std sets: a TIME_WAIT would refuse the port.
    let server = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    server.bind(&at.into()).unwrap();
    server.listen(1).unwrap();
}

fn ports() {
    if !set_ports("40000 40001") {
        return;
    }
    let server = TcpListener::bind("127.0.0.1:39999").unwrap();
    let at = server.local_addr().unwrap();
    let a = engine(&[("listen_address", "")]);
    let _held = [TcpStream::connect(at).unwrap(), TcpStream::connect(at).unwrap()];
    let error = a.connect(&at.to_string(), Some(PATIENCE)).unwrap_err();
    assert_eq!((error.status, error.os_error), (Status::Unreachable, libc::EADDRNOTAVAIL));
    assert!(error.message.contains("127.0.0.1:39999: this host has no free port"), "{error}");
    let error = Engine::open(config(&[])).map(|_| ()).unwrap_err();
    assert_eq!((error.status, error.os_error), (Status::System, libc::EADDRINUSE));
    assert!(error.message.contains("listening on 127.0.0.1:0: this host has no free port"), "{error}");
}

fn link() {
    let script = "ip link add v type veth peer name w && ip link set w up && ip link set v up && \
                  ip addr add fe80::7/64 dev v nodad";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    let at = ("listen_address", "[fe80::7%v]:0");
    let error = Engine::open(config(&[at])).map(|_| ()).unwrap_err();
    assert_eq!(error.status, Status::Invalid, "{error}");
    assert!(error.message.contains("set advertise_address, with the interface"), "{error}");

    let b = engine(&[at, ("advertise_address", "[fe80::7%v]:0")]);
    assert!(b.address().starts_with("[fe80::7%v]:"), "{}", b.address());
    let a = engine(&[]);
    let peer = a.connect(b.address(), Some(PATIENCE)).unwrap();
    assert_eq!(a.peer_info(peer).unwrap().address, b.address());
    let error = a.connect("[fe80::7%x]:7000", Some(PATIENCE)).unwrap_err();
    assert_eq!(error.to_string(), "UNREACHABLE: [fe80::7%x]:7000: this host has no interface x");
}
