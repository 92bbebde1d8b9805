//! Callers that wait in `connect`, each with its own deadline. Several callers may wait for the same dial or session.
//! Dials and sessions refer to callers by number. The number of an answered caller is ignored.

use crate::command::Reply;
use crate::status::{Error, Result, Status};
use crate::sys::map::HashMap;
use crate::types::{Monotonic, PeerId};
use std::collections::BTreeSet;

/// The text for a wait that ends without an answer, unless `tell` has set another. `connect` adds the time.
pub const UNANSWERED: &str = "no answer";

struct Caller {
    address: String,
    until: Monotonic,
    /// The text for a wait that ends without an answer.
    late: &'static str,
    reply: Reply<PeerId>,
}

#[derive(Default)]
pub struct Callers {
    waiting: HashMap<u64, Caller>,
    by_deadline: BTreeSet<(Monotonic, u64)>,
    last: u64,
}

impl Callers {
    /// Adds a caller, which gets TIMEOUT if it is not answered before `until`. Returns its number.
    pub fn add(&mut self, address: &str, until: Monotonic, reply: Reply<PeerId>) -> u64 {
        self.last += 1;
        let late = UNANSWERED;
        self.waiting.insert(self.last, Caller { address: address.to_owned(), until, late, reply });
        self.by_deadline.insert((until, self.last));
        self.last
    }

    pub fn answer(&mut self, caller: u64, result: Result<PeerId>) {
        if let Some(Caller { until, reply, .. }) = self.waiting.remove(&caller) {
            self.by_deadline.remove(&(until, caller));
            reply.send(result);
        }
    }

    /// Returns whether the caller still waits.
    pub fn has(&self, caller: u64) -> bool {
        self.waiting.contains_key(&caller)
    }

    /// Returns the address that a caller who still waits asked for, and until when.
    pub fn asked(&self, caller: u64) -> Option<(String, Monotonic)> {
        self.waiting.get(&caller).map(|caller| (caller.address.clone(), caller.until))
    }

    /// Sets the text that the caller gets if its time passes.
    pub fn tell(&mut self, caller: u64, late: &'static str) {
        if let Some(caller) = self.waiting.get_mut(&caller) {
            caller.late = late;
        }
    }

    pub fn fail(&mut self, callers: Vec<u64>, error: &Error) {
        callers.into_iter().for_each(|caller| self.answer(caller, Err(error.clone())));
    }

    /// Returns when the first caller stops waiting.
    pub fn next(&self) -> Option<Monotonic> {
        self.by_deadline.first().map(|(until, _)| *until)
    }

    pub fn expire(&mut self, now: Monotonic) {
        while let Some(&(_, caller)) = self.by_deadline.first().filter(|(until, _)| *until <= now) {
            let text = self.waiting.get(&caller).map(|it| format!("{}: {}", it.address, it.late));
            let error = Error::new(Status::Timeout, text.unwrap_or_default());
            self.answer(caller, Err(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_caller_has_its_own_deadline_and_one_answer() {
        let (mut callers, now) = (Callers::default(), Monotonic::ZERO);
        let at = |ms| now + Duration::from_millis(ms);
        let mut add = |ms| {
            let (reply, answer) = Reply::pair();
            (callers.add("there:1", at(ms), reply), answer)
        };
        let (late, early, other) = (add(50), add(10), add(20));
        assert_eq!(callers.next(), Some(at(10)));
        callers.expire(at(9));
        callers.answer(other.0, Ok(PeerId::from_raw(7)));
        callers.expire(at(49));
        let error = early.1.wait(Some(Duration::ZERO), "").unwrap_err();
        assert_eq!((error.status, error.message.as_str()), (Status::Timeout, "there:1: no answer"));
        assert_eq!(other.1.wait(Some(Duration::ZERO), "").unwrap(), PeerId::from_raw(7));
        callers.fail(vec![early.0, late.0], &Error::new(Status::Refused, "no"));
        assert_eq!(late.1.wait(Some(Duration::ZERO), "").unwrap_err().status, Status::Refused);
        assert!(callers.next().is_none() && callers.waiting.is_empty());
    }
}
