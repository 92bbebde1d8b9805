//! Who gets a processor first, and processors that do not halt.

use std::mem::{size_of, zeroed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

const THIS_THREAD: libc::pid_t = 0;

/// Sets the priority of the calling thread, and of threads and processes that it starts. Returns whether it may.
pub fn prioritise(nice: i32) -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) == 0 }
}

/// Lets the calling thread, and threads that it starts, run as soon as they wake up. Returns whether it may.
pub fn run_at_once() -> bool {
    schedule(libc::SCHED_FIFO, 1)
}

fn schedule(policy: i32, priority: i32) -> bool {
    // SAFETY: reads the parameters.
    unsafe {
        libc::sched_setscheduler(THIS_THREAD, policy, &libc::sched_param { sched_priority: priority }) == 0
    }
}

/// Keeps all processors from halting until it is dropped, with threads that run while nothing else does. To wake a
/// halted processor of a virtual machine takes its host 10 to 200 us, which is no time of the engine.
pub struct Awake {
    stop: Arc<AtomicBool>,
}

impl Awake {
    pub fn begin() -> Awake {
        let stop = Arc::new(AtomicBool::new(false));
        // SAFETY: all-zero is an empty set; the kernel fills it, and its size is given.
        let ours = unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            assert_eq!(libc::sched_getaffinity(THIS_THREAD, size_of::<libc::cpu_set_t>(), &mut set), 0);
            set
        };
        // SAFETY: asks for numbers that a set has.
        for processor in (0..libc::CPU_SETSIZE as usize).filter(|it| unsafe { libc::CPU_ISSET(*it, &ours) }) {
            let stop = stop.clone();
            std::thread::spawn(move || {
                // SAFETY: sets and reads a set whose size is given.
                unsafe {
                    let mut set: libc::cpu_set_t = zeroed();
                    libc::CPU_SET(processor, &mut set);
                    assert_eq!(libc::sched_setaffinity(THIS_THREAD, size_of::<libc::cpu_set_t>(), &set), 0);
                }
                assert!(schedule(libc::SCHED_IDLE, 0), "the lowest class is always allowed");
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Awake { stop }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
