//! Tests of queues, of the hub's routing, and of callbacks.

mod callbacks;
mod queue;
mod routes;
mod wake;

use super::*;
use crate::handle::Tag;
use crate::status::Status;
use crate::types::{PeerId, TransferId};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

fn hub() -> Hub {
    Hub::new(Tag::from_random(9))
}

fn transfer(number: u64) -> Event {
    Event::new(
        PeerId::from_raw(1),
        EventBody::Transfer { transfer: TransferId::from_raw(number), user_data: number, status: Status::Ok },
    )
}

fn notification(number: u64) -> Event {
    Event::new(
        PeerId::from_raw(2),
        EventBody::Notification { channel: 0, bytes: Box::from(number.to_le_bytes()) },
    )
}

/// Returns the number that `transfer` or `notification` was given.
fn number(event: &Event) -> u64 {
    match &event.body {
        EventBody::Transfer { user_data, .. } => *user_data,
        EventBody::Notification { bytes, .. } => u64::from_le_bytes(bytes[..].try_into().unwrap()),
        other => panic!("{other:?} has no number"),
    }
}

fn submit(queue: &Queue, number: u64) {
    queue.reserve().unwrap();
    queue.push_reserved(transfer(number), || ());
}

fn drain(queue: &Queue, max: usize) -> Vec<Event> {
    let mut out = Vec::new();
    assert_eq!(queue.drain(&mut out, max), out.len());
    out
}

fn numbers(queue: &Queue) -> Vec<u64> {
    drain(queue, usize::MAX).iter().map(number).collect()
}

fn credit(returned: &Arc<AtomicUsize>) -> Option<Credit> {
    let returned = returned.clone();
    Some(Credit::new(Arc::new(move || {
        returned.fetch_add(1, Ordering::SeqCst);
    })))
}

/// Calls poll(2) for input.
fn readable(fd: RawFd, timeout_ms: i32) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry on this stack, for the duration of the call.
    let count = unsafe { libc::poll(&mut entry, 1, timeout_ms) };
    assert!(count >= 0, "{}", std::io::Error::last_os_error());
    count == 1 && entry.revents == libc::POLLIN
}

/// Returns how often an eventfd was written since it was last cleared.
fn writes(fd: RawFd) -> u64 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("eventfd-count:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}
