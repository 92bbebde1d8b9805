//! Waits for a point of the program's own work on a device, without a transfer. The device's thread (`device::worker`)
//! looks for the point, as it does for transfers that start at one.

use super::Engine;
use crate::device::{Point, Start};
use crate::notify;
use crate::status::{Error, Result, Status};
use crate::sys::atomic::{AtomicBool, Ordering};
use crate::sys::lock::Mutex;
use crate::types::MemoryKind;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Resolves when the program's work has come to the point: see [`Engine::reached`]. Dropping the future ends the wait.
pub struct ReachedFuture(Arc<Awaited>);

impl fmt::Debug for ReachedFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReachedFuture")
    }
}

#[derive(Default)]
struct Awaited {
    told: Mutex<Told>,
    /// The future was dropped.
    is_given_up: AtomicBool,
}

#[derive(Default)]
struct Told {
    result: Option<Result<()>>,
    waker: Option<Waker>,
}

impl Engine {
    /// Waits for a point of the program's own work on a device: an event as it is recorded at this call, or all work
    /// that a stream has been given so far. The point is taken in the call: afterwards the program may record the
    /// event anew, or destroy event and stream; the context of a stream must exist until the future resolves.
    ///
    /// Resolves to the device's error if the work before the point fails, CLOSED when the engine is closed, UNAVAILABLE
    /// if the device's thread ends. The thread that looks for the point calls the waker, under no lock; the task should
    /// not block.
    ///
    /// UNAVAILABLE if the device's library is not present. UNSUPPORTED for events of AscendCL, which cannot be taken
    /// so: give their stream.
    pub fn reached(&self, kind: MemoryKind, at: Start) -> Result<ReachedFuture> {
        self.call("waiting for work on a device", || {
            self.context()?;
            let drivers = &self.inner.drivers;
            let driver = drivers.get(kind)?;
            let point = match at {
                Start::Event(event) => driver.capture(event)?,
                Start::Stream(_) => driver.point(at)?,
            };
            let awaited = Arc::new(Awaited::default());
            let teller = Teller(awaited.clone());
            let until = Until { point, awaited: awaited.clone() };
            let reached = move |result| teller.tell(result);
            drivers.any_worker(kind)?.wait_for(Box::new(until), Box::new(reached));
            Ok(ReachedFuture(awaited))
        })
    }
}

impl Future for ReachedFuture {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        // Wakers are the program's: they are cloned and dropped under no lock.
        let waker = context.waker().clone();
        let mut told = self.0.told.lock();
        if let Some(result) = &told.result {
            return Poll::Ready(result.clone());
        }
        let before = told.waker.replace(waker);
        drop(told);
        drop(before);
        Poll::Pending
    }
}

impl Drop for ReachedFuture {
    fn drop(&mut self) {
        self.0.is_given_up.store(true, Ordering::Relaxed);
    }
}

impl Awaited {
    /// The first result counts.
    fn tell(&self, result: Result<()>) {
        let mut told = self.told.lock();
        told.result.get_or_insert(result);
        let waker = told.waker.take();
        drop(told);
        waker.into_iter().for_each(notify::wake_task);
    }
}

/// If dropped before it told a result, tells that the device's thread has ended.
struct Teller(Arc<Awaited>);

impl Teller {
    fn tell(&self, result: Result<()>) {
        self.0.tell(result);
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.0.tell(Err(Error::new(Status::Unavailable, "the device's thread has ended")));
    }
}

/// A point that counts as reached once nobody waits for it, so that the device's thread stops looking for it.
struct Until {
    point: Box<dyn Point>,
    awaited: Arc<Awaited>,
}

impl Point for Until {
    fn is_reached(&self) -> Result<bool> {
        Ok(self.awaited.is_given_up.load(Ordering::Relaxed) || self.point.is_reached()?)
    }
}
