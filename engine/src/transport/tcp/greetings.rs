//! The greetings of lanes that this side opens: dials a lane, and waits until the peer welcomes it. The control loop
//! polls the connections. `service` decides what is dialed, and attaches the lanes.

use crate::loss::{Cause, Failure};
use crate::peer::transport::LANE_TOKENS;
use crate::session::greeting::{Greeting, WELCOME_BYTES};
use crate::sys::fd::OwnedFd;
use crate::sys::map::HashMap;
use crate::sys::poller::Poller;
use crate::sys::stream::{Input, Stream};
use crate::sys::tcp;
use crate::types::{LaneId, Monotonic, PeerId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// A lane to dial.
pub struct Dial {
    pub peer: PeerId,
    pub remote: SocketAddr,
    pub key: [u8; 32],
    pub greeting: Greeting,
    pub buffer_bytes: usize,
    /// When the peer must have welcomed the lane.
    pub deadline: Monotonic,
}

/// A lane that was dialed: its peer, its greeting, and its socket once the peer has welcomed it.
pub struct Dialed {
    pub peer: PeerId,
    pub greeting: Greeting,
    pub result: Result<OwnedFd, Failure>,
}

/// A connection whose welcome has not come.
struct Pending {
    dial: Dial,
    stream: Stream,
    seen: Vec<u8>,
}

/// The lanes that were dialed and not welcomed, by the tokens of their connections.
pub struct Greetings {
    poller: Arc<Poller>,
    pending: HashMap<u64, Pending>,
    by_lane: BTreeMap<(PeerId, LaneId), u64>,
    last_token: u64,
}

impl Greetings {
    pub fn new(poller: Arc<Poller>) -> Greetings {
        let (pending, by_lane) = Default::default();
        Greetings { poller, pending, by_lane, last_token: LANE_TOKENS }
    }

    /// Begins to dial a lane, whose greeting follows as soon as the connection stands.
    pub fn dial(&mut self, dial: Dial) -> Result<(), Failure> {
        self.last_token += 1;
        let token = self.last_token;
        let socket = tcp::dial(dial.remote, dial.buffer_bytes);
        let mut stream = socket
            .and_then(|socket| Stream::new(socket, token, &self.poller, true))
            .map_err(|error| Failure::system("connecting", &error))?;
        stream.out().extend_from_slice(&dial.greeting.encode(&dial.key));
        self.by_lane.insert((dial.peer, dial.greeting.lane), token);
        self.pending.insert(token, Pending { dial, stream, seen: Vec::new() });
        Ok(())
    }

    /// Handles an event of a connection. Returns the lane when its dial has ended.
    pub fn event(&mut self, token: u64) -> Option<Dialed> {
        let pending = self.pending.get_mut(&token)?;
        let result = match pending.proceed() {
            Ok(false) => return None,
            Ok(true) => Ok(()),
            Err(failure) => Err(failure),
        };
        let Pending { dial, stream, .. } = self.take(token)?;
        let result = result.map(|()| stream.release());
        Some(Dialed { peer: dial.peer, greeting: dial.greeting, result })
    }

    /// Gives up the peer's lanes that were not welcomed in time. Returns their greetings.
    pub fn expire(&mut self, peer: PeerId, now_ns: Monotonic) -> Vec<Greeting> {
        let is_late = |token: &u64| self.pending.get(token).is_some_and(|it| it.dial.deadline <= now_ns);
        let late: Vec<u64> = self.tokens(peer).filter(is_late).collect();
        late.into_iter().filter_map(|token| Some(self.take(token)?.dial.greeting)).collect()
    }

    /// Returns when to call `expire` next for this peer.
    pub fn next_timer(&self, peer: PeerId) -> Option<Monotonic> {
        self.tokens(peer).filter_map(|token| Some(self.pending.get(&token)?.dial.deadline)).min()
    }

    /// Gives a lane up, if its welcome has not come.
    pub fn give_up(&mut self, peer: PeerId, lane: LaneId) -> Option<Greeting> {
        let token = *self.by_lane.get(&(peer, lane))?;
        Some(self.take(token)?.dial.greeting)
    }

    /// Gives all of the peer's lanes up whose welcome has not come.
    pub fn end(&mut self, peer: PeerId) {
        let tokens: Vec<u64> = self.tokens(peer).collect();
        tokens.into_iter().for_each(|token| drop(self.take(token)));
    }

    fn tokens(&self, peer: PeerId) -> impl Iterator<Item = u64> + '_ {
        self.by_lane
            .range((peer, LaneId::NONE)..)
            .map_while(move |((its, _), token)| (*its == peer).then_some(*token))
    }

    fn take(&mut self, token: u64) -> Option<Pending> {
        let pending = self.pending.remove(&token)?;
        self.by_lane.remove(&(pending.dial.peer, pending.dial.greeting.lane));
        Some(pending)
    }
}

impl Pending {
    /// Sends the greeting and reads the welcome. Returns whether the lane is welcomed.
    fn proceed(&mut self) -> Result<bool, Failure> {
        let read = match self.stream.flush() {
            Ok(()) => self.stream.read(WELCOME_BYTES - self.seen.len()),
            // A socket that is not connected yet blocks or returns ENOTCONN. A refused connection is an error below.
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(Input::Nothing),
            Err(error) => Err(error),
        };
        match read {
            Ok(Input::Bytes(bytes)) => self.seen.extend_from_slice(&bytes),
            Ok(Input::Nothing) => {}
            Ok(Input::End) => return Err(Failure::new(Cause::Closed, "the peer closed the connection")),
            Err(error) => return Err(Failure::system("connecting", &error)),
        }
        let Ok(welcome) = <[u8; WELCOME_BYTES]>::try_from(self.seen.as_slice()) else { return Ok(false) };
        if self.dial.greeting.is_welcome(&self.dial.key, &welcome) {
            Ok(true)
        } else {
            Err(Failure::new(Cause::Forged, "the MAC of the welcome is wrong"))
        }
    }
}

#[cfg(test)]
#[path = "greetings_tests.rs"]
mod tests;
