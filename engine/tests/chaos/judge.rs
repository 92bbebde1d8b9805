//! Compares what nodes say and what stands in their memory with the contracts (docs/contracts.md).

use crate::arena;
use crate::faults::Relief;
use crate::operation::{Kind, Life};
use crate::process::Said;
use crate::round::Round;
use std::time::Instant;

impl Round<'_> {
    pub fn hear(&mut self, (node, epoch, line): Said) {
        let current = epoch == self.nodes[node].epoch;
        let Some(line) = line else {
            if current && self.nodes[node].process.is_some() && self.nodes[node].closed.len() < 3 {
                self.died(node);
            }
            return;
        };
        self.tell(format!("node {node} says: {line}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "final" => self.ended(node, epoch, &words[1..]),
            "note" => self.noted(node, epoch, words[1].parse().unwrap(), &line),
            "late" => {
                self.tally.reach("LATE_APPLY");
                if !self.nodes[node].was_stopped() {
                    self.fail(format!("node {node} applied late, and was never stopped: {line}"));
                }
                self.late.push((node, words[1].parse().unwrap(), words[2].parse().unwrap()));
            }
            "again" => self.fail(format!("node {node}: a transfer ended twice: {line}")),
            "refused" | "noted" => {
                let operation = &mut self.operations[words[1].parse::<usize>().unwrap()];
                let refused = words[0] == "refused";
                operation.life = if refused { Life::Refused } else { Life::Final };
                if words[0] == "noted" && words[2] == "OK" {
                    operation.notification = "Delivered".into();
                }
                if words[2] == "PANIC" {
                    self.fail(format!("node {node}: {line}"));
                }
                self.tally
                    .reach(words[..1].iter().chain(words.get(2)).copied().collect::<Vec<_>>().join(" "));
            }
            "lost" => {
                self.nodes[node].lost = true;
                self.tally.reach(format!("lost {}", words[2]));
                for peer in &mut self.nodes[node].peers {
                    peer.take_if(|(handle, _)| current && handle == words[1]);
                }
            }
            _ if !current => {}
            "opened" => self.nodes[node].region = words[1].into(),
            "connected" | "unconnected" => {
                let other: usize = words[1].parse().unwrap();
                self.nodes[node].dialing[other] = false;
                if words[0] == "connected" {
                    self.nodes[node].peers[other] = Some((words[3].into(), words[2].parse().unwrap()));
                }
            }
            "fenced" => self.tally.reach(format!("fenced {}", words[2])),
            "unregistered" | "closed" => {
                if words[2] != "OK" {
                    self.fail(format!("node {node}: {line}"));
                }
                self.nodes[node].closed.push(line);
            }
            "usage" => {
                if words[1] != words[2] || words[3] != words[4] {
                    self.fail(format!("node {node} leaks descriptors or threads: {line}"));
                }
                self.nodes[node].closed.push(line);
            }
            "unopened" => self.tally.reach("unopened"),
            "up" => {}
            _ => self.fail(format!("node {node}: {line}")),
        }
    }

    /// A process that nobody killed has ended. Its smallest allocations may stop it (contract 14).
    fn died(&mut self, node: usize) {
        let words = self.nodes[node].process.as_mut().map(|process| process.last_words()).unwrap_or_default();
        self.tell(format!("node {node} died: {words}"));
        if self.nodes[node].starved {
            self.tally.reach("died for want of memory");
        } else {
            self.fail(format!("node {node} died: {words}"));
        }
        self.bury(node);
        self.reliefs.push((Instant::now(), Relief::Start(node)));
    }

    fn ended(&mut self, node: usize, epoch: u64, words: &[&str]) {
        let [id, state, status, fence, notification, transport] = words else {
            return self.fail(format!("node {node}: {words:?}"));
        };
        let now = Instant::now();
        let operation = &mut self.operations[id.parse::<usize>().unwrap()];
        let twice = !matches!(operation.life, Life::Submitted | Life::Orphan);
        let strange = (operation.from, operation.from_epoch) != (node, epoch);
        operation.life = Life::Final;
        (operation.status, operation.notification) = ((*status).into(), (*notification).into());
        let stopped = self.nodes[node].stopped_until(now).saturating_sub(operation.stopped_before);
        let late = (now - operation.submitted).saturating_sub(stopped).saturating_sub(operation.deadline);
        self.tally.longest_end = self.tally.longest_end.max(late);
        self.tally.reach(format!("{state} {fence} {transport}"));
        let done = *status == "OK";
        if done {
            self.tally.bytes_done += operation.pieces.iter().map(|piece| piece.bytes as u64).sum::<u64>();
        }
        let (source, target) = operation.places();
        let allowed = operation.allowed();
        let arena = &self.nodes[target].arena;
        let wrong = operation
            .pieces
            .iter()
            .find_map(|piece| arena.stranger(piece.target, piece.bytes, &allowed, piece.target));
        let crossed = done && operation.stale;
        if !operation.notifies || *notification == "NotSent" {
            operation.scrubbed = true;
            for piece in &operation.pieces {
                arena.fill(piece.target, piece.bytes, arena::scrubbed(operation.id), piece.target);
            }
        }
        for piece in &operation.pieces {
            self.nodes[source].arena.fill(
                piece.source,
                piece.bytes,
                arena::spent(operation.id),
                piece.target,
            );
        }
        if twice || strange {
            self.fail(format!("operation {id} ended twice, or elsewhere"));
        }
        if *status == "PANIC" {
            self.fail(format!("operation {id}: an engine is broken"));
        }
        if let Some(at) = wrong {
            self.fail(format!(
                "operation {id} is {status}, but wrong bytes stand at {at:#x} of node {target}"
            ));
        }
        if crossed {
            self.fail(format!("operation {id} is done, but named a region of a process that has ended"));
        }
    }

    fn noted(&mut self, node: usize, epoch: u64, id: u64, line: &str) {
        let operation = &mut self.operations[id as usize];
        let twice = std::mem::replace(&mut operation.noted, true);
        let unsent = operation.notification == "NotSent" || operation.life == Life::Refused;
        // One thread of a node submits transfers, another sends notifications: each has an order.
        let way = (operation.from, operation.from_epoch, node, epoch, operation.kind == Kind::Note);
        let astray = operation.to != node || !operation.notifies;
        let before = self.last_noted.insert(way, id);
        if before.is_some_and(|before| before >= id) {
            self.fail(format!("notification {id} came after {before:?}"));
        }
        if twice || unsent || astray || !line.ends_with("whole") {
            self.fail(format!("{line}: twice {twice}, not sent {unsent}, astray {astray}"));
        }
        self.tally.reach("notification");
    }

    pub fn check_bounds(&mut self, now: Instant) {
        let more = self.place.drain + self.place.lease + self.place.slack;
        let late = self.operations.iter().find(|operation| {
            let stopped =
                self.nodes[operation.from].stopped_until(now).saturating_sub(operation.stopped_before);
            let active = (now - operation.submitted).saturating_sub(stopped);
            operation.life == Life::Submitted && active > operation.deadline + more
        });
        if let Some(operation) = late {
            let (id, node) = (operation.id, operation.from);
            self.fail(format!("operation {id} of node {node} has not ended within its bound"));
        }
    }

    /// Notes when a byte was touched after the end; `judge` decides whether it was allowed.
    pub fn sweep(&mut self) {
        let at = self.began.elapsed();
        for operation in self.operations.iter_mut().filter(|o| o.scrubbed && o.touched.is_none()) {
            let (_, target) = operation.places();
            let seeds = operation.allowed();
            let arena = &self.nodes[target].arena;
            let mut pieces = operation.pieces.iter();
            let wrong =
                pieces.find_map(|piece| arena.stranger(piece.target, piece.bytes, &seeds, piece.target));
            operation.touched = wrong.map(|place| (place, at));
        }
    }

    /// Looks at every byte of every arena, and at what was said of notifications.
    pub fn judge(&mut self) {
        for node in 0..self.nodes.len() {
            // (place, bytes, allowed seeds, where the pattern counts from, operation)
            let mut ranges = vec![(arena::BYTES, 0, vec![], 0, u64::MAX)];
            for operation in &self.operations {
                let (source, target) = operation.places();
                for piece in &operation.pieces {
                    if target == node {
                        let mut allowed = operation.allowed();
                        let told = |(at, place, bytes): &(usize, usize, usize)| {
                            *at == node && *place < piece.target + piece.bytes && piece.target < place + bytes
                        };
                        if self.late.iter().any(told) {
                            allowed.extend([arena::data(operation.id), arena::spent(operation.id)]);
                        }
                        ranges.push((piece.target, piece.bytes, allowed, piece.target, operation.id));
                    }
                    if source == node {
                        let seeds = match operation.life {
                            Life::Final => vec![arena::spent(operation.id)],
                            _ => vec![arena::data(operation.id)],
                        };
                        ranges.push((piece.source, piece.bytes, seeds, piece.target, operation.id));
                    }
                }
            }
            ranges.sort_by_key(|range| range.0);
            let mut from = 0;
            let mut wrong = Vec::new();
            let arena = &self.nodes[node].arena;
            for (place, bytes, allowed, pattern, id) in ranges {
                if let Some(at) = arena.stranger(from, place - from, &[arena::CANARY], from) {
                    wrong.push(format!("node {node}: bytes outside all ranges were touched at {at:#x}"));
                }
                if let Some(at) = arena.stranger(place, bytes, &allowed, pattern) {
                    let touched = self.operations[id as usize].touched;
                    let found = arena.word(at);
                    wrong.push(format!(
                        "node {node}: wrong bytes {found:#x} of operation {id} at {at:#x}, seen after its end: {touched:?}"
                    ));
                }
                from = place + bytes;
            }
            wrong.into_iter().for_each(|text| self.fail(text));
        }
        let lost = self.operations.iter().find(|operation| {
            let forgot = self.nodes[operation.from].lost || self.nodes[operation.to].lost;
            operation.notification == "Delivered" && !operation.noted && !forgot
        });
        if let Some(operation) = lost {
            let id = operation.id;
            self.fail(format!("the notification of operation {id} was delivered, and never came"));
        }
    }
}
