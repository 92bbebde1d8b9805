//! Look-ups of the names that callers of `connect` give, each on a thread of its own: a name server may be silent for
//! longer than the callers wait, and nothing can end a look-up. Callers of one address share a look-up, whose result
//! goes to `dial`. `callers` ends the wait of each caller in time.

use super::callers::{Callers, UNANSWERED};
use super::Target;
use crate::command::{Command, Commands};
use crate::limits::LOOK_UPS_MAX;
use crate::status::Error;
use crate::sys::map::{Entry, HashMap};
use crate::sys::{names, thread};
use crate::types::Monotonic;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

const ASKED: &str = "no name server has answered";
const QUEUED: &str = "name servers leave others unanswered, so the look-up of the name has not begun";
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

/// The dial to which a look-up leads.
pub struct Found {
    pub target: Target,
    pub addresses: Vec<SocketAddr>,
    pub deadline: Monotonic,
}

pub struct LookUps {
    /// Weak, because the threads of look-ups may outlive the engine.
    commands: Weak<Commands>,
    by_address: HashMap<String, LookUp>,
    /// Addresses whose look-up has not begun.
    queue: VecDeque<String>,
    /// Threads that look up names.
    running: usize,
    /// The length of the queue at which its abandoned entries are dropped.
    crowded: usize,
}

impl LookUps {
    pub fn new(commands: &Arc<Commands>) -> LookUps {
        let (by_address, queue) = Default::default();
        LookUps { commands: Arc::downgrade(commands), by_address, queue, running: 0, crowded: 0 }
    }

    /// Looks up the address for a caller, which waits until `deadline`; `end` continues. `asked`: as in `Target::New`.
    pub fn add(
        &mut self,
        callers: &mut Callers,
        address: String,
        (deadline, caller, asked): (Monotonic, u64, u64),
    ) {
        let new = LookUp { callers: Vec::new(), asked, deadline, has_begun: false };
        let look_up = match self.by_address.entry(address) {
            Entry::Occupied(begun) => begun.into_mut(),
            Entry::Vacant(place) => {
                self.queue.push_back(place.key().clone());
                place.insert(new)
            }
        };
        look_up.callers.push(caller);
        (look_up.asked, look_up.deadline) = (asked, look_up.deadline.max(deadline));
        callers.tell(caller, if look_up.has_begun { ASKED } else { QUEUED });
        self.drop_abandoned(callers);
        self.begin(callers);
    }

    fn begin(&mut self, callers: &mut Callers) {
        while self.running < LOOK_UPS_MAX {
            let Some(address) = self.queue.pop_front() else { return };
            if !self.is_awaited(callers, &address) {
                self.by_address.remove(&address);
                continue;
            }
            let (commands, asked) = (self.commands.clone(), address.clone());
            // The thread outlives the engine if it must, so the engine does not count the thread.
            let started = thread::spawn_outside("ferry-names", move || {
                let found = names::look_up(&asked);
                // If this fails, the engine is gone.
                if let Some(commands) = commands.upgrade() {
                    commands.push(Command::NameFound { address: asked, found });
                }
            });
            let Some(look_up) = self.by_address.get_mut(&address) else { continue };
            match started {
                Ok(_) => {
                    self.running += 1;
                    look_up.has_begun = true;
                    look_up.callers.iter().for_each(|caller| callers.tell(*caller, ASKED));
                }
                Err(error) => {
                    let waiting = self.by_address.remove(&address).map(|it| it.callers);
                    let error = thread::not_started("a thread that looks up a name", &error);
                    callers.fail(waiting.unwrap_or_default(), &error);
                }
            }
        }
    }

    /// Ends a look-up. Returns the dial for the callers that still wait for it.
    pub fn end(
        &mut self,
        callers: &mut Callers,
        address: String,
        found: io::Result<Vec<SocketAddr>>,
    ) -> Option<Found> {
        self.running -= 1;
        self.begin(callers);
        let LookUp { callers: mut waiting, asked, deadline, .. } = self.by_address.remove(&address)?;
        waiting.retain(|caller| callers.has(*caller));
        if waiting.is_empty() {
            return None;
        }
        waiting.iter().for_each(|caller| callers.tell(*caller, UNANSWERED));
        match found {
            Ok(addresses) => {
                Some(Found { target: Target::New { address, asked, waiting }, addresses, deadline })
            }
            Err(error) => {
                let error = Error::unreachable(format!("{address}: the name was not found"), &error);
                callers.fail(waiting, &error);
                None
            }
        }
    }

    fn is_awaited(&self, callers: &Callers, address: &str) -> bool {
        let look_up = self.by_address.get(address);
        look_up.is_some_and(|look_up| look_up.callers.iter().any(|caller| callers.has(*caller)))
    }

    /// Drops queued look-ups whose callers have stopped waiting, each time the queue has doubled since the last search.
    /// So the search costs each new entry little.
    fn drop_abandoned(&mut self, callers: &Callers) {
        if self.queue.len() < self.crowded.max(QUEUE_SHORT) {
            return;
        }
        let mut queue = std::mem::take(&mut self.queue);
        queue.retain(|address| {
            let is_awaited = self.is_awaited(callers, address);
            if !is_awaited {
                self.by_address.remove(address);
            }
            is_awaited
        });
        self.crowded = 2 * queue.len();
        self.queue = queue;
    }
}
