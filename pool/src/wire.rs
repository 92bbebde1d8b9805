//! The messages of two nodes: little-endian, in the notifications of channel 2. `ferry_kv::messages` cuts a long one.
//!
//! | kind | message | to | fields behind the kind |
//! |---|---|---|---|
//! | 1 | HELLO | any node | version u16, scheme u64, incarnation u64, member u8, load (as LOAD), cluster, name |
//! | 2 | LOAD | any node | capacity u64, free u64, draining u8 |
//! | 3 | GET | owner | request u64, keys (digest, segments) |
//! | 4 | PUT | owner | request u64, keys (digest, whether it has a checksum, checksum u64, segments) |
//! | 5 | ANSWER | asker | request u64, answers (outcome u8, length u64, checksum u64) |
//! | 6 | FIND | index member | request u64, view u64, fingerprints |
//! | 7 | FOUND | asker | request u64, owners (node u64), for each fingerprint: 0 unknown, 1 no, 2 + place of the owner |
//! | 8 | HAVE | owner | request u64, digests: answered by ANSWER, from what the owner holds itself |
//! | 9 | ANNOUNCE | index member | number u64, fingerprints that came, fingerprints that went |
//! | 10 | ANNOUNCED | owner | number u64 |
//! | 11 | INVENTORY | index member | inventory u64, part u32, last u8, view u64, since u8 and view u64, fingerprints |
//! | 12 | REMOVE | owner | request u64, removal u64, nodes that are asked (u64), digests: who sees further nodes passes it on |
//! | 13 | TOUCH | owner | fingerprints, the least valuable first |
//! | 14 | PING, 15 PONG | any node | nothing |
//! | 16 | AGAIN | owner | nothing: the inventory is of no use to the member, and is to begin again |
//! | 17 | LEAVE | any node | nothing: the node closes, and what it holds is lost |
//! | 19 | REFUSED | any node | why the sender of a HELLO cannot be a node of this cluster |
//! | 18 | DOUBT | owner | digests whose bytes did not match their checksum where they arrived |
//! | 20 | ASK | any node | request u64, what the node is asked about itself (`question`) |
//! | 21 | TOLD | asker | request u64, the answer (`question`) |
//!
//! A *view* is a hash of the members that a node sees. Two nodes of different views disagree on which members have the
//! index of a key, so neither tells the other that a key is nowhere.

use ferry::status::{Error, Result};
use ferry::Status;
use ferry_kv::messages::{malformed, Reader, Writer};

use crate::key::Digest;
use crate::limits::{KEYS_OF_MESSAGE_MAX, KEYS_OF_REQUEST_MAX, SEGMENTS_OF_MESSAGE_MAX};
use crate::outcome::Outcome;

mod question;

pub use question::{Cursor, Listed, Question, Told};

pub const VERSION: u16 = 3;
pub const FOUND_UNKNOWN: u8 = 0;
pub const FOUND_NO: u8 = 1;
/// The answer with this number or a higher one names an owner.
pub const FOUND_OWNER: u8 = 2;

/// A piece of a caller's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub address: u64,
    pub bytes: u64,
    /// The handle that the caller's engine gave the region.
    pub region: u64,
}

/// A key of a GET or PUT, and the memory of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub digest: Digest,
    pub checksum: Option<u64>,
    pub segments: Vec<Segment>,
}

impl Wanted {
    pub fn bytes(&self) -> u64 {
        self.segments.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.bytes))
    }
}

/// How one key of a request ended at its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub outcome: Outcome,
    pub length: u64,
    pub checksum: u64,
}

impl Answer {
    pub fn of(outcome: Outcome) -> Answer {
        Answer { outcome, length: 0, checksum: 0 }
    }
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What hashes how: nodes of different schemes never find each other's keys.
    pub scheme: u64,
    pub incarnation: u64,
    /// It lends memory.
    pub is_member: bool,
    pub load: Load,
    pub cluster: String,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Load {
    pub capacity: u64,
    pub free: u64,
    /// The node is being taken out: it takes no puts.
    pub is_draining: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Hello(Hello),
    Load(Load),
    Get {
        request: u64,
        keys: Vec<Wanted>,
    },
    Put {
        request: u64,
        keys: Vec<Wanted>,
    },
    Answer {
        request: u64,
        answers: Vec<Answer>,
    },
    Find {
        request: u64,
        view: u64,
        fingerprints: Vec<u64>,
    },
    Found {
        request: u64,
        owners: Vec<u64>,
        found: Vec<u8>,
    },
    Have {
        request: u64,
        digests: Vec<Digest>,
    },
    Announce {
        number: u64,
        came: Vec<u64>,
        went: Vec<u64>,
    },
    Announced {
        number: u64,
    },
    Inventory {
        inventory: u64,
        number: u32,
        is_last: bool,
        view: u64,
        since: Option<u64>,
        fingerprints: Vec<u64>,
    },
    Remove {
        request: u64,
        removal: u64,
        asked: Vec<u64>,
        digests: Vec<Digest>,
    },
    Touch(Vec<u64>),
    Ping,
    Pong,
    Again,
    Leave,
    Doubt(Vec<Digest>),
    Refused(String),
    Ask {
        request: u64,
        question: Question,
    },
    Told {
        request: u64,
        told: Told,
    },
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Message::Hello(hello) => {
                out.byte(1)
                    .u16(VERSION)
                    .u64(hello.scheme)
                    .u64(hello.incarnation)
                    .byte(hello.is_member.into());
                write_load(&mut out, hello.load);
                out.text(&hello.cluster).text(&hello.name);
            }
            Message::Load(load) => write_load(out.byte(2), *load),
            Message::Get { request, keys } => wanted(out.byte(3).u64(*request), keys),
            Message::Put { request, keys } => wanted(out.byte(4).u64(*request), keys),
            Message::Answer { request, answers } => {
                out.byte(5).u64(*request).u32(answers.len() as u32);
                for answer in answers {
                    out.byte(answer.outcome as u8).u64(answer.length).u64(answer.checksum);
                }
            }
            Message::Find { request, view, fingerprints } => {
                numbers(out.byte(6).u64(*request).u64(*view), fingerprints);
            }
            Message::Found { request, owners, found } => {
                out.byte(7).u64(*request);
                numbers(&mut out, owners);
                out.u32(found.len() as u32).0.extend(found);
            }
            Message::Have { request, digests } => many(out.byte(8).u64(*request), digests),
            Message::Announce { number, came, went } => {
                out.byte(9).u64(*number);
                numbers(&mut out, came);
                numbers(&mut out, went);
            }
            Message::Announced { number } => {
                out.byte(10).u64(*number);
            }
            Message::Inventory { inventory, number, is_last, view, since, fingerprints } => {
                out.byte(11).u64(*inventory).u32(*number).byte((*is_last).into()).u64(*view);
                optional(&mut out, *since);
                numbers(&mut out, fingerprints);
            }
            Message::Remove { request, removal, asked, digests } => {
                out.byte(12).u64(*request).u64(*removal);
                numbers(&mut out, asked);
                many(&mut out, digests);
            }
            Message::Touch(fingerprints) => numbers(out.byte(13), fingerprints),
            Message::Ping => bare(&mut out, 14),
            Message::Pong => bare(&mut out, 15),
            Message::Again => bare(&mut out, 16),
            Message::Leave => bare(&mut out, 17),
            Message::Doubt(digests) => many(out.byte(18), digests),
            Message::Refused(why) => {
                out.byte(19).text(why);
            }
            Message::Ask { request, question } => question.encode(out.byte(20).u64(*request)),
            Message::Told { request, told } => told.encode(out.byte(21).u64(*request)),
        }
        out.0
    }

    /// VERSION for a HELLO of another version, INVALID for anything else that is no message.
    pub fn decode(bytes: &[u8]) -> Result<Message> {
        let mut input = Reader(bytes);
        let message = match input.byte()? {
            1 => Message::Hello(hello(&mut input)?),
            2 => Message::Load(load(&mut input)?),
            3 => Message::Get { request: input.u64()?, keys: read_wanted(&mut input)? },
            4 => Message::Put { request: input.u64()?, keys: read_wanted(&mut input)? },
            5 => {
                let request = input.u64()?;
                let count = input.count(KEYS_OF_MESSAGE_MAX, 17)?;
                Message::Answer {
                    request,
                    answers: (0..count).map(|_| answer(&mut input)).collect::<Result<_>>()?,
                }
            }
            6 => Message::Find {
                request: input.u64()?,
                view: input.u64()?,
                fingerprints: read_numbers(&mut input)?,
            },
            7 => {
                let (request, owners) = (input.u64()?, read_numbers(&mut input)?);
                let count = input.count(KEYS_OF_MESSAGE_MAX, 1)?;
                let found: Vec<u8> = (0..count).map(|_| input.byte()).collect::<Result<_>>()?;
                let is_known = |at: &u8| usize::from(*at) < owners.len() + usize::from(FOUND_OWNER);
                if !found.iter().all(is_known) {
                    return Err(malformed("it names an owner that it does not list"));
                }
                Message::Found { request, owners, found }
            }
            8 => Message::Have { request: input.u64()?, digests: read_digests(&mut input)? },
            9 => Message::Announce {
                number: input.u64()?,
                came: read_numbers(&mut input)?,
                went: read_numbers(&mut input)?,
            },
            10 => Message::Announced { number: input.u64()? },
            11 => Message::Inventory {
                inventory: input.u64()?,
                number: input.u32()?,
                is_last: input.flag()?,
                view: input.u64()?,
                since: read_optional(&mut input)?,
                fingerprints: read_numbers(&mut input)?,
            },
            12 => Message::Remove {
                request: input.u64()?,
                removal: input.u64()?,
                asked: read_numbers(&mut input)?,
                digests: read_digests(&mut input)?,
            },
            13 => Message::Touch(read_numbers(&mut input)?),
            14 => Message::Ping,
            15 => Message::Pong,
            16 => Message::Again,
            17 => Message::Leave,
            19 => Message::Refused(input.text()?),
            18 => Message::Doubt(read_digests(&mut input)?),
            20 => Message::Ask { request: input.u64()?, question: Question::decode(&mut input)? },
            21 => Message::Told { request: input.u64()?, told: Told::decode(&mut input)? },
            kind => return Err(malformed(&format!("kind {kind} is unknown"))),
        };
        input.end()?;
        Ok(message)
    }
}

/// A message that is its kind alone.
fn bare(out: &mut Writer, kind: u8) {
    out.byte(kind);
}

fn wanted(out: &mut Writer, keys: &[Wanted]) {
    out.u32(keys.len() as u32);
    for key in keys {
        out.0.extend(key.digest.0);
        optional(out, key.checksum);
        out.u32(key.segments.len() as u32);
        for segment in &key.segments {
            out.u64(segment.address).u64(segment.bytes).u64(segment.region);
        }
    }
}

fn optional(out: &mut Writer, number: Option<u64>) {
    out.byte(number.is_some().into()).u64(number.unwrap_or(0));
}

fn numbers(out: &mut Writer, list: &[u64]) {
    out.u32(list.len() as u32);
    for number in list {
        out.u64(*number);
    }
}

fn many(out: &mut Writer, digests: &[Digest]) {
    out.u32(digests.len() as u32);
    digests.iter().for_each(|digest| out.0.extend(digest.0));
}

fn hello(input: &mut Reader) -> Result<Hello> {
    let version = input.u16()?;
    if version != VERSION {
        let text = format!("the peer's pool speaks version {version}, this one {VERSION}");
        return Err(Error::new(Status::Version, text));
    }
    Ok(Hello {
        scheme: input.u64()?,
        incarnation: input.u64()?,
        is_member: input.flag()?,
        load: load(input)?,
        cluster: input.text()?,
        name: input.text()?,
    })
}

fn write_load(out: &mut Writer, load: Load) {
    out.u64(load.capacity).u64(load.free).byte(load.is_draining.into());
}

fn load(input: &mut Reader) -> Result<Load> {
    Ok(Load { capacity: input.u64()?, free: input.u64()?, is_draining: input.flag()? })
}

fn answer(input: &mut Reader) -> Result<Answer> {
    let number = input.byte()?;
    let outcome = Outcome::from_number(number.into());
    let outcome = outcome.ok_or_else(|| malformed(&format!("outcome {number} is unknown")))?;
    Ok(Answer { outcome, length: input.u64()?, checksum: input.u64()? })
}

fn read_wanted(input: &mut Reader) -> Result<Vec<Wanted>> {
    let mut segments_left = SEGMENTS_OF_MESSAGE_MAX;
    let mut keys = Vec::new();
    for _ in 0..input.count(KEYS_OF_REQUEST_MAX, 45)? {
        let digest = Digest(input.take()?);
        let checksum = read_optional(input)?;
        let count = input.count(segments_left, 24)?;
        segments_left -= count;
        let segment = |input: &mut Reader| {
            Ok(Segment { address: input.u64()?, bytes: input.u64()?, region: input.u64()? })
        };
        let segments = (0..count).map(|_| segment(input)).collect::<Result<_>>()?;
        keys.push(Wanted { digest, checksum, segments });
    }
    Ok(keys)
}

fn read_optional(input: &mut Reader) -> Result<Option<u64>> {
    let is_some = input.flag()?;
    let number = input.u64()?;
    Ok(is_some.then_some(number))
}

fn read_numbers(input: &mut Reader) -> Result<Vec<u64>> {
    let count = input.count(KEYS_OF_MESSAGE_MAX, 8)?;
    (0..count).map(|_| input.u64()).collect()
}

fn read_digests(input: &mut Reader) -> Result<Vec<Digest>> {
    let count = input.count(KEYS_OF_MESSAGE_MAX, 32)?;
    (0..count).map(|_| input.take().map(Digest)).collect()
}

#[cfg(test)]
mod tests;
