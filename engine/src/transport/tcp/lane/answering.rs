//! A thread that waits for a transfer sends answers on the lane that it receives from, while their pages are there.

use super::{Lane, TxTurn};
use crate::peer::After;
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::sys::pages::LOOKS_MAX;
use crate::sys::turns;
use std::sync::Arc;

impl Lane {
    /// Whether to send the answers to READs may wait for a page, or takes longer than a waiting thread has time for.
    pub(super) fn answers_may_wait(&self) -> bool {
        let engine = self.peer.engine();
        let pieces = self.answers.lock().small_reads(engine.express_bytes_max);
        let (now_ns, mut looks) = (clock::monotonic_ns(), LOOKS_MAX);
        let mut is_there =
            |(address, length): (u64, u32)| engine.pages.has(address, length.into(), now_ns, &mut looks);
        pieces.is_none_or(|pieces| !pieces.into_iter().all(&mut is_there))
    }

    /// Sends the answers that are owed, and nothing else: this thread waits for a transfer, and others' work may wait
    /// for a page.
    pub(super) fn answer(self: &Arc<Self>, after: &mut After) {
        let Some(mut tx) = self.tx.try_lock().filter(|tx| tx.is_empty() && !turns::keeps_away()) else {
            self.left();
            // Not `kick`: whoever found the lock taken by that look has set `tx_wanted`, and relies on this thread.
            self.tx_wanted.store(true, Ordering::SeqCst);
            if !self.tx_blocked.load(Ordering::SeqCst) {
                self.worker.kick(self.clone());
            }
            return;
        };
        if self.is_closed() || self.is_aside.load(Ordering::SeqCst) {
            drop(tx);
            return self.left();
        }
        let turn = tx.answer(self, after);
        if matches!(turn, TxTurn::Blocked) {
            self.tx_blocked.store(true, Ordering::SeqCst);
        }
        drop(tx);
        self.left();
        match turn {
            TxTurn::Failed(failure) => return self.fail(failure),
            TxTurn::Blocked => self.update_interest(),
            TxTurn::Idle | TxTurn::Yield => {}
        }
        // Whoever found the lock taken meanwhile has left its work to this thread.
        let is_left = self.has_work() || self.tx_wanted.load(Ordering::SeqCst);
        if is_left && !self.tx_blocked.load(Ordering::SeqCst) || matches!(turn, TxTurn::Yield) {
            self.tx_wanted.store(true, Ordering::SeqCst);
            self.worker.kick(self.clone());
        }
    }
}
