//! Reads authenticated control connections, a bounded piece at a time. Messages are opened, decoded and checked for
//! their order, then passed to their session. `messages` carries them out.

use super::conn::{ConnState, ControlConn, Offered};
use super::Control;
use crate::limits::{BROKEN_BYTES_MAX, CONTROL_TURN_BYTES};
use crate::loss::{Cause, Failure};
use crate::session::message::Message;
use crate::status::{Error, Status};
use crate::sys::stream::Input;
use crate::types::Monotonic;

impl Control {
    /// Sends our Start after the handshake, and waits for the peer's.
    pub(super) fn begin_control(&mut self, token: u64, mut control: ControlConn) {
        let Offered { association, known, fresh, .. } = control.offered;
        let start = Message::Start { association, known, fresh }.encode();
        let sealed = control.channel.seal(&start, control.stream.out());
        if sealed.is_err() {
            return self.control_ended(control, Failure::new(Cause::Ours, "sealing a message"));
        }
        if let Err(error) = control.stream.flush() {
            return self.control_ended(control, Failure::system("sending", &error));
        }
        // Input that came with the handshake's last bytes is already read; the poller does not report it.
        let deadline = Some(self.handshake_deadline());
        self.read_messages(token, Box::new(control), deadline);
    }

    /// Runs one turn of a connection: reads and handles a bounded piece. The poller reports the rest again.
    pub(super) fn control(&mut self, token: u64, mut control: Box<ControlConn>, deadline: Option<Monotonic>) {
        // If writing fails, the peer may have sent the reason before: input that has arrived is still read.
        if control.broken.is_none() {
            let flushed = control.stream.flush();
            control.broken = flushed.err().map(|error| Failure::system("sending", &error));
        }
        let ended = match control.stream.read(CONTROL_TURN_BYTES) {
            Ok(Input::Bytes(bytes)) => {
                control.input.extend_from_slice(&bytes);
                control.bytes_since_broken += if control.broken.is_some() { bytes.len() } else { 0 };
                control.broken.filter(|_| control.bytes_since_broken > BROKEN_BYTES_MAX)
            }
            Ok(Input::Nothing) => control.broken,
            Ok(Input::End) => Some(Failure::new(Cause::Closed, "the peer closed the connection")),
            Err(error) => Some(Failure::system("receiving", &error)),
        };
        if let Some(failure) = ended {
            // Messages before the end still count, above all a Bye.
            let _ = self.handle_messages(token, &mut control);
            self.drain_inbox();
            return self.control_ended(*control, failure);
        }
        self.read_messages(token, control, deadline);
    }

    fn read_messages(&mut self, token: u64, mut control: Box<ControlConn>, deadline: Option<Monotonic>) {
        let before = control.peer;
        let handled = self.handle_messages(token, &mut control);
        let peer = control.peer;
        match handled {
            Ok(true) => {
                let deadline = deadline.filter(|_| peer.is_none());
                self.insert(token, ConnState::Control(control), deadline);
                if let (Some(peer), None) = (peer, before) {
                    self.started(peer, token);
                }
                peer.into_iter().for_each(|peer| self.announcer.queue(peer));
                self.drain_inbox();
            }
            Ok(false) => {
                self.control_ended(*control, Failure::new(Cause::Ours, "the connection was not accepted"))
            }
            // Only a process between the two engines makes a MAC wrong, so the connection ends and not the session.
            Err(_) if peer.is_none() || control.channel.is_corrupt() => {
                self.drain_inbox();
                let failure = if control.channel.is_corrupt() {
                    Failure::new(Cause::Forged, "the MAC of a message is wrong")
                } else {
                    Failure::new(Cause::Damaged, "a message that is not allowed now")
                };
                self.control_ended(*control, failure)
            }
            Err(_) => {
                self.insert(token, ConnState::Control(control), None);
                self.drain_inbox();
                peer.into_iter().for_each(|peer| self.misbehaved(peer));
            }
        }
    }

    /// Opens the messages that have arrived. Before the session is found, only a Start is accepted; later messages are
    /// queued in `inbox`. False ends the connection.
    fn handle_messages(&mut self, token: u64, control: &mut ControlConn) -> Result<bool, Error> {
        let mut input = std::mem::take(&mut control.input);
        let mut at = 0;
        while let Some((plain, consumed)) = control.channel.open_next(&input[at..])? {
            at += consumed;
            let corrupt = || Error::new(Status::Corrupt, "the control channel carries an invalid message");
            let message = Message::decode(&plain).map_err(|_| corrupt())?;
            match (control.peer, message) {
                (None, Message::Start { association, known, fresh }) => {
                    let resumes = association != 0
                        && association == control.offered.known
                        && known == control.offered.association;
                    let Some(peer) = self.find_session(token, control, resumes, fresh) else {
                        return Ok(false);
                    };
                    control.peer = Some(peer);
                }
                (None, _) | (Some(_), Message::Start { .. }) => return Err(corrupt()),
                (Some(_), message) if !control.order.takes(&message) => return Err(corrupt()),
                (Some(peer), message) => self.inbox.push_back((token, peer, message)),
            }
        }
        input.drain(..at);
        control.input = input;
        Ok(true)
    }

    /// Handles queued messages whose connection is still their session's: an answer on an earlier connection does not
    /// belong to a question on the next.
    fn drain_inbox(&mut self) {
        while let Some((token, peer, message)) = self.inbox.pop_front() {
            if self.sessions.get(peer).is_some_and(|session| session.conn == Some(token)) {
                self.message(peer, message);
            }
        }
    }
}
