//! Why a lane or a session's connection was lost. Only the first cause that this side saw is kept, because its
//! consequences (a reset after a refused frame, for example) explain nothing.

use crate::status::{reason, Status};
use crate::sys::clock;
use crate::types::Transport;
use std::io;
use std::time::SystemTime;

macro_rules! causes {
    ($($variant:ident $name:literal $help:literal,)*) => {
        /// The kind of a loss, as the metrics count it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Cause { $(#[doc = $help] $variant,)* }

        impl Cause {
            pub const ALL: &'static [Cause] = &[$(Cause::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(Cause::$variant => $name,)* }
            }

            /// Returns the status of what fails for this cause.
            pub fn status(self) -> Status {
                match self {
                    Cause::Damaged | Cause::Forged => Status::Corrupt,
                    Cause::Silent | Cause::Lease => Status::Timeout,
                    Cause::System => Status::System,
                    Cause::Closed | Cause::Ended | Cause::Ours => Status::PeerLost,
                }
            }
        }
    };
}

causes! {
    Closed "closed" "The peer closed the connection.",
    System "system" "A system call or a device refused; the errno says why.",
    Silent "silent" "Nothing moved, or nothing was answered, for as long as the settings allow.",
    Damaged "damaged" "A frame or a message failed a check other than its MAC's.",
    Forged "forged" "A frame or a message failed the check of its MAC.",
    Lease "lease" "The lease of a frame was over before its payload had been placed.",
    Ended "ended" "The peer's process has ended, or another one is in its place.",
    Ours "ours" "This engine closed it: for a transfer that was stopped, or with the session.",
}

/// A failure as the data path sees it. Plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub cause: Cause,
    /// The operation that failed, or the check.
    pub what: &'static str,
    /// errno; 0 if there is none.
    pub os_error: i32,
}

impl Failure {
    pub const fn new(cause: Cause, what: &'static str) -> Failure {
        Failure { cause, what, os_error: 0 }
    }

    /// A system call failed.
    pub fn system(what: &'static str, error: &io::Error) -> Failure {
        Failure { cause: Cause::System, what, os_error: error.raw_os_error().unwrap_or(0) }
    }

    pub fn status(&self) -> Status {
        self.cause.status()
    }
}

/// A failure with the text that a reader needs to find its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub cause: Cause,
    pub transport: Transport,
    pub os_error: i32,
    /// One sentence: the operation or the check, both addresses, and the system's text for the errno.
    pub text: String,
    pub at: SystemTime,
}

impl Loss {
    /// `where_`: the connection, for example "lane 3, 10.0.0.1:4711 to 10.0.0.2:7000".
    pub fn new(failure: Failure, where_: &str) -> Loss {
        let Failure { cause, what, os_error } = failure;
        let mut text = format!("{where_}: {what}");
        if os_error != 0 {
            text += &format!(": {}", reason(&io::Error::from_raw_os_error(os_error)));
        }
        Loss { cause, transport: Transport::Tcp, os_error, text, at: clock::wall() }
    }

    /// Returns the loss for a cause that comes with its own text, for example from a device.
    pub fn of(cause: Cause, text: impl Into<String>) -> Loss {
        Loss { cause, transport: Transport::Tcp, os_error: 0, text: text.into(), at: clock::wall() }
    }

    /// Sets the transport; the default is TCP.
    pub fn over(self, transport: Transport) -> Loss {
        Loss { transport, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_says_operation_place_and_errno() {
        let error = io::Error::from_raw_os_error(libc::ECONNRESET);
        let loss = Loss::new(Failure::system("receiving", &error), "lane 3, a to b");
        assert_eq!(loss.text, "lane 3, a to b: receiving: Connection reset by peer");
        assert_eq!((loss.cause, loss.os_error), (Cause::System, libc::ECONNRESET));
        let loss = Loss::new(Failure::new(Cause::Forged, "a frame's MAC is wrong"), "lane 1, a to b");
        assert_eq!(loss.text, "lane 1, a to b: a frame's MAC is wrong");
    }

    #[test]
    fn names_are_labels_and_differ() {
        let mut names: Vec<&str> = Cause::ALL.iter().map(|cause| cause.name()).collect();
        assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase())));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
    }
}
