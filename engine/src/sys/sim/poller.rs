//! The simulated side of `sys::poller`: one kind, whatever is asked for.

use crate::status::{Error, Result};
use crate::sys::health;
use ferry_sim_kernel::poller;
pub use ferry_sim_kernel::poller::{Interest, Ready};
use std::io;
use std::os::fd::RawFd;

const TOKEN_WAKE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollerKind {
    Auto,
    Epoll,
    IoUring,
}

pub struct Poller(poller::Poller);

impl Poller {
    pub fn new(_kind: PollerKind) -> Result<Poller> {
        poller::Poller::new().map(Poller).map_err(|error| Error::system("epoll_create1", &error))
    }

    pub fn add(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        refuse_reserved(token)?;
        self.0.add(fd, token, interest)
    }

    pub fn set(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        refuse_reserved(token)?;
        self.0.set(fd, token, interest)
    }

    pub fn remove(&self, fd: RawFd, _token: u64) {
        self.0.remove(fd);
    }

    pub(in crate::sys) fn wait(&self, out: &mut Vec<Ready>, timeout_ns: Option<u64>) -> io::Result<()> {
        health::check();
        self.0.wait(out, timeout_ns)
    }

    pub fn wake(&self) {
        self.0.wake();
    }
}

fn refuse_reserved(token: u64) -> io::Result<()> {
    match token {
        TOKEN_WAKE => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        _ => Ok(()),
    }
}
