//! A process that obeys commands: this test binary again, running `role` alone. Each line of input is a command,
//! answered with a line. The process ends with its input.

use crate::common::data::pattern;
use crate::common::{eventually, PATIENCE};
use crate::program::{Bytes, Program};
use ferry::notify::{EventBody, Queue, WHAT_NOTIFICATIONS};
use ferry::types::{Location, MemoryKind, Op, PeerId, RegionId, Request};
use ferry::{Config, Deadline, Engine, RegionOptions, Transfer, TransferOptions};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The environment variables that the parent sets.
pub const LIBRARIES: &str = "DEVICES_LIBRARIES";
pub const FOLDER: &str = "DEVICES_FOLDER";

struct Place {
    /// None: the memory was freed under its region.
    bytes: Option<Bytes>,
    region: RegionId,
}

struct Role {
    // Dropped in this order.
    transfers: Vec<Transfer>,
    notifications: Option<Arc<Queue>>,
    engine: Option<Engine>,
    places: Vec<Place>,
    program: Program,
    dumps: u32,
}

/// Not a test: the other process of a test.
#[test]
#[ignore = "the other process of a test"]
fn role() {
    let Ok(libraries) = std::env::var(LIBRARIES) else { return };
    let (cuda, ascend) = libraries.split_once(' ').unwrap();
    let program = Program::new(cuda, ascend);
    let mut role =
        Role { transfers: vec![], notifications: None, engine: None, places: vec![], program, dumps: 0 };
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = role.obey(&words).unwrap_or_else(|error| format!("{error} ({})", error.vendor_error));
        println!("@@ {answer}");
        std::io::stdout().flush().unwrap();
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

fn op(word: &str) -> Op {
    [Op::Write, Op::Read].into_iter().find(|op| format!("{op:?}") == word).unwrap()
}

/// Parses local:remote:length:region.
fn requests(words: &[&str]) -> Vec<Request> {
    let one = |word: &&str| {
        let numbers: Vec<u64> = word.split(':').map(number).collect();
        let [local, remote, length, remote_region] = numbers[..] else { panic!("{word}") };
        Request { local, remote, length, remote_region: RegionId::from_raw(remote_region) }
    };
    words.iter().map(one).collect()
}

fn options(word: &str) -> TransferOptions<'_> {
    let mut options = TransferOptions { deadline: Deadline::After(PATIENCE), ..TransferOptions::default() };
    for flag in word.split(',') {
        match flag.split_once('=').unwrap_or((flag, "")) {
            ("-", _) => {}
            ("ordered", _) => options.ordered = true,
            ("checksum", _) => options.checksum = true,
            ("apart", _) => options.no_coalesce = true,
            ("deadline", ms) => options.deadline = Deadline::After(Duration::from_millis(number(ms))),
            ("notify", text) => options.notify = Some(text.as_bytes()),
            other => panic!("{other:?}"),
        }
    }
    options
}

impl Role {
    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    fn transfer(&self, word: &str) -> &Transfer {
        &self.transfers[number(word) as usize]
    }

    /// Writes the bytes of a memory into a file.
    fn dump(&mut self, index: &str) -> String {
        let bytes = self.places[number(index) as usize].bytes.as_ref().unwrap().read();
        self.dumps += 1;
        let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
        let path = folder.join(format!("dump-{}-{}", std::process::id(), self.dumps));
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().into()
    }

    fn register(
        &mut self,
        bytes: Bytes,
        length: u64,
        location: Option<Location>,
    ) -> ferry::status::Result<String> {
        let options = RegionOptions { location, ..RegionOptions::default() };
        let address = bytes.address();
        // SAFETY: the memory outlives the engine, except where a test frees it early to see the effect; the library
        // then refuses access to freed device memory.
        let region = unsafe { self.engine().register(address as *mut u8, length as usize, &options) }?;
        self.places.push(Place { bytes: Some(bytes), region });
        Ok(format!("{region} {address}"))
    }

    fn obey(&mut self, words: &[&str]) -> ferry::status::Result<String> {
        let ok = || Ok("OK".to_owned());
        match *words {
            ["open", ref settings @ ..] => {
                let mut config = Config::new()?;
                for (key, value) in settings.iter().map(|setting| setting.split_once('=').unwrap()) {
                    config.set(key, value)?;
                }
                let engine = Engine::open(config)?;
                self.notifications = Some(engine.queue(WHAT_NOTIFICATIONS, 256)?);
                let address = engine.address().to_owned();
                self.engine = Some(engine);
                Ok(address)
            }
            ["connect", address] => Ok(self.engine().connect(address, Some(PATIENCE))?.to_string()),
            ["own"] => Ok(self.engine().own_peer()?.to_string()),
            ["knows", peer, region] => {
                let (peer, region) = (number(peer), RegionId::from_raw(number(region)));
                eventually("the region is announced", || {
                    self.engine()
                        .peer_regions(PeerId::from_raw(peer))
                        .unwrap()
                        .iter()
                        .any(|known| known.region == region)
                });
                ok()
            }
            ["place", "shared", bytes] => {
                let memory = self.engine().alloc(number(bytes) as usize, &RegionOptions::default())?;
                let (region, address) = (memory.region(), memory.address());
                self.places.push(Place { bytes: Some(Bytes::Shared(memory)), region });
                Ok(format!("{region} {address}"))
            }
            ["place", place, bytes] => {
                let memory = self.program.allocate(place, number(bytes) as usize)?;
                self.register(memory, number(bytes), None)
            }
            // Registers memory with a stated place.
            ["hint", place, kind, device] => {
                let memory = self.program.allocate(place, 4096)?;
                let kind =
                    [MemoryKind::Cuda, MemoryKind::Ascend].into_iter().find(|it| it.name() == kind).unwrap();
                self.register(memory, 4096, Some(Location { kind, device: number(device) as i32 }))
            }
            ["fill", index, tag, bytes] => {
                let memory = self.places[number(index) as usize].bytes.as_ref().unwrap();
                memory.write(&pattern(number(tag) as u32, number(bytes) as usize));
                ok()
            }
            ["dump", index] => Ok(self.dump(index)),
            ["free", index] => {
                self.places[number(index) as usize].bytes = None;
                ok()
            }
            ["unregister", index, ref timeout_ms @ ..] => {
                let region = self.places[number(index) as usize].region;
                let timeout = timeout_ms.first().map_or(PATIENCE, |ms| Duration::from_millis(number(ms)));
                self.engine().unregister(region, Some(timeout))?;
                ok()
            }
            ["submit", kind, peer, flags, ref list @ ..] => {
                let (list, options) = (requests(list), options(flags));
                let transfer =
                    self.engine().submit(PeerId::from_raw(number(peer)), op(kind), &list, &options)?;
                self.transfers.push(transfer);
                Ok((self.transfers.len() - 1).to_string())
            }
            ["cancel", transfer] => {
                self.transfer(transfer).cancel()?;
                ok()
            }
            ["state", transfer] => Ok(format!("{:?}", self.transfer(transfer).state())),
            ["wait", transfer] => {
                let transfer = self.transfer(transfer);
                let result = transfer.wait(Some(PATIENCE))?;
                let mut requests: Vec<_> =
                    transfer.results().iter().map(|it| (it.status, it.vendor_error)).collect();
                requests.dedup();
                let requests: Vec<_> =
                    requests.iter().map(|(status, code)| format!("{status}/{code}")).collect();
                let (state, status, fence) = (result.state, result.status, result.fence);
                let (bytes, transport) = (result.bytes_confirmed, result.transport.name());
                Ok(format!("{state:?} {status} {fence:?} {bytes} {} {transport}", requests.join(",")))
            }
            // Answers the next notification's text, and the content of the memory at that moment.
            ["notified", index] => {
                let queue = self.notifications.clone().unwrap();
                let mut events = Vec::new();
                eventually("a notification comes", || queue.drain(&mut events, 1) == 1);
                let EventBody::Notification { bytes, .. } = &events[0].body else { panic!("{events:?}") };
                let text = String::from_utf8_lossy(bytes).into_owned();
                Ok(format!("{text} {}", self.dump(index)))
            }
            ["knob", library, knob] => {
                self.program.set(library, knob, "");
                ok()
            }
            ["knob", library, knob, value] => {
                self.program.set(library, knob, value);
                ok()
            }
            ["release", library] => {
                self.program.release(library);
                ok()
            }
            ["calls", library, function] => Ok(self.program.calls(library, function).to_string()),
            // Answers the state of a path to the peer.
            ["way", peer, transport] => {
                let paths = self.engine().peer_paths(PeerId::from_raw(number(peer)))?;
                Ok(paths.into_iter().find(|path| path.transport.name() == transport).unwrap().why)
            }
            ["close"] => {
                self.transfers.clear();
                self.engine().close(Some(PATIENCE))?;
                ok()
            }
            ref other => panic!("no such command: {other:?}"),
        }
    }
}
