//! The simulated side of `sys::mpsc`: unbounded channels made of the kernel's locks.

use ferry_sim_kernel::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};

struct ChannelState<T> {
    queue: VecDeque<T>,
    senders: usize,
    is_received: bool,
}

struct Channel<T> {
    state: Mutex<ChannelState<T>>,
    changed: Condvar,
}

pub struct Sender<T>(Arc<Channel<T>>);

pub type SyncSender<T> = Sender<T>;

pub struct Receiver<T>(Arc<Channel<T>>);

pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = Mutex::new(ChannelState { queue: VecDeque::new(), senders: 1, is_received: true });
    let channel = Arc::new(Channel { state, changed: Condvar::new() });
    (Sender(channel.clone()), Receiver(channel))
}

/// Its senders never wait: the engine sends no more than the channel holds.
pub fn sync_channel<T>(_bound: usize) -> (SyncSender<T>, Receiver<T>) {
    channel()
}

impl<T> Sender<T> {
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state.lock();
        if !state.is_received {
            return Err(SendError(value));
        }
        state.queue.push_back(value);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.state.lock().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state.lock().senders -= 1;
        self.0.changed.notify_all();
    }
}

impl<T> Receiver<T> {
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.state.lock();
        match state.queue.pop_front() {
            Some(value) => Ok(value),
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(value) = state.queue.pop_front() {
                return Ok(value);
            }
            if state.senders == 0 {
                return Err(RecvError);
            }
            state = self.0.changed.wait(state);
        }
    }

    pub fn recv_timeout(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        let end = ferry_sim_kernel::clock::now() + time;
        let mut state = self.0.state.lock();
        loop {
            if let Some(value) = state.queue.pop_front() {
                return Ok(value);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            let left = end.saturating_duration_since(ferry_sim_kernel::clock::now());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            state = self.0.changed.wait_timeout(state, left).0;
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_received = false;
        let left = std::mem::take(&mut state.queue);
        drop(state);
        drop(left);
    }
}
