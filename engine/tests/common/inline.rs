//! An executor that runs its task once, on the thread that wakes the task.

use ferry::{Error, Status};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

type Outcome = Result<Status, Error>;

/// The code that the task runs when it is woken, and its outcome.
pub struct Next {
    act: Mutex<Option<Box<dyn FnOnce() -> Outcome + Send>>>,
    done: Sender<Outcome>,
    outcome: Mutex<Receiver<Outcome>>,
}

impl Next {
    pub fn new(act: impl FnOnce() -> Outcome + Send + 'static) -> Arc<Next> {
        let (done, outcome) = channel();
        Arc::new(Next { act: Mutex::new(Some(Box::new(act))), done, outcome: Mutex::new(outcome) })
    }

    /// Returns whether the task was woken.
    pub fn has_run(&self) -> bool {
        self.act.lock().unwrap().is_none()
    }

    /// Asserts that the task was woken and succeeded.
    #[track_caller]
    pub fn assert_done(&self) {
        let outcome = self.outcome.lock().unwrap().recv_timeout(2 * super::PATIENCE);
        assert_eq!(outcome.expect("the task is woken").expect("what it waits for ends"), Status::Ok);
    }
}

impl Wake for Next {
    fn wake(self: Arc<Next>) {
        let act = self.act.lock().unwrap().take();
        if let Some(act) = act {
            let _ = self.done.send(act());
        }
    }
}

pub fn waker(next: &Arc<Next>) -> Waker {
    next.clone().into()
}
