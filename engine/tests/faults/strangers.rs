//! Strangers: other servers at the address, other versions and secrets, and bytes of all kinds at our port.

use crate::child::Child;
use crate::support::*;
use ferry::internals::session::handshake::{preamble, KIND_CONTROL, KIND_LANE};
use ferry::internals::sys::unix;
use ferry::limits::HANDSHAKES_MAX;
use ferry::{Engine, Status};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const PATIENCE: Option<Duration> = Some(Duration::from_millis(1500));

/// Starts a server that answers the first bytes with `answer`, and then keeps or closes the connection.
fn server(answer: Vec<u8>, keep: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut socket in listener.incoming().map_while(Result::ok) {
            let mut seen = [0; 16];
            let _ = socket.read(&mut seen);
            let _ = socket.write_all(&answer);
            if keep {
                kept.push(socket);
            }
        }
    });
    address
}

fn frame(kind: u8, fields: &[u8]) -> Vec<u8> {
    let mut out = (1 + fields.len() as u16).to_le_bytes().to_vec();
    out.push(kind);
    out.extend_from_slice(fields);
    out
}

/// Builds a HELLO of another wire version; every HELLO begins with the versions.
fn hello(version: u16) -> Vec<u8> {
    let mut fields = [version.to_le_bytes(), version.to_le_bytes()].concat();
    fields.extend_from_slice(&[7; 16 + 8 + 32]);
    fields.extend_from_slice(&[1, 0]);
    [preamble(KIND_CONTROL).to_vec(), frame(1, &fields)].concat()
}

#[test]
fn each_wrong_address_has_its_own_status() {
    let _turn = alone();
    let a = engine(&[]);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = a.connect(&free, PATIENCE).unwrap_err();
    assert_eq!((refused.status, refused.os_error), (Status::Unreachable, libc::ECONNREFUSED), "{refused}");
    for (what, answer, keep, expected) in [
        ("http", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), true, Status::NotFerry),
        ("ssh", b"SSH-2.0-OpenSSH_9\r\n".to_vec(), false, Status::NotFerry),
        ("zeros", vec![0; 4096], true, Status::NotFerry),
        ("nothing and closed", vec![], false, Status::Unreachable),
        ("nothing", vec![], true, Status::Timeout),
        ("half a preamble", b"FER".to_vec(), true, Status::Timeout),
        ("another version", hello(9), true, Status::Version),
        (
            "refusal of our version",
            [preamble(KIND_CONTROL).to_vec(), frame(255, &[7])].concat(),
            false,
            Status::Version,
        ),
    ] {
        let address = server(answer, keep);
        let started = Instant::now();
        let error = a.connect(&address, PATIENCE).unwrap_err();
        assert_eq!(error.status, expected, "{what}: {error}");
        assert!(started.elapsed() < PATIENCE.unwrap() + SLACK, "{what} took {:?}", started.elapsed());
        assert!(error.message.contains(&address), "{what}: {error} does not name the address");
    }
    for nonsense in ["", "nowhere", "127.0.0.1", "127.0.0.1:99999", ":::"] {
        assert_eq!(a.connect(nonsense, PATIENCE).unwrap_err().status, Status::Invalid, "{nonsense:?}");
    }
}

#[test]
fn secrets_must_match() {
    let _turn = alone();
    let other = ("secret", "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
    let open = [SAME_USER, ("same_user", "false"), ("allow_unauthenticated", "true")];
    let kinds: [&[(&str, &str)]; 4] = [&[], &[other], &[SAME_USER], &open];
    let engines: Vec<Engine> = kinds.iter().map(|settings| engine(settings)).collect();
    for (i, from) in engines.iter().enumerate() {
        for (j, to) in engines.iter().enumerate().filter(|(j, _)| *j != i) {
            let error = from.connect(to.address(), Some(BOUND)).unwrap_err();
            assert_eq!(error.status, Status::Refused, "{i} to {j}: {error}");
            assert!(to.peers().unwrap().is_empty());
        }
    }
}

#[test]
fn another_user_of_the_host_is_refused() {
    let _turn = alone();
    if !is_root("another_user_of_the_host_is_refused", "become somebody else") {
        return;
    }
    let a = engine(&[SAME_USER]);
    let mut child = Child::start();
    assert_eq!(child.ask("setuid 65534"), "0");
    let address = child.ask("open secret=");
    let error = a.connect(&address, Some(BOUND)).unwrap_err();
    assert_eq!(error.status, Status::Refused, "{error}");
    let answer = child.ask(&format!("connect {}", a.address()));
    assert!(answer.starts_with("REFUSED"), "{answer}");
}

/// Sends bytes to the port; returns how long the engine took to close the connection.
fn throw(address: &str, bytes: &[u8]) -> Duration {
    let mut socket = TcpStream::connect(address).unwrap();
    let started = Instant::now();
    let _ = socket.write_all(bytes);
    socket.set_read_timeout(Some(BOUND)).unwrap();
    let mut sink = [0; 4096];
    loop {
        match socket.read(&mut sink) {
            Ok(0) => return started.elapsed(),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("kept open: {bytes:02x?}"),
            Err(_) => return started.elapsed(),
        }
    }
}

#[test]
fn garbage_at_the_port_ends_and_disturbs_nobody() {
    let _turn = alone();
    let mut dice = Dice::new("garbage_at_the_port_ends_and_disturbs_nobody");
    let (a, b, peer) = pair(&[("handshake_timeout_ms", "300")]);
    let (local, remote) = (alloc(&a, MIB), alloc(&b, MIB));
    let limit = Duration::from_millis(300) + SLACK;
    for round in 0..60u64 {
        let mut bytes: Vec<u8> = (0..dice.below(3000)).map(|_| dice.next() as u8).collect();
        let head = match round % 6 {
            0 => vec![],
            1 => preamble(KIND_CONTROL).to_vec(),
            2 => preamble(KIND_LANE).to_vec(),
            3 => preamble(9).to_vec(),
            // The longest possible frame, and one byte more.
            4 => [preamble(KIND_CONTROL).to_vec(), 0xffffu16.to_le_bytes().to_vec()].concat(),
            _ => {
                let mut whole = hello(1);
                whole.truncate(dice.below(whole.len() as u64) as usize);
                bytes.clear();
                whole
            }
        };
        let took = throw(b.address(), &[head, bytes].concat());
        assert!(took < limit, "round {round}: closed after {took:?}");
    }
    assert!(throw(b.address(), &hello(9)) < limit);
    assert!(throw(b.address(), &vec![0x55; 8 * MIB]) < limit);
    fill(&local, 3);
    a.write(peer, &[request(&local, &remote, 0, MIB)], &options()).unwrap();
    assert_pattern(&remote, 3, 0, MIB);
    assert!(b.stats().unwrap().counts.handshakes_refused > 50);
    assert_eq!(b.peers().unwrap().len(), 1);
}

/// One byte at a time: progress does not move the deadline of a handshake.
#[test]
fn a_slow_handshake_is_dropped_at_its_timeout() {
    let _turn = alone();
    let b = engine(&[("handshake_timeout_ms", "300")]);
    let mut socket = TcpStream::connect(b.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let started = Instant::now();
    let mut sink = [0; 256];
    for byte in hello(1).into_iter().cycle() {
        let _ = socket.write_all(&[byte]);
        match socket.read(&mut sink) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(count) if count > 0 => {}
            _ => break,
        }
        assert!(started.elapsed() < Duration::from_millis(300) + SLACK, "still open");
    }
}

/// Thousands of half-open connections: their number is bounded, connected peers are served, and new peers get in.
#[test]
fn half_open_connections_are_bounded_and_others_are_served() {
    let _turn = alone();
    let (a, b, peer) = pair(&[("handshake_timeout_ms", "5000")]);
    let c = engine(&[]);
    let (local, remote) = (alloc(&a, MIB), alloc(&b, MIB));
    fill(&local, 3);
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = count();
    let mut held = Vec::new();
    for round in 0..4 {
        for _ in 0..500 {
            held.push(TcpStream::connect(b.address()).unwrap());
        }
        a.write(peer, &[request(&local, &remote, 0, MIB)], &options())
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        let error = c.connect(b.address(), Some(BOUND)).map(|_| ()).err();
        assert!(error.is_none(), "round {round}, a newcomer: {}", error.unwrap());
        c.close_peer(c.peers().unwrap()[0], Some(BOUND)).unwrap();
    }
    assert_pattern(&remote, 3, 0, MIB);
    let engines = count() - before - held.len();
    assert!(engines < 600, "{engines} descriptors held for strangers");
}

/// Returns the sockets by which processes of this host reach this process: (name, whether it takes packets).
fn names_of_this_process() -> Vec<(String, bool)> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let own: Vec<String> = links
        .filter_map(|entry| std::fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok())
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    // Num RefCount Protocol Flags Type St Inode Path; 00010000 marks a listener.
    let lines = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines
        .filter(|words| {
            words.len() == 8 && words[3] == "00010000" && own.iter().any(|inode| inode == words[6])
        })
        .filter_map(|words| Some((words[7].strip_prefix('@')?.to_owned(), words[4] == "0005")))
        .collect()
}

/// Another user of the host takes all the connections that it can get, and sends nothing: the engine's own user is
/// still served.
#[test]
fn another_user_takes_no_seat_at_the_sockets_for_this_one() {
    let _turn = alone();
    if !is_root("another_user_takes_no_seat_…", "become somebody else") {
        return;
    }
    let mut crowd = Child::start();
    assert_eq!(crowd.ask("nofile 4000"), "0");
    assert_eq!(crowd.ask("setuid 65534"), "0");
    let settings = [SAME_USER, ("transports", "auto"), ("handshake_timeout_ms", "30000")];
    let b = engine(&settings);
    let names = names_of_this_process();
    assert_eq!(names.len(), 2, "{names:?}");
    let a = engine(&settings);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for (name, packets) in &names {
        let kind = if *packets { "packets" } else { "stream" };
        // More than the socket accepts.
        crowd.number(&format!("crowd {name} {kind} 1300"));
    }
    let seats = open() - before;
    assert!(seats < 100, "{seats} seats are another user's");
    let peer = connect(&a, b.address());
    let paths = a.peer_paths(peer).unwrap();
    let local = paths.iter().find(|path| path.transport == ferry::types::Transport::Local).unwrap();
    assert!(local.chosen, "{}", local.why);
    assert!(b.stats().unwrap().counts.handshakes_refused >= 1300);
}

/// The number of connections that prove nothing is bounded for the engine's own user, too.
#[test]
fn a_crowd_that_proves_nothing_is_bounded() {
    let _turn = alone();
    let mut crowd = Child::start();
    assert_eq!(crowd.ask("nofile 4000"), "0");
    let b = engine(&[SAME_USER, ("handshake_timeout_ms", "60000")]);
    let names = names_of_this_process();
    let (name, _) = names.iter().find(|(_, packets)| !packets).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    crowd.number(&format!("crowd {name} stream {}", 2 * HANDSHAKES_MAX + 300));
    // Connections are accepted in order.
    let connect = || unix::connect_abstract(name.as_bytes(), unix::Type::STREAM);
    let mut last = connect();
    while last.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        last = connect();
    }
    let mut last = UnixStream::from(last.unwrap());
    last.set_nonblocking(false).unwrap();
    last.set_read_timeout(Some(BOUND)).unwrap();
    // A key would be sent in answer to this.
    let _ = last.write_all(&[7; 32]);
    let mut answer = Vec::new();
    let ended = last.read_to_end(&mut answer);
    assert!(answer.is_empty(), "one more was taken in");
    assert!(!ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "one more was taken in");
    let seats = open() - before;
    assert!(seats <= 2 * HANDSHAKES_MAX + 10, "{seats} seats are taken");
    drop(b);
}
