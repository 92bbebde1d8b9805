//! Every entry point runs inside this guard. It turns a panic into PANIC, and an error into a status and a
//! filled `ferry_error`. Nothing is printed: the panic hook of this library's own copy of the standard
//! library only notes where the panic happened.

use crate::error::{ferry_error, ErrorOut};
use crate::status::{ferry_status, FERRY_OK};
use engine::thread::unforked;
use engine::{Error, Status};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_int;
use std::panic::{catch_unwind, set_hook, take_hook, AssertUnwindSafe};
use std::sync::Once;

/// The success value of a body: nothing, or a status that is not a failure.
pub trait Success {
    fn status(self) -> ferry_status;
}

impl Success for () {
    fn status(self) -> ferry_status {
        FERRY_OK
    }
}

impl Success for ferry_status {
    fn status(self) -> ferry_status {
        self
    }
}

/// Runs the body of an entry point.
///
/// # Safety
/// `error` is NULL or points to a `ferry_error` that the caller owns for the length of the call.
pub unsafe fn call<S: Success>(
    error: *mut ferry_error,
    body: impl FnOnce() -> Result<S, Error>,
) -> ferry_status {
    // SAFETY: the caller's promise is the same.
    let out = match unsafe { ErrorOut::new(error) } {
        Ok(out) => out,
        Err(status) => return status,
    };
    match caught(body) {
        Ok(success) => success.status(),
        Err(failure) => {
            out.fill(&failure);
            failure.status as ferry_status
        }
    }
}

/// Runs the body of an entry point that returns nothing; a failure cannot be reported.
pub fn quietly(body: impl FnOnce()) {
    let _ = caught(|| {
        body();
        Ok(())
    });
}

/// Runs `body` and turns a panic into PANIC with its message and place.
fn caught<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    note_panics();
    let _uncancelled = Uncancelled::new();
    // Unwind safety: a panic can leave only state behind the engine's locks half done. Each of these locks
    // handles poison itself and says why.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(outcome) => outcome,
        Err(payload) => {
            discard(payload);
            let place = LAST_PANIC.try_with(|text| text.take()).unwrap_or_default();
            Err(Error::new(Status::Panic, format!("a bug in ferry: {place}; the call's effect is unknown")))
        }
    }
}

extern "C" {
    /// POSIX. It does not fail for these two states.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Defers a pthread_cancel of this thread until it is dropped: the C library would unwind frames of Rust, which ends
/// the process, and leave the engine's state half done.
struct Uncancelled(c_int);

impl Uncancelled {
    fn new() -> Uncancelled {
        let mut old = 0;
        // SAFETY: a valid state, and an int of this stack.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut old) };
        Uncancelled(old)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that the thread had, and an int of this stack.
        unsafe { pthread_setcancelstate(self.0, &raw mut self.0) };
    }
}

/// Drops a panic's payload. Forgets the second payload if the drop panics as well.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

thread_local! {
    /// Message and place of the last panic of this thread.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Installs the panic hook once. It keeps the standard library from printing panics to the host's stderr.
fn note_panics() {
    static NOTE: Once = Once::new();
    if NOTE.is_completed() {
        return;
    }
    let note = || {
        // Under `cargo test` the harness prints panics.
        let previous = cfg!(test).then(take_hook);
        set_hook(Box::new(move |panic| {
            let place = panic.location().map(|at| format!("{}:{}", at.file(), at.line()));
            let payload = panic.payload();
            let message = payload.downcast_ref::<&str>().copied();
            let message = message.or(payload.downcast_ref::<String>().map(String::as_str));
            let text = format!("{}: {}", place.unwrap_or_default(), message.unwrap_or("panic"));
            // Fails only in a thread that is ending, or in a panic inside this hook.
            let _ = LAST_PANIC.try_with(|last| last.try_borrow_mut().map(|mut last| *last = text));
            if let Some(previous) = &previous {
                previous(panic);
            }
        }));
    };
    unforked(|| NOTE.call_once(note));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::FERRY_ERR_PANIC;

    #[test]
    fn a_panic_becomes_a_status_with_its_place() {
        let mut error = ferry_error::EMPTY;
        // SAFETY: a ferry_error on this stack.
        let status = unsafe {
            call(&mut error, || -> Result<(), Error> {
                let nothing: Option<u32> = std::hint::black_box(None);
                nothing.expect("expected to fail");
                Ok(())
            })
        };
        assert_eq!((status, error.status), (FERRY_ERR_PANIC, FERRY_ERR_PANIC));
        let message = error.text();
        assert!(message.contains("guard.rs:") && message.contains("expected to fail"), "{message}");
        // SAFETY: NULL is allowed.
        let again = unsafe { call(std::ptr::null_mut(), || Ok(())) };
        assert_eq!(again, FERRY_OK);
    }

    /// Both outcomes of a call give the thread back the state that it had.
    #[test]
    fn a_thread_is_not_cancelled_in_a_call() {
        extern "C" {
            fn pthread_self() -> usize;
            fn pthread_cancel(thread: usize) -> c_int;
            fn usleep(micros: u32) -> c_int;
        }
        for panics in [false, true] {
            let thread = std::thread::spawn(move || {
                quietly(|| {
                    // SAFETY: no memory is involved; `usleep` is where a cancelled thread ends.
                    let result = unsafe { (pthread_cancel(pthread_self()), usleep(1)) };
                    assert_eq!(result, (0, 0));
                    assert!(!panics, "a bug");
                });
                let ends_uncancelled = std::mem::ManuallyDrop::new(Uncancelled::new());
                ends_uncancelled.0
            });
            // 0: it can be cancelled. The thread itself never is, though the request is there.
            assert_eq!(thread.join().unwrap(), 0);
        }
    }

    #[test]
    fn a_payload_that_panics_in_turn_is_contained() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("the second one");
            }
        }
        // SAFETY: NULL is allowed.
        let status =
            unsafe { call(std::ptr::null_mut(), || -> Result<(), Error> { std::panic::panic_any(Bomb) }) };
        assert_eq!(status, FERRY_ERR_PANIC);
        quietly(|| panic!("nobody to tell"));
    }
}
