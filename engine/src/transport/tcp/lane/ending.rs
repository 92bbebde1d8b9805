//! How a lane ends, and what happens while a thread is on it and may never come back. The kernel locks a socket while
//! it copies from or to memory, so every call on the socket of such a lane would wait with that thread, `shutdown`
//! included.
//!
//! ```text
//! on purpose: part ─▶ kicked, by the worker ─▶ LaneParted ─▶ close
//! close ─▶ quiet, or a thread is on the lane ─▶ left, by that thread ─▶ LaneLost ─▶ close
//! ```

use super::Lane;
use crate::command::Command;
use crate::loss::{Cause, Failure};
use crate::peer::transport::Parting;
use crate::peer::Posted;
use crate::sys::atomic::{fence, Ordering};
use crate::sys::socket;
use crate::transport::tcp::rx::By;
use crate::transport::tcp::tx::Tx;
use std::sync::Arc;

/// Receive turns after the peer has left; they empty the socket's buffer.
const REMAINING_TURNS_MAX: usize = 16;
/// Values of `Lane::parting`.
pub(super) const STAYS: u32 = 0;

/// A lane that was closed.
pub struct Closing {
    /// Records whose memory no thread can touch any more. Each record is returned once.
    pub records: Vec<Posted>,
    /// No thread moves memory for the lane. Otherwise the thread that does so reports (`Command::LaneLost`) when it has
    /// left, and `close` is called again.
    pub is_quiet: bool,
}

impl Lane {
    /// Asks the worker to finish sending or receiving before the lane is closed on purpose. False: there is nothing to
    /// do.
    pub fn part(self: &Arc<Self>, how: Parting) -> bool {
        let owes =
            |tx: &Tx| !tx.is_empty() || self.tx_wanted.load(Ordering::SeqCst) || self.answers.lock().owes();
        let is_still = how == Parting::Sends
            && self.rx.try_lock().is_some()
            && self.tx.try_lock().is_some_and(|tx| !owes(&tx));
        let is_over = self.rx.try_lock().is_some_and(|rx| rx.is_broken());
        if is_still || is_over || self.is_closed() || self.failed.load(Ordering::SeqCst) {
            return false;
        }
        self.parting.store(how as u32, Ordering::SeqCst);
        self.worker.kick(self.clone());
        true
    }

    pub fn is_parting(&self) -> bool {
        self.parting.load(Ordering::SeqCst) != STAYS
    }

    /// Ends the parting, whether or not the worker has done it.
    pub fn end_parting(&self) {
        if self.parting.swap(STAYS, Ordering::SeqCst) != STAYS {
            let (peer, lane) = (self.peer.handle, self.id);
            self.peer.engine().commands.push(Command::LaneParted { peer, lane });
        }
    }

    /// Does what a kick asks for. Called by the worker.
    pub fn kicked(self: &Arc<Self>) {
        let mut after = self.peer.after();
        let parting = self.parting.load(Ordering::SeqCst);
        if parting == STAYS {
            self.drive_tx(&mut after);
            return self.take_up();
        }
        fence(Ordering::SeqCst);
        if self.is_aside.load(Ordering::SeqCst) {
            return;
        }
        // A thread that holds a lock kicks again when it has left. Once the receive lock was free, the answers to all
        // delivered frames are queued.
        let Some(mut rx) = self.rx.try_lock() else { return };
        if parting == Parting::Receives as u32 {
            for _ in 0..REMAINING_TURNS_MAX {
                if self.is_closed() || !rx.run(self, By::Worker, &mut after).again {
                    break;
                }
            }
        }
        drop(rx);
        if parting == Parting::Sends as u32 {
            let Some(mut tx) = self.tx.try_lock() else { return };
            if !self.is_closed() && !self.tx_blocked.load(Ordering::Acquire) {
                // The result does not matter: the lane is closed next.
                let _ = tx.run(self, &mut after);
            }
        }
        self.end_parting();
        self.left();
    }

    /// Called after a side's lock is released: tells the threads that could not get the lock.
    pub(super) fn left(self: &Arc<Self>) {
        // Such a thread sets its flag before it tries the lock.
        fence(Ordering::SeqCst);
        if self.is_closed() {
            let ours = Failure::new(Cause::Ours, "the lane was closed");
            let (peer, lane, loss) = (self.peer.handle, self.id, self.loss(ours));
            self.peer.engine().commands.push(Command::LaneLost { peer, lane, loss });
        } else if self.is_parting() {
            self.worker.kick(self.clone());
        }
    }

    /// Ends the connection, and wakes the thread that sleeps for its input. The lane keeps its records.
    pub fn shut(&self) {
        socket::shutdown(self.fd());
        self.wake_caller();
    }

    /// Shuts the connection, unless a thread is on the lane.
    pub(super) fn shut_if_free(&self) {
        let (rx, tx) = (self.rx.try_lock(), self.tx.try_lock());
        if rx.is_some() && tx.is_some() {
            socket::shutdown(self.fd());
        }
    }

    /// Closes the lane. Nothing new is posted on it. Called again until the lane is quiet.
    pub fn close(&self) -> Closing {
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.worker.remove(self.fd(), self.token);
        }
        self.parting.store(STAYS, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let is_sent_on = self.tx.try_lock().map(|mut tx| tx.clear()).is_none();
        let is_received_on = self.rx.try_lock().map(|mut rx| rx.clear()).is_none();
        self.wake_caller();
        if is_sent_on || is_received_on {
            let records = self.flight.lock().take_untouched(is_sent_on, is_received_on);
            return Closing { records, is_quiet: false };
        }
        // A thread that gets a lock from now on sees that the lane is closed.
        socket::shutdown(self.fd());
        self.answers.lock().clear();
        Closing { records: self.flight.lock().take_all(), is_quiet: true }
    }

    /// Keeps other threads off the lane while one is on it that may never come back.
    pub fn set_aside(&self) {
        let _watched = self.watched.lock();
        if self.rx.try_lock().is_none() || self.tx.try_lock().is_none() {
            self.is_aside.store(true, Ordering::SeqCst);
            self.worker.unwatch(self.fd(), self.token);
        }
    }

    /// Leaves a lane alone on which nothing can be received any more. It is closed with its session.
    pub(super) fn rest(&self) {
        let _watched = self.watched.lock();
        self.is_aside.store(true, Ordering::SeqCst);
        self.worker.unwatch(self.fd(), self.token);
    }

    /// The thread has come back.
    pub fn take_back(self: &Arc<Self>) {
        let watched = self.watched.lock();
        if !self.is_aside.swap(false, Ordering::SeqCst) {
            return;
        }
        let result = self.worker.watch(self.fd(), self.token, *watched);
        let is_over = self.is_closed() || self.failed.load(Ordering::SeqCst);
        if is_over {
            self.worker.unwatch(self.fd(), self.token);
        }
        drop(watched);
        if let (Err(error), false) = (result, is_over) {
            self.fail(Failure::system("watching the socket", &error));
        }
        // Others may have left work.
        self.worker.kick(self.clone());
    }
}
