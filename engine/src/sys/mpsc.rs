//! Channels between threads: the standard library's. A simulation replaces them, because a receiver waits.

pub use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, TryRecvError};
