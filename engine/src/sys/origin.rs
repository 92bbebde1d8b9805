//! The signal mask and the CPUs of the thread that opened an engine, for every thread of the engine. Some threads are
//! started later by threads of the program, or by the control thread, whose mask and CPUs may be different by then.

use std::io;
use std::mem::{size_of_val, MaybeUninit};

const THIS_THREAD: libc::pid_t = 0;
/// Words of a set of CPUs: more than any kernel is built for.
const CPU_WORDS: usize = 8192 / 64;

pub struct Origin {
    mask: libc::sigset_t,
    /// None where the kernel does not say.
    cpus: Option<Box<[u64; CPU_WORDS]>>,
}

impl Origin {
    pub fn of_this_thread() -> Origin {
        let mut cpus = Box::new([0u64; CPU_WORDS]);
        // SAFETY: fills at most the size given, which is that of the words.
        let got =
            unsafe { libc::sched_getaffinity(THIS_THREAD, size_of_val(&*cpus), cpus.as_mut_ptr().cast()) };
        Origin { mask: set_mask(None), cpus: (got == 0).then_some(cpus) }
    }

    /// Gives the calling thread this mask and these CPUs.
    pub fn take_on(&self) {
        if let Some(cpus) = &self.cpus {
            // SAFETY: reads the words, whose size is given. The kernel refuses only if the process may use none of
            // these CPUs any more; the thread then keeps its own.
            unsafe { libc::sched_setaffinity(THIS_THREAD, size_of_val(&**cpus), cpus.as_ptr().cast()) };
        }
        set_mask(Some(&self.mask));
    }
}

/// Starts a thread with all signals blocked, until the thread sets its own mask.
pub fn undisturbed<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: `sigfillset` fills the whole set, and does not fail.
    let all = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        all.assume_init()
    };
    let before = set_mask(Some(&all));
    let started = start();
    set_mask(Some(&before));
    started
}

/// Sets the mask of the calling thread, unless `mask` is None. Returns the mask before.
fn set_mask(mask: Option<&libc::sigset_t>) -> libc::sigset_t {
    let mut before = MaybeUninit::zeroed();
    let mask = mask.map_or(std::ptr::null(), |mask| mask as *const _);
    // SAFETY: reads `mask` if it is not null, and fills `before`; SIG_SETMASK is valid, so it does not fail. All zeroes
    // is the empty set.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, before.as_mut_ptr());
        before.assume_init()
    }
}
