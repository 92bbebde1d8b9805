//! The device libraries of an engine, each opened on first use of its kind of memory, and the threads of the devices
//! in use.

use super::worker::{Limits, Worker};
use super::{Driver, Queue};
use crate::status::{Error, Result, Status};
use crate::sys::loader::{self, Changes};
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::map::HashMap;
use crate::types::{Location, MemoryKind};
use std::sync::Arc;
use std::time::Duration;

/// A library that may be installed.
pub struct Library {
    pub kind: MemoryKind,
    /// Returns whether the program has the library open. If not, no memory can be of its devices.
    pub is_loaded: Box<dyn Fn() -> bool + Send + Sync>,
    /// Opens the library. UNAVAILABLE with the reason.
    pub open: Box<dyn Fn() -> Result<Arc<dyn Driver>> + Send + Sync>,
}

pub struct Drivers {
    libraries: Vec<Library>,
    limits: Limits,
    open: Mutex<Open>,
    last_check: Mutex<LastCheck>,
}

/// The libraries that the program had open at the last look, and the loader's count before that look.
#[derive(Default)]
struct LastCheck {
    at: Option<Changes>,
    are_loaded: Vec<bool>,
}

#[derive(Default)]
struct Open {
    drivers: HashMap<MemoryKind, Arc<dyn Driver>>,
    workers: HashMap<Location, Arc<Worker>>,
    stopped: bool,
}

fn stopped() -> Error {
    Error::new(Status::Closed, "the engine is closed, and the threads of its devices have ended")
}

impl Drivers {
    /// Opens no library yet.
    pub fn new(libraries: Vec<Library>, limits: Limits) -> Drivers {
        Drivers { libraries, limits, open: Mutex::default(), last_check: Mutex::default() }
    }

    /// Returns the time limit of a copy: when it is over, the copy has ended or its device counts as broken.
    pub fn timeout(&self) -> Duration {
        self.limits.timeout
    }

    /// Returns the driver of this kind of memory. UNAVAILABLE if its library is missing or switched off.
    pub fn get(&self, kind: MemoryKind) -> Result<Arc<dyn Driver>> {
        let kind = kind.driver();
        if let Some(driver) = self.lock().drivers.get(&kind) {
            return Ok(driver.clone());
        }
        let Some(library) = self.libraries.iter().find(|library| library.kind == kind) else {
            let text = format!("{} is switched off by the settings", kind.name());
            return Err(Error::new(Status::Unavailable, text));
        };
        // Opening takes long, so no lock is held. If two threads open the library, the first result counts.
        let driver = (library.open)()?;
        Ok(self.lock().drivers.entry(kind).or_insert(driver).clone())
    }

    /// Returns the drivers of the libraries that the program has open: no memory can belong to another library's
    /// devices. Leaves out a library that does not work. Looks for files only if the program has opened or closed a
    /// library since the last look.
    pub fn loaded(&self) -> Vec<Arc<dyn Driver>> {
        let now = loader::changes();
        let mut last_check = self.last_check.lock();
        if now.is_none() || last_check.at != now {
            let are_loaded = self.libraries.iter().map(|library| (library.is_loaded)()).collect();
            *last_check = LastCheck { at: now, are_loaded };
        }
        let kinds = self.libraries.iter().zip(&last_check.are_loaded).filter(|(_, is_loaded)| **is_loaded);
        let kinds: Vec<MemoryKind> = kinds.map(|(library, _)| library.kind).collect();
        drop(last_check);
        kinds.into_iter().filter_map(|kind| self.get(kind).ok()).collect()
    }

    /// Returns whether devices of this kind may reach those of other hosts. Opens no library.
    pub fn crosses(&self, kind: MemoryKind) -> bool {
        self.lock().drivers.get(&kind.driver()).is_some_and(|driver| driver.crosses())
    }

    /// Returns the thread that copies from and to this device, and starts it on first use.
    pub fn worker(&self, at: Location) -> Result<Arc<Worker>> {
        let at = Location { kind: at.kind.driver(), device: at.device };
        {
            let open = self.lock();
            if let Some(worker) = open.workers.get(&at) {
                return Ok(worker.clone());
            }
            if open.stopped {
                return Err(stopped());
            }
        }
        let driver = self.get(at.kind)?;
        let worker = Worker::start(driver, at, self.limits)?;
        let other = {
            let mut open = self.lock();
            match open.workers.get(&at) {
                None if !open.stopped => {
                    open.workers.insert(at, worker.clone());
                    return Ok(worker);
                }
                other => other.cloned(),
            }
        };
        // If two threads started a worker at once, the first counts; after `stop` neither does. The other must be
        // ended here.
        worker.stop();
        other.ok_or_else(stopped)
    }

    /// Starts a thread for an attachment of a device here; see `Worker::start_with`.
    pub fn start_attached(
        &self,
        at: Location,
        open: impl FnOnce() -> Option<Box<dyn Queue>> + Send + 'static,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Worker>> {
        Worker::start_with(at, self.limits, open, ended)
    }

    /// Returns a thread of a device of this kind: one that runs, or else the first device's.
    pub fn any_worker(&self, kind: MemoryKind) -> Result<Arc<Worker>> {
        let kind = kind.driver();
        let running = self.lock().workers.iter().find(|(at, _)| at.kind == kind).map(|(_, it)| it.clone());
        running.map_or_else(|| self.worker(Location { kind, device: 0 }), Ok)
    }

    /// Ends the threads, which have nothing under way. No thread is started afterwards.
    pub fn stop(&self) {
        let workers = {
            let mut open = self.lock();
            open.stopped = true;
            std::mem::take(&mut open.workers)
        };
        workers.into_values().for_each(|worker| worker.stop());
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Allocation, Batch, Direction, Hold, Piece, Point, Start};
    use crate::sys::atomic::{AtomicUsize, Ordering};
    use std::sync::Barrier;
    use std::time::Duration;

    const LIMITS: Limits = Limits { batch_bytes: 1, depth: 1, timeout: Duration::from_secs(1) };

    /// A device that two threads open at once. It counts its open queues.
    struct Slow {
        both: Barrier,
        open: Arc<AtomicUsize>,
    }

    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Queue for Counted {
        fn copy(&mut self, _direction: Direction, _pieces: &[Piece]) -> Result<Batch> {
            Ok(Batch(0))
        }
        fn poll_done(&mut self, _batch: Batch) -> Result<bool> {
            Ok(true)
        }
        fn abort(&mut self) -> bool {
            true
        }
    }

    impl Driver for Slow {
        fn kind(&self) -> MemoryKind {
            MemoryKind::Cuda
        }
        fn locate(&self, _address: u64) -> Result<Option<Allocation>> {
            Ok(None)
        }
        fn pin(&self, _address: u64, _length: usize) -> Result<()> {
            Ok(())
        }
        fn unpin(&self, _address: u64) {}
        fn open(&self, _device: i32, _batch_bytes: usize, _depth: usize) -> Result<Box<dyn Queue>> {
            self.open.fetch_add(1, Ordering::SeqCst);
            self.both.wait();
            Ok(Box::new(Counted(self.open.clone())))
        }
        fn point(&self, _at: Start) -> Result<Box<dyn Point>> {
            Err(Error::invalid("no point"))
        }
        fn hold(&self, _stream: u64) -> Result<Box<dyn Hold>> {
            Err(Error::invalid("no stream"))
        }
    }

    #[test]
    fn of_two_threads_for_one_device_one_ends_and_after_the_end_none_begins() {
        let open = Arc::new(AtomicUsize::new(0));
        let driver: Arc<dyn Driver> = Arc::new(Slow { both: Barrier::new(2), open: open.clone() });
        let library = Library {
            kind: MemoryKind::Cuda,
            is_loaded: Box::new(|| true),
            open: Box::new(move || Ok(driver.clone())),
        };
        let drivers = Drivers::new(vec![library], LIMITS);
        let at = Location { kind: MemoryKind::Cuda, device: 0 };
        let got: Vec<_> = std::thread::scope(|scope| {
            let both = [0, 1].map(|_| scope.spawn(|| drivers.worker(at).unwrap()));
            both.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(Arc::ptr_eq(&got[0], &got[1]));
        assert_eq!(open.load(Ordering::SeqCst), 1, "the other worker's thread still runs");
        drivers.stop();
        assert_eq!(open.load(Ordering::SeqCst), 0);
        // Unregistering a lent region asks for a worker after its engine was closed.
        assert_eq!(drivers.worker(at).map(|_| ()).unwrap_err().status, Status::Closed);
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }

    /// Each registration of memory asks for the libraries, and looking for files takes longer than the rest of the
    /// call.
    #[test]
    fn libraries_are_looked_for_when_the_program_opens_some_and_not_each_time() {
        let checks = Arc::new(AtomicUsize::new(0));
        let counter = checks.clone();
        let library = Library {
            kind: MemoryKind::Cuda,
            is_loaded: Box::new(move || {
                counter.fetch_add(1, Ordering::SeqCst);
                false
            }),
            open: Box::new(|| Err(Error::new(Status::Unavailable, "none"))),
        };
        let drivers = Drivers::new(vec![library], LIMITS);
        // Other tests may open libraries too, but less often than this loop asks.
        (0..1000).for_each(|_| assert!(drivers.loaded().is_empty()));
        let before = checks.load(Ordering::SeqCst);
        assert!((1..500).contains(&before), "{before} looks");
        let open = || {
            // SAFETY: a system library, whose constructors may run at any time.
            let library = unsafe { libc::dlopen(c"libutil.so.1".as_ptr(), libc::RTLD_NOW) };
            assert!(!library.is_null());
            library
        };
        let library = open();
        drivers.loaded();
        assert!(checks.load(Ordering::SeqCst) > before);
        // SAFETY: opened above.
        unsafe { libc::dlclose(library) };
    }
}
