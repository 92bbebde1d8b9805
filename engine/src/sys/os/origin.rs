//! Gives every thread of an engine the CPUs of the thread that opened the engine, and every thread of ferry its signal
//! mask and its scheduling. Some threads are started later by threads of the program, or by the control thread, whose
//! CPUs may be different by then.

use std::mem::{size_of_val, MaybeUninit};

const THIS_THREAD: libc::pid_t = 0;
/// Words of a set of CPUs: more than any kernel is built for.
const CPU_WORDS: usize = 8192 / 64;
/// The signals of a thread's own faults. If a thread blocks the signal of its fault, the kernel ends the program
/// without calling the program's handler.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// The CPUs; None if the kernel does not tell.
pub struct Origin(Option<Box<[u64; CPU_WORDS]>>);

impl Origin {
    pub fn of_this_thread() -> Origin {
        let mut cpus = Box::new([0u64; CPU_WORDS]);
        // SAFETY: fills at most the size given, which is that of the words.
        let got =
            unsafe { libc::sched_getaffinity(THIS_THREAD, size_of_val(&*cpus), cpus.as_mut_ptr().cast()) };
        Origin((got == 0).then_some(cpus))
    }

    /// Gives the calling thread these CPUs.
    pub fn take_on(&self) {
        schedule_as_others();
        if let Some(cpus) = &self.0 {
            // SAFETY: reads the words, whose size is given. The kernel refuses only if the process may use none of
            // these CPUs any more; the thread then keeps its own.
            unsafe { libc::sched_setaffinity(THIS_THREAD, size_of_val(&**cpus), cpus.as_ptr().cast()) };
        }
    }
}

/// Takes the calling thread, a new one, off the real-time policy that it inherited. A thread of ferry works as long as
/// there is work: it would starve others, and the kernel would end a program with a limit (RLIMIT_RTTIME).
pub fn schedule_as_others() {
    let plain = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads `plain`. Any thread may give its priority up.
    unsafe {
        if matches!(libc::sched_getscheduler(THIS_THREAD), libc::SCHED_FIFO | libc::SCHED_RR) {
            libc::sched_setscheduler(THIS_THREAD, libc::SCHED_OTHER, &plain);
        }
    }
}

/// Starts a thread that blocks all signals but those of its own faults. A signal to the process then goes to a thread
/// of the program, or stays pending for a signalfd or `sigwait` of a program whose own threads all block the signal.
pub fn undisturbed<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    // SAFETY: `sigfillset` fills the whole set, and the numbers are those of signals: neither call fails.
    let all = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        all.assume_init()
    };
    let before = set_mask(&all);
    let started = start();
    set_mask(&before);
    started
}

/// Sets the mask of the calling thread. Returns the mask before.
fn set_mask(mask: &libc::sigset_t) -> libc::sigset_t {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: reads `mask` and fills `before`; SIG_SETMASK is valid, so it does not fail.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, before.as_mut_ptr());
        before.assume_init()
    }
}
