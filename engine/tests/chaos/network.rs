//! Hosts, and what happens to the frames between them. `Namespaces` are network namespaces, each with a veth whose
//! other end the wire holds. The wire is a thread that passes frames between the hosts and loses, delays, reorders and
//! duplicates frames by rules. It needs no netem and no packet filter of the kernel. All names are inside the
//! namespaces that `main` enters, which end with the program. `devices` has the other kind of hosts.

use crate::support::Dice;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const HOSTS_MAX: usize = 4;
/// Frames that the wire delays at a time; it loses more.
const DELAYED_MAX: usize = 20_000;
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// A frame of 64 KiB with the headers of Ethernet and of the packet socket.
const FRAME_MAX: usize = 66_000;
const VNET_HEADER: usize = 10;

/// How frames from one host to another are treated.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rule {
    pub cut: bool,
    pub loss_permille: u64,
    pub duplicate_permille: u64,
    pub delay_us: u64,
    /// Is added to the delay of each frame anew, so that frames overtake one another.
    pub jitter_us: u64,
}

/// Counts of frames that the wire lost, delayed or duplicated.
#[derive(Default)]
pub struct Tally {
    pub passed: AtomicU64,
    pub cut: AtomicU64,
    pub lost: AtomicU64,
    pub duplicated: AtomicU64,
    pub delayed: AtomicU64,
}

/// Hosts by their numbers, and the network between them.
pub trait Network {
    /// Where a program on the host listens.
    fn address(&self, host: usize) -> String;
    /// Opens the network namespace of the host; `setns` takes it.
    fn namespace(&self, host: usize) -> File;
    fn rule(&self, from: usize, to: usize, rule: Rule);
    /// Takes a link of the host down or up.
    fn link(&self, host: usize, up: bool);
    /// Ends every rule.
    fn heal(&self);
}

pub struct Namespaces {
    names: Vec<String>,
    rules: Arc<Mutex<[[Rule; HOSTS_MAX]; HOSTS_MAX]>>,
    end: Arc<AtomicBool>,
    wire: Option<JoinHandle<()>>,
}

pub fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split_whitespace()).output().expect("ip is installed");
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

fn mac(host: usize) -> String {
    format!("02:00:00:00:00:{:02x}", host + 1)
}

fn address(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}

impl Namespaces {
    pub fn new(hosts: usize, seed: u64, tally: Arc<Tally>) -> Namespaces {
        // A name is used once: the kernel may need a moment to let go of a namespace.
        static ROUND: AtomicU64 = AtomicU64::new(0);
        let round = ROUND.fetch_add(1, Ordering::Relaxed);
        let names: Vec<String> =
            (0..hosts).map(|host| format!("chaos{}-{}-{host}", std::process::id(), round)).collect();
        let mut sockets = Vec::new();
        for (host, name) in names.iter().enumerate() {
            ip(&format!("netns add {name}"));
            ip(&format!("link add wire{host} type veth peer name eth0 address {} netns {name}", mac(host)));
            ip(&format!("link set wire{host} up"));
            let mut setup =
                format!("link set lo up\nlink set eth0 up\naddr add {}/24 dev eth0\n", address(host));
            for other in (0..hosts).filter(|other| *other != host) {
                let (to, lladdr) = (address(other), mac(other));
                setup += &format!("neigh add {to} lladdr {lladdr} dev eth0 nud permanent\n");
            }
            let mut batch =
                Command::new("ip").args(["-n", name, "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
            batch.stdin.take().unwrap().write_all(setup.as_bytes()).unwrap();
            assert!(batch.wait().unwrap().success(), "{setup}");
            sockets.push(packets(&format!("wire{host}")));
        }
        let rules: Arc<Mutex<[[Rule; HOSTS_MAX]; HOSTS_MAX]>> = Arc::default();
        let end = Arc::new(AtomicBool::new(false));
        let wire = Wire {
            sockets,
            rules: rules.clone(),
            end: end.clone(),
            dice: Dice::of(seed),
            tally,
            late: BinaryHeap::new(),
        };
        let wire = std::thread::spawn(move || wire.run());
        Namespaces { names, rules, end, wire: Some(wire) }
    }
}

impl Network for Namespaces {
    fn address(&self, host: usize) -> String {
        address(host)
    }

    fn namespace(&self, host: usize) -> File {
        File::open(format!("/run/netns/{}", self.names[host])).unwrap()
    }

    fn rule(&self, from: usize, to: usize, rule: Rule) {
        self.rules.lock().unwrap()[from][to] = rule;
    }

    fn link(&self, host: usize, up: bool) {
        ip(&format!("link set wire{host} {}", if up { "up" } else { "down" }));
    }

    fn heal(&self) {
        *self.rules.lock().unwrap() = Default::default();
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        let _ = self.wire.take().unwrap().join();
        for (host, name) in self.names.iter().enumerate() {
            let _ = Command::new("ip").args(["link", "del", &format!("wire{host}")]).status();
            let deleted = Command::new("ip").args(["netns", "del", name]).output();
            if let Some(words) = deleted.ok().map(|output| output.stderr).filter(|words| !words.is_empty()) {
                println!("chaos: {name} is left: {}", String::from_utf8_lossy(&words).trim());
            }
        }
    }
}

/// Opens a socket that receives and sends the frames of an interface as they are, with the kernel's notes about
/// checksums and segments.
fn packets(interface: &str) -> OwnedFd {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    assert!(fd >= 0, "a packet socket: {}", io::Error::last_os_error());
    // SAFETY: the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let set = |level: i32, option: i32, value: i32| {
        let length = std::mem::size_of::<i32>() as u32;
        // SAFETY: `value` is read during the call.
        let result =
            unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), length) };
        assert_eq!(result, 0, "option {option}: {}", io::Error::last_os_error());
    };
    set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1);
    set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
    let _ = std::panic::catch_unwind(|| set(libc::SOL_SOCKET, libc::SO_RCVBUF, 8 << 20));
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: a sockaddr_ll is numbers: zeros are a value.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    at.sll_family = libc::AF_PACKET as u16;
    at.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: `name` is a C string.
    at.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
    let length = std::mem::size_of_val(&at) as u32;
    // SAFETY: `at` is read during the call.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const at).cast(), length) };
    assert_eq!(result, 0, "bind to {interface}: {}", io::Error::last_os_error());
    fd
}

/// A frame on its way: when it is due, a number that keeps the order, its host, its bytes.
type Late = (Instant, u64, usize, Box<[u8]>);

struct Wire {
    sockets: Vec<OwnedFd>,
    rules: Arc<Mutex<[[Rule; HOSTS_MAX]; HOSTS_MAX]>>,
    end: Arc<AtomicBool>,
    dice: Dice,
    tally: Arc<Tally>,
    late: BinaryHeap<Reverse<Late>>,
}

impl Wire {
    fn run(mut self) {
        let mut frame = vec![0u8; FRAME_MAX];
        while !self.end.load(Ordering::Relaxed) {
            self.wait();
            for from in 0..self.sockets.len() {
                for _ in 0..64 {
                    let fd = self.sockets[from].as_raw_fd();
                    // SAFETY: `frame` is written during the call, up to its length.
                    let got = unsafe { libc::recv(fd, frame.as_mut_ptr().cast(), frame.len(), 0) };
                    if got < 0 {
                        break;
                    }
                    self.pass(from, &frame[..got as usize]);
                }
            }
            let now = Instant::now();
            while self.late.peek().is_some_and(|Reverse((due, ..))| *due <= now) {
                let Reverse((_, _, to, frame)) = self.late.pop().unwrap();
                self.send(to, &frame);
            }
        }
    }

    fn wait(&self) {
        let due = self.late.peek().map(|Reverse((due, ..))| due.saturating_duration_since(Instant::now()));
        let wait = due.unwrap_or(Duration::MAX).min(Duration::from_millis(20));
        let mut polls: Vec<libc::pollfd> = self
            .sockets
            .iter()
            .map(|socket| libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 };
        // SAFETY: the arguments live during the call.
        unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as u64, &timeout, std::ptr::null()) };
    }

    fn pass(&mut self, from: usize, frame: &[u8]) {
        // Frames to all hosts are not needed: each host knows the others' addresses.
        let Some([2, 0, 0, 0, 0, number]) = frame.get(VNET_HEADER..VNET_HEADER + 6) else { return };
        let to = usize::from(*number).wrapping_sub(1);
        if to >= self.sockets.len() {
            return;
        }
        let rule = self.rules.lock().unwrap()[from][to];
        if rule.cut {
            self.tally.cut.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if self.dice.below(1000) < rule.loss_permille {
            self.tally.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.tally.passed.fetch_add(1, Ordering::Relaxed);
        let twice = self.dice.below(1000) < rule.duplicate_permille;
        self.tally.duplicated.fetch_add(u64::from(twice), Ordering::Relaxed);
        for _ in 0..1 + u64::from(twice) {
            if rule.delay_us + rule.jitter_us == 0 {
                self.send(to, frame);
            } else if self.late.len() < DELAYED_MAX {
                let delay = rule.delay_us + self.dice.below(rule.jitter_us + 1);
                let due = Instant::now() + Duration::from_micros(delay);
                let order = self.tally.delayed.fetch_add(1, Ordering::Relaxed);
                self.late.push(Reverse((due, order, to, frame.into())));
            }
        }
    }

    fn send(&self, to: usize, frame: &[u8]) {
        // A link that is down, or a queue that is full, loses the frame, as a network does.
        // SAFETY: `frame` is read during the call.
        unsafe { libc::send(self.sockets[to].as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    }
}
