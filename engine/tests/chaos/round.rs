//! A round: nodes on hosts, a storm of operations and faults, then calm, in which everything has to end, to work
//! again, and to stay as it is. The dice of faults, of operations and of languages are apart, all from the seed of
//! the round.

use crate::arena::{self, Arena};
use crate::faults::{Relief, Stranger};
use crate::network::Network;
use crate::operation::{Kind, Life, Operation, Piece};
use crate::place::Place;
use crate::process::{Process, Said};
use crate::support::Dice;
use crate::tally::Tally;
use std::collections::HashMap;
use std::fs::File;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::{Duration, Instant};

const GAP: usize = 64;
/// Bytes of an arena that the storm leaves to the calm.
const RESERVE: usize = 512 << 10;

pub struct Node {
    pub host: usize,
    pub port: u16,
    pub arena: Arena,
    memory: File,
    pub process: Option<Process>,
    pub epoch: u64,
    /// The handle of the arena's region; empty until the process has said it.
    pub region: String,
    /// The region of the process before.
    pub old_region: String,
    /// Each other node's handle here, and the epoch for which it was dialed.
    pub peers: Vec<Option<(String, u64)>>,
    pub dialing: Vec<bool>,
    pub stopped: Option<Instant>,
    stopped_in_all: Duration,
    pub limited: bool,
    /// Its memory was limited: the process may have died of that.
    pub starved: bool,
    pub stranger: Option<Stranger>,
    /// Lost a peer, or died.
    pub lost: bool,
    pub closed: Vec<String>,
    next: usize,
}

impl Node {
    pub fn tell(&mut self, command: &str) {
        if let Some(process) = &mut self.process {
            process.tell(command);
        }
    }

    pub fn signal(&self, signal: i32) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    pub fn stopped_until(&self, now: Instant) -> Duration {
        self.stopped_in_all + self.stopped.map_or(Duration::ZERO, |since| now - since)
    }

    /// Returns whether the process was stopped, or the machine was too busy to run it.
    pub fn was_stopped(&self) -> bool {
        self.stopped.is_some() || self.stopped_in_all > Duration::ZERO
    }

    fn is_open(&self) -> bool {
        self.process.is_some() && !self.region.is_empty()
    }

    fn take(&mut self, bytes: usize, reserve: usize) -> Option<usize> {
        let at = self.next + GAP;
        (at + bytes + reserve + GAP <= arena::BYTES).then(|| self.next = at + bytes)?;
        Some(at)
    }
}

pub struct Round<'a> {
    pub nodes: Vec<Node>,
    pub network: Box<dyn Network>,
    pub place: &'a Place,
    pub reliefs: Vec<(Instant, Relief)>,
    /// Draws faults.
    pub dice: Dice,
    /// Draws operations.
    work: Dice,
    /// Draws the languages of nodes.
    tongues: Dice,
    pub tally: &'a mut Tally,
    pub operations: Vec<Operation>,
    /// (initiator, its epoch, target, its epoch, sent alone): the last notification that came.
    pub last_noted: HashMap<(usize, u64, usize, u64, bool), u64>,
    /// Ranges that a node reported as applied late.
    pub late: Vec<(usize, usize, usize)>,
    pub failures: Vec<String>,
    pub story: Vec<String>,
    pub began: Instant,
    turned: Instant,
    swept: Instant,
    said: (Sender<Said>, Receiver<Said>),
}

/// Plays the round of a seed; the error tells its story.
pub fn play(seed: u64, place: &Place, tally: &mut Tally) -> Result<(), String> {
    let mut round = Round::new(seed, place, tally);
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| round.run()));
    if played.is_err() {
        round.failures.push("the program panicked, see above".into());
    }
    if round.failures.is_empty() {
        return Ok(());
    }
    let mut text = round.story.join("\n");
    for (at, node) in round.nodes.iter_mut().enumerate() {
        node.signal(libc::SIGKILL);
        if let Some(process) = &mut node.process {
            text += &format!("\nnode {at} ended: {}", process.last_words());
        }
    }
    Err(format!("{text}\nFAILED, seed {seed}:\n  {}", round.failures.join("\n  ")))
}

impl<'a> Round<'a> {
    fn new(seed: u64, place: &'a Place, tally: &'a mut Tally) -> Round<'a> {
        let mut dice = Dice::of(seed);
        let count = 2 + dice.below(3) as usize;
        // One round in four is on one host; in the others some nodes share a host.
        let alone = dice.below(4) == 0;
        let hosts: Vec<usize> =
            (0..count).map(|node| if alone || node > 0 && dice.below(5) == 0 { 0 } else { node }).collect();
        let hosts: Vec<usize> = hosts.into_iter().map(|host| host % place.hosts_max).collect();
        let network = place.network(count, dice.next(), tally.wire.clone());
        let nodes = hosts.iter().enumerate().map(|(number, host)| {
            let memory = arena::memfd(arena::BYTES);
            let arena = Arena::map(&memory, false);
            arena.fill(0, arena::BYTES, arena::CANARY, 0);
            Node {
                host: *host,
                port: 7000 + number as u16,
                arena,
                memory,
                process: None,
                epoch: 0,
                region: String::new(),
                old_region: String::new(),
                peers: vec![None; count],
                dialing: vec![false; count],
                stopped: None,
                stopped_in_all: Duration::ZERO,
                limited: false,
                starved: false,
                stranger: None,
                lost: false,
                closed: Vec::new(),
                next: 0,
            }
        });
        let (nodes, work, now) = (nodes.collect(), Dice::of(seed ^ 0x5eed), Instant::now());
        Round {
            nodes,
            network,
            place,
            reliefs: Vec::new(),
            dice,
            work,
            tongues: Dice::of(seed ^ 0x70e6),
            tally,
            operations: Vec::new(),
            last_noted: HashMap::new(),
            late: Vec::new(),
            failures: Vec::new(),
            story: vec![format!("nodes on hosts {hosts:?}")],
            began: now,
            turned: now,
            swept: now,
            said: channel(),
        }
    }

    fn run(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.start(node));
        self.wait("every node is open", |round| round.nodes.iter().all(Node::is_open));
        let storm = self.place.pace * Duration::from_millis(1200 + self.dice.below(1500));
        let (began, mut next_fault) = (Instant::now(), Instant::now() + Duration::from_millis(100));
        while began.elapsed() < storm && self.failures.is_empty() {
            self.dial();
            self.work();
            if Instant::now() >= next_fault {
                self.draw_fault();
                next_fault += self.place.pace * Duration::from_millis(10 + self.dice.below(200));
            }
            self.end_faults(false);
            self.turn();
        }
        self.tell("the faults end".into());
        self.end_faults(true);
        self.network.heal();
        self.wait("every operation is final, every node open", |round| {
            round.nodes.iter().all(Node::is_open)
                && !round.operations.iter().any(|operation| operation.life == Life::Submitted)
        });
        self.converge();
        let calm = Instant::now();
        while calm.elapsed() < Duration::from_secs(1) && self.failures.is_empty() {
            self.turn();
        }
        self.judge();
        self.close();
        if self.failures.is_empty() {
            self.judge();
        }
    }

    pub fn tell(&mut self, what: String) {
        self.story.push(format!("{:>6} ms  {what}", self.began.elapsed().as_millis()));
    }

    pub fn fail(&mut self, what: String) {
        self.tell(format!("FAILURE: {what}"));
        self.failures.push(what);
    }

    pub fn start(&mut self, number: usize) {
        let namespace = self.network.namespace(self.nodes[number].host);
        let node = &mut self.nodes[number];
        if node.process.is_some() {
            return;
        }
        node.starved = false;
        node.stopped_in_all = Duration::ZERO;
        let (language, command) = self.place.languages.draw(&mut self.tongues);
        let said = self.said.0.clone();
        let mut process = Process::start(command, (number, node.epoch), namespace, &node.memory, said);
        let at = format!("{}:{}", self.network.address(node.host), node.port);
        process.tell(&self.place.settings(node.host, &at));
        node.process = Some(process);
        self.tally.language(&language);
        self.tell(format!("node {number}: started, in {language}"));
    }

    /// Forgets a process that has died; what it submitted has no end that anybody could see.
    pub fn bury(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.process = None;
        node.epoch += 1;
        node.old_region = std::mem::take(&mut node.region);
        node.peers.fill(None);
        node.dialing.fill(false);
        (node.stopped, node.limited, node.lost) = (None, false, true);
        for operation in &mut self.operations {
            if operation.from == number && operation.life == Life::Submitted {
                operation.life = Life::Orphan;
            }
        }
    }

    pub fn resume(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if let Some(since) = node.stopped.take() {
            node.stopped_in_all += since.elapsed();
            node.signal(libc::SIGCONT);
            self.tell(format!("node {number}: goes on"));
        }
    }

    fn dial(&mut self) {
        for from in 0..self.nodes.len() {
            for to in (0..self.nodes.len()).filter(|to| *to != from) {
                let (epoch, open) = (self.nodes[to].epoch, self.nodes[to].is_open());
                let at = format!("{}:{}", self.network.address(self.nodes[to].host), self.nodes[to].port);
                let node = &mut self.nodes[from];
                let known = node.peers[to].as_ref().is_some_and(|(_, dialed)| *dialed == epoch);
                if open && node.is_open() && !known && !node.dialing[to] && node.stopped.is_none() {
                    node.dialing[to] = true;
                    node.tell(&format!("connect {to} {epoch} {at}"));
                }
            }
        }
    }

    /// Submits or cancels something, or nothing.
    fn work(&mut self) {
        let count = self.nodes.len() as u64;
        for _ in 0..self.work.below(3) {
            let from = self.work.below(count) as usize;
            let to = (from + 1 + self.work.below(count - 1) as usize) % count as usize;
            let dice = self.work.below(200);
            if dice < 20 {
                self.cancel();
            } else if dice < 21 {
                if let Some((peer, _)) = self.nodes[from].peers[to].clone() {
                    self.tally.reach("target's fence");
                    self.nodes[from].tell(&format!("fence {peer}"));
                }
            } else if self.nodes[from].stopped.is_none() {
                let kind = match dice {
                    21..110 => Kind::Write,
                    110..170 => Kind::Read,
                    _ => Kind::Note,
                };
                let bytes = match self.work.below(20) {
                    0..10 => 8 + self.work.below(4096),
                    10..16 => self.work.below(64 << 10),
                    16..19 => self.work.below(512 << 10),
                    _ => self.work.below(2 << 20),
                };
                let deadline = self.place.pace * Duration::from_millis(20 + self.work.below(2000));
                self.submit(kind, from, to, bytes as usize, deadline, RESERVE);
            }
        }
    }

    fn cancel(&mut self) {
        let open = self.operations.iter().filter(|operation| operation.life == Life::Submitted);
        let open: Vec<u64> = open.filter(|operation| operation.kind != Kind::Note).map(|o| o.id).collect();
        if open.is_empty() {
            return;
        }
        let id = open[self.work.below(open.len() as u64) as usize];
        let operation = &mut self.operations[id as usize];
        if self.nodes[operation.from].stopped.is_none() {
            // A cancel is a deadline that comes earlier.
            operation.deadline = operation.deadline.min(operation.submitted.elapsed());
            self.nodes[operation.from].tell(&format!("cancel {id}"));
            self.tally.reach("cancel");
        }
    }

    /// Returns the number of the operation, if there was a peer and room for it.
    fn submit(
        &mut self,
        kind: Kind,
        from: usize,
        to: usize,
        bytes: usize,
        deadline: Duration,
        reserve: usize,
    ) -> Option<u64> {
        let (peer, dialed) = self.nodes[from].peers[to].clone()?;
        // A node sends one notification at a time, so that they have an order.
        let sends = |operation: &Operation| {
            (operation.kind, operation.from, &operation.life) == (Kind::Note, from, &Life::Submitted)
        };
        if kind == Kind::Note && self.operations.iter().any(sends) {
            return None;
        }
        let old =
            dialed != self.nodes[to].epoch || self.nodes[to].region.is_empty() || self.work.below(20) == 0;
        let stale = reserve != 0 && old && !self.nodes[to].old_region.is_empty();
        let region = if stale { &self.nodes[to].old_region } else { &self.nodes[to].region }.clone();
        if region.is_empty() {
            return None;
        }
        let (source, target) = if kind == Kind::Read { (to, from) } else { (from, to) };
        let mut pieces = Vec::new();
        let wanted = if kind == Kind::Note { 0 } else { 1 + self.work.below(4) as usize };
        for _ in 0..wanted {
            let bytes = (bytes / wanted).next_multiple_of(8).max(8);
            let source = self.nodes[source].take(bytes, reserve)?;
            pieces.push(Piece { source, target: self.nodes[target].take(bytes, reserve)?, bytes });
        }
        let id = self.operations.len() as u64;
        for piece in &pieces {
            self.nodes[source].arena.fill(piece.source, piece.bytes, arena::data(id), piece.target);
        }
        let notifies = kind == Kind::Note || kind == Kind::Write && reserve != 0 && self.work.below(3) == 0;
        let mut flags = String::from("-");
        for (flag, one_in) in [('o', 8), ('c', 4), ('s', 2)] {
            if self.work.below(one_in) == 0 {
                flags.push(flag);
            }
        }
        if notifies {
            flags.push('n');
        }
        let (now, from_epoch) = (Instant::now(), self.nodes[from].epoch);
        let operation = Operation {
            id,
            kind,
            from,
            from_epoch,
            to,
            pieces,
            notifies,
            stale,
            submitted: now,
            stopped_before: self.nodes[from].stopped_until(now),
            deadline,
            life: Life::Submitted,
            status: String::new(),
            notification: String::new(),
            noted: false,
            scrubbed: false,
            touched: None,
        };
        let command = operation.command(&peer, &region, &flags);
        self.tell(format!("node {from} to node {to}: {command}"));
        self.nodes[from].tell(&command);
        self.operations.push(operation);
        Some(id)
    }

    /// Every pair moves bytes again when the faults have ended.
    fn converge(&mut self) {
        let count = self.nodes.len();
        let mut open: Vec<(usize, usize, Option<u64>)> = (0..count * count)
            .filter(|at| at / count != at % count)
            .map(|at| (at / count, at % count, None))
            .collect();
        let began = Instant::now();
        while !open.is_empty() && self.failures.is_empty() {
            self.dial();
            for (from, to, tried) in &mut open {
                let life = tried.map(|id| &self.operations[id as usize].life);
                if life.is_none_or(|life| *life != Life::Submitted) {
                    let deadline = self.place.pace * Duration::from_secs(3);
                    *tried = self.submit(Kind::Write, *from, *to, 4096, deadline, 0);
                }
            }
            for _ in 0..10 {
                self.turn();
            }
            // A process may die of a fault that is over, and is started anew.
            self.end_faults(false);
            let operations = &self.operations;
            open.retain(|(_, _, tried)| tried.is_none_or(|id| operations[id as usize].status != "OK"));
            if !open.is_empty() && began.elapsed() > self.place.calm {
                self.fail(format!("pairs that move nothing after the faults: {open:?}"));
            }
        }
    }

    fn close(&mut self) {
        self.tell("every node closes".into());
        self.nodes.iter_mut().for_each(|node| node.tell("close"));
        self.wait("every node has closed", |round| round.nodes.iter().all(|node| node.closed.len() == 3));
    }

    fn wait(&mut self, what: &str, until: impl Fn(&Round) -> bool) {
        let began = Instant::now();
        while !until(self) && self.failures.is_empty() {
            self.turn();
            self.end_faults(false);
            if began.elapsed() > self.place.calm {
                self.fail(format!("waited in vain until {what}"));
            }
        }
    }

    /// Takes in what the nodes say, for some milliseconds, and checks what time alone decides.
    fn turn(&mut self) {
        if let Ok(said) = self.said.1.recv_timeout(Duration::from_millis(5)) {
            self.hear(said);
            while let Ok(said) = self.said.1.try_recv() {
                self.hear(said);
            }
        }
        let now = Instant::now();
        // When this program gets no CPU, the nodes may have got none either.
        let gap = now - self.turned;
        if gap > Duration::from_millis(100) {
            self.nodes.iter_mut().for_each(|node| node.stopped_in_all += gap);
        }
        self.turned = now;
        self.check_bounds(now);
        if self.swept.elapsed() > Duration::from_millis(250) {
            self.sweep();
            self.swept = Instant::now();
        }
    }
}
