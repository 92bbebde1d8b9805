//! Look-ups of the names that callers of `connect` give, each on a thread of its own: a name server may be silent for
//! longer than the callers wait, and nothing can end a look-up. Callers of one address share a look-up, whose result
//! goes to `dial`. `callers` ends the wait of each caller in time.

use super::callers::UNANSWERED;
use super::conn::Target;
use super::Control;
use crate::command::Command;
use crate::limits::LOOK_UPS_MAX;
use crate::status::Error;
use crate::sys::map::{Entry, HashMap};
use crate::sys::{names, thread};
use crate::types::Monotonic;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

const ASKED: &str = "no name server has answered in time";
const QUEUED: &str =
    "the look-up of the name has not begun in time, because name servers leave others unanswered";
/// The list of look-ups that have not begun is not searched for abandoned entries while it is this short.
const QUEUE_SHORT: usize = 64;

/// The callers of one address.
struct LookUp {
    callers: Vec<u64>,
    /// As in `Target::New`.
    asked: u64,
    deadline: Monotonic,
    has_begun: bool,
}

#[derive(Default)]
pub struct LookUps {
    by_address: HashMap<String, LookUp>,
    /// Addresses whose look-up has not begun.
    queue: VecDeque<String>,
    /// Threads that look up names.
    running: usize,
    /// The length of the queue at which its abandoned entries are dropped.
    crowded: usize,
}

impl Control {
    /// Looks up the address for a caller; `name_found` continues.
    pub(super) fn look_up(&mut self, address: String, deadline: Monotonic, caller: u64) {
        let asked = self.fenced.count();
        let new = LookUp { callers: Vec::new(), asked, deadline, has_begun: false };
        let look_up = match self.look_ups.by_address.entry(address) {
            Entry::Occupied(begun) => begun.into_mut(),
            Entry::Vacant(place) => {
                self.look_ups.queue.push_back(place.key().clone());
                place.insert(new)
            }
        };
        look_up.callers.push(caller);
        (look_up.asked, look_up.deadline) = (asked, look_up.deadline.max(deadline));
        self.callers.tell(caller, if look_up.has_begun { ASKED } else { QUEUED });
        self.drop_abandoned();
        self.begin_look_ups();
    }

    fn begin_look_ups(&mut self) {
        while self.look_ups.running < LOOK_UPS_MAX {
            let Some(address) = self.look_ups.queue.pop_front() else { return };
            if !self.is_awaited(&address) {
                self.look_ups.by_address.remove(&address);
                continue;
            }
            let commands = Arc::downgrade(&self.context.commands);
            let asked = address.clone();
            // The thread outlives the engine if it must, so the engine does not count the thread.
            let started = thread::spawn_outside("ferry-names", move || {
                let found = names::look_up(&asked);
                // If this fails, the engine is gone.
                if let Some(commands) = commands.upgrade() {
                    commands.push(Command::NameFound { address: asked, found });
                }
            });
            let Some(look_up) = self.look_ups.by_address.get_mut(&address) else { continue };
            match started {
                Ok(_) => {
                    self.look_ups.running += 1;
                    look_up.has_begun = true;
                    look_up.callers.iter().for_each(|caller| self.callers.tell(*caller, ASKED));
                }
                Err(error) => {
                    let callers = self.look_ups.by_address.remove(&address).map(|it| it.callers);
                    let error = thread::not_started("a thread that looks up a name", &error);
                    self.callers.fail(callers.unwrap_or_default(), &error);
                }
            }
        }
    }

    /// Dials for the callers that still wait for a look-up.
    pub(super) fn name_found(&mut self, address: String, found: io::Result<Vec<SocketAddr>>) {
        self.look_ups.running -= 1;
        self.begin_look_ups();
        let begun = self.look_ups.by_address.remove(&address);
        let Some(LookUp { mut callers, asked, deadline, .. }) = begun else { return };
        callers.retain(|caller| self.callers.has(*caller));
        if callers.is_empty() {
            return;
        }
        callers.iter().for_each(|caller| self.callers.tell(*caller, UNANSWERED));
        match found {
            Ok(found) => self.dial(Target::New { address, asked, waiting: callers }, found, deadline),
            Err(error) => {
                let error = Error::unreachable(format!("{address}: the name was not found"), &error);
                self.callers.fail(callers, &error);
            }
        }
    }

    fn is_awaited(&self, address: &str) -> bool {
        let look_up = self.look_ups.by_address.get(address);
        look_up.is_some_and(|look_up| look_up.callers.iter().any(|caller| self.callers.has(*caller)))
    }

    /// Drops queued look-ups whose callers have stopped waiting, each time the queue has doubled since the last search.
    /// So the search costs each new entry little.
    fn drop_abandoned(&mut self) {
        if self.look_ups.queue.len() < self.look_ups.crowded.max(QUEUE_SHORT) {
            return;
        }
        let mut queue = std::mem::take(&mut self.look_ups.queue);
        queue.retain(|address| {
            let is_awaited = self.is_awaited(address);
            if !is_awaited {
                self.look_ups.by_address.remove(address);
            }
            is_awaited
        });
        self.look_ups.crowded = 2 * queue.len();
        self.look_ups.queue = queue;
    }
}
