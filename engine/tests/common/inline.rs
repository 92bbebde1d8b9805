//! An executor that runs a task where it is woken, of one task that is run once.

use ferry::{Error, Status};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

type Outcome = Result<Status, Error>;

/// What the task does when it is woken, and what came of it.
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

    /// Whether the task was woken.
    pub fn has_run(&self) -> bool {
        self.act.lock().unwrap().is_none()
    }

    /// The task was woken, and what it did went well.
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
