//! Questions of nodes about each other: for counts, for the values that a node holds, and that it be taken out.

use ferry::types::PeerId;

use super::machine::Machine;
use crate::index::NodeId;
use crate::key::Digest;
use crate::limits::{KEYS_OF_REQUEST_MAX, SERVED_OF_NODE_MAX};
use crate::wire::{Cursor, Listed, Message, Question, Told};

impl Machine {
    /// Asks a node. Returns the number by which `take_told` has its answer; None: the node cannot be asked.
    pub fn question(&mut self, node: NodeId, question: Question, now: u64) -> Option<u64> {
        let peer = self.nodes.peer_of(node)?;
        self.next += 1;
        self.questions.insert(self.next, (peer, None));
        self.nodes.await_answer(peer, now);
        self.send(peer, &Message::Ask { request: self.next, question });
        Some(self.next)
    }

    pub fn take_told(&mut self, request: u64) -> Option<Told> {
        let told = self.questions.get_mut(&request)?.1.take()?;
        self.questions.remove(&request);
        Some(told)
    }

    /// Nobody waits for the answer any more.
    pub fn forget_question(&mut self, request: u64) {
        if let Some((peer, None)) = self.questions.remove(&request) {
            self.nodes.answered(peer);
        }
    }

    pub(super) fn hear_ask(&mut self, peer: PeerId, request: u64, question: Question, now: u64) {
        let told = match question {
            Question::Counts => Told::Counts(self.stats().prometheus()),
            Question::List { from, most } => self.list(from, most),
            Question::Drain { .. } if self.drain.askers() >= SERVED_OF_NODE_MAX => {
                Told::Refused("drain: too many nodes wait for it".into())
            }
            Question::Drain { copies } => match self.drain(copies, Some((peer, request)), now) {
                Ok(()) => return,
                Err(why) => Told::Refused(why.message),
            },
        };
        self.send(peer, &Message::Told { request, told });
    }

    pub(super) fn hear_told(&mut self, peer: PeerId, request: u64, told: Told) {
        let waits = self.questions.get_mut(&request).filter(|(asked, told)| *asked == peer && told.is_none());
        if let Some((_, answer)) = waits {
            *answer = Some(told);
            self.nodes.answered(peer);
        }
    }

    pub(super) fn questions_lost(&mut self, peer: PeerId) {
        for (_, told) in self.questions.values_mut().filter(|(asked, _)| *asked == peer) {
            told.get_or_insert_with(|| Told::Refused("the node was lost before it answered".into()));
        }
        self.drain.forget(peer);
    }

    /// Values of this node, those used last first: of its memory, then of its file. Values that are read or written at
    /// this moment are not among them.
    fn list(&self, from: Cursor, most: u32) -> Told {
        let most = (most as usize).clamp(1, KEYS_OF_REQUEST_MAX);
        let store = if from.in_file { self.tier() } else { Some(self.store()) };
        let Some(digests) = store.and_then(|store| store.recent(from.after, most)) else {
            return Told::Refused(
                "the list: the value behind which it goes on was used meanwhile: list again".into(),
            );
        };
        let next = match digests.last() {
            Some(last) if digests.len() == most => Some(Cursor { after: Some(last.fingerprint()), ..from }),
            _ if from.in_file => None,
            _ => self.tier().map(|_| Cursor { in_file: true, after: None }),
        };
        let value = |digest: Digest| {
            let in_file = self.tier().is_some_and(|tier| tier.find(&digest).is_some());
            let in_memory = self.store().find(&digest).is_some();
            let bytes = self.held_here(&digest).map_or(0, |(bytes, _)| bytes);
            // The whole key would let the asker use the value.
            Listed { fingerprint: digest.fingerprint(), tenant: digest.tag(), bytes, in_memory, in_file }
        };
        Told::Values { values: digests.into_iter().map(value).collect(), next }
    }
}
