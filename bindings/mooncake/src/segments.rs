//! Segments: engines, which transfers name by numbers. A segment is opened by its session, "host:port". Its number then
//! means that session, whichever engine answers there: ferry connects again if the peer is lost.

use crate::call::{lock, negative};
use crate::engine::Engine;
use crate::log;
use crate::pointers::{opened, text};
use crate::types::LOCAL_SEGMENT;
use ferry::status::Result;
use ferry::types::PeerId;
use ferry::{Error, Status};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The largest number of segments of one engine.
const SEGMENTS_MAX: usize = 65_536;
const CONNECT: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(5);

/// The segments of one engine. Any thread may use them.
#[derive(Default)]
pub struct Segments(Mutex<Known>);

#[derive(Default)]
struct Known {
    all: BTreeMap<i32, Segment>,
    numbers: BTreeMap<Arc<str>, i32>,
    /// The last number that was used.
    last: i32,
}

struct Segment {
    session: Arc<str>,
    peer: PeerId,
}

impl Segments {
    /// Returns the segment's number; connects if the segment is new.
    fn open(&self, engine: &ferry::Engine, session: &str) -> Result<i32> {
        if let Some(known) = lock(&self.0).numbers.get(session) {
            return Ok(*known);
        }
        let peer = connect(engine, session)?;
        let mut known = lock(&self.0);
        if let Some(number) = known.numbers.get(session) {
            return Ok(*number);
        }
        if known.all.len() >= SEGMENTS_MAX || known.last == i32::MAX {
            return Err(Error::new(Status::Limit, format!("more than {SEGMENTS_MAX} segments")));
        }
        known.last += 1;
        let (number, session) = (known.last, Arc::<str>::from(session));
        known.numbers.insert(session.clone(), number);
        known.all.insert(number, Segment { session, peer });
        Ok(number)
    }

    /// Returns the segment's peer; connects again if the peer was lost.
    pub fn peer(&self, engine: &ferry::Engine, number: i32) -> Result<PeerId> {
        let (session, peer) = self.get(number)?;
        let lost = engine.peer_info(peer).map_or(true, |info| info.state == ferry::PeerState::Lost);
        if !lost {
            return Ok(peer);
        }
        let peer = connect(engine, &session)?;
        if let Some(segment) = lock(&self.0).all.get_mut(&number) {
            segment.peer = peer;
        }
        Ok(peer)
    }

    fn get(&self, number: i32) -> Result<(Arc<str>, PeerId)> {
        if number == LOCAL_SEGMENT {
            return Err(Error::invalid("segment 0 is the engine's own memory, which is no target here"));
        }
        let known = lock(&self.0);
        let found = known.all.get(&number).map(|segment| (segment.session.clone(), segment.peer));
        found.ok_or_else(|| Error::invalid(format!("there is no segment {number}")))
    }

    fn forget(&self, session: &str) {
        let mut known = lock(&self.0);
        if let Some(number) = known.numbers.remove(session) {
            known.all.remove(&number);
        }
    }

    /// Lists number, session and peer of each segment.
    pub fn list(&self) -> Vec<(i32, Arc<str>, PeerId)> {
        let known = lock(&self.0);
        known.all.iter().map(|(number, segment)| (*number, segment.session.clone(), segment.peer)).collect()
    }
}

fn connect(engine: &ferry::Engine, session: &str) -> Result<PeerId> {
    let peer = engine.connect(session, Some(CONNECT))?;
    for path in engine.peer_paths(peer)? {
        let used = if path.chosen { "is used" } else { "is not" };
        log::line(format_args!("{session}: {} {used}: {}", path.transport.name(), path.why));
    }
    Ok(peer)
}

/// Returns a segment's session without its leading slashes.
///
/// # Safety
/// `name` is NULL or a terminated string that stays for `'a`.
unsafe fn session<'a>(name: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    let session = unsafe { text(name, "segment_name") }?.trim_start_matches('/');
    if session.is_empty() {
        return Err(Error::invalid("segment_name is empty"));
    }
    Ok(session)
}

/// Returns a number; a negative number is a failure.
fn number(name: &str, body: impl FnOnce() -> Result<i32>) -> i32 {
    let mut opened = 0;
    let code = negative(name, || body().map(|number| opened = number));
    if code == 0 {
        opened
    } else {
        code
    }
}

#[no_mangle]
pub unsafe extern "C" fn openSegment(engine: Option<&Engine>, segment_name: *const c_char) -> i32 {
    number("openSegment", || {
        let engine = opened(engine)?;
        // SAFETY: NULL or a terminated string that the caller keeps for the length of the call.
        engine.segments.open(&engine.ferry, unsafe { session(segment_name) }?)
    })
}

/// Opens a segment whose peer must answer now.
#[no_mangle]
pub unsafe extern "C" fn openSegmentNoCache(engine: Option<&Engine>, segment_name: *const c_char) -> i32 {
    number("openSegmentNoCache", || {
        let engine = opened(engine)?;
        // SAFETY: NULL or a terminated string that the caller keeps for the length of the call.
        let number = engine.segments.open(&engine.ferry, unsafe { session(segment_name) }?)?;
        let peer = engine.segments.peer(&engine.ferry, number)?;
        engine.ferry.probe(peer, Some(PROBE)).map(|_| number)
    })
}

/// Checks the number and keeps the connection: other code may have opened the same segment.
#[no_mangle]
pub extern "C" fn closeSegment(engine: Option<&Engine>, segment_id: i32) -> c_int {
    negative("closeSegment", || {
        let engine = opened(engine)?;
        match segment_id {
            LOCAL_SEGMENT => Ok(()),
            number => engine.segments.get(number).map(|_| ()),
        }
    })
}

/// Forgets the segment's number. Transfers in progress continue.
#[no_mangle]
pub unsafe extern "C" fn removeLocalSegment(engine: Option<&Engine>, segment_name: *const c_char) -> c_int {
    negative("removeLocalSegment", || {
        let engine = opened(engine)?;
        // SAFETY: NULL or a terminated string that the caller keeps for the length of the call.
        engine.segments.forget(unsafe { session(segment_name) }?);
        Ok(())
    })
}

/// Does nothing: peers announce their regions by themselves.
#[no_mangle]
pub extern "C" fn syncSegmentCache(engine: Option<&Engine>) -> c_int {
    negative("syncSegmentCache", || opened(engine).map(|_| ()))
}

/// Does nothing: `openSegment` makes the connections.
#[no_mangle]
pub unsafe extern "C" fn warmupEfaSegment(engine: Option<&Engine>, segment_name: *const c_char) -> c_int {
    negative("warmupEfaSegment", || {
        opened(engine)?;
        // SAFETY: NULL or a terminated string that the caller keeps for the length of the call.
        unsafe { session(segment_name) }.map(|_| ())
    })
}
