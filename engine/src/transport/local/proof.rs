//! The look at a peer's memory checks whether system calls reach the memory, and whether it is the peer's. The look
//! waits for pages of the peer's process, which may never come. So each look has a thread of its own, and after a time
//! the path opens without the result.

use super::attach::PROOF_BYTES;
use super::process::{Obstacle, Process};
use super::service::LocalService;
use super::session::{PacketEffect, Why, TOO_MANY};
use super::sessions::Sessions;
use crate::status::reason;
use crate::sys::clock;
use crate::sys::landmark::Place;
use crate::sys::lock::Mutex;
use crate::sys::once::OnceLock;
use crate::sys::poller::{Poller, Ready};
use crate::sys::thread::{self, JoinHandle};
use crate::sys::turns::{self, Next, Turns};
use crate::types::{Monotonic, PeerId};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Time that the end of an engine gives to looks that are under way.
pub(super) const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// Where the peer's landmark and value are, as its board and its ATTACH claim.
pub struct Claim {
    pub process: Arc<Process>,
    pub place: Option<Place>,
    pub address: u64,
    pub value: [u8; PROOF_BYTES],
}

/// The peers whose looks have ended, for the service's thread.
pub type Ended = Arc<Mutex<Vec<PeerId>>>;

/// A look, under way or ended.
#[derive(Clone, Default)]
pub struct Proof(Arc<OnceLock<Result<(), Obstacle>>>);

impl Proof {
    /// Starts the look. Its end adds the peer to `ended` and wakes the poller. Nobody need wait for the thread.
    pub fn start(
        claim: Claim,
        peer: PeerId,
        ended: Ended,
        poller: Arc<Poller>,
    ) -> io::Result<(Proof, JoinHandle<()>)> {
        let proof = Proof::default();
        let look = Look { claim, proof: proof.clone(), peer, ended, poller: poller.clone() };
        let doing = "looking at a peer's memory";
        turns::start("ferry-proof", doing, poller, move || Some(look)).map(|thread| (proof, thread))
    }

    /// Returns a look that was not taken.
    pub fn refused(why: String) -> Proof {
        let proof = Proof::default();
        let _ = proof.0.set(Err(Obstacle::Unreadable(why)));
        proof
    }

    /// Returns what was found; None while the look is under way.
    pub fn found(&self) -> Option<&Result<(), Obstacle>> {
        self.0.get()
    }
}

impl LocalService {
    /// Starts the look at the memory of a peer that has attached. If an earlier look at the same peer is under way, the
    /// new look starts when the earlier one has ended.
    pub(super) fn prove(&self, sessions: &mut Sessions, peer: PeerId) {
        let Some(session) = sessions.all.get_mut(&peer).filter(|_| !sessions.proving.contains_key(&peer))
        else {
            return;
        };
        let Some(claim) = session.claim.take() else { return };
        match Proof::start(claim, peer, self.proofs_ended.clone(), self.poller.clone()) {
            Ok((proof, thread)) => {
                session.proof = Some(proof);
                sessions.proving.insert(peer, thread);
            }
            Err(error) => {
                let why = format!("starting a thread that looks at the peer's memory: {}", reason(&error));
                session.proof = Some(Proof::refused(why));
            }
        }
    }

    /// Waits for the looks that are under way, which hold descriptors. A look at a page that never comes outlives the
    /// engine.
    pub(super) fn end_looks(&self) {
        let looks = std::mem::take(&mut self.lock().proving);
        let until = Some(clock::now() + LOOK_PATIENCE);
        for look in looks.into_values().filter(|look| thread::ends(look, until)) {
            drop(look.join());
        }
    }

    /// Does what follows from a packet.
    pub(super) fn follow(
        &self,
        sessions: &mut Sessions,
        peer: PeerId,
        effect: PacketEffect,
    ) -> std::result::Result<(), Why> {
        let path = sessions.open.get(&peer).map(|(path, _)| path);
        match (effect, path) {
            (PacketEffect::Attached, _) => self.prove(sessions, peer),
            (PacketEffect::Mapped(id, mapped), Some(path)) => {
                let has_room = path.copier().mappings.add(id, mapped);
                path.note_change();
                return has_room.then_some(()).ok_or(TOO_MANY.into());
            }
            (PacketEffect::Unmapped(id), Some(path)) => {
                path.copier().mappings.remove(id);
                path.note_change();
            }
            _ => {}
        }
        Ok(())
    }
}

struct Look {
    claim: Claim,
    proof: Proof,
    peer: PeerId,
    ended: Ended,
    poller: Arc<Poller>,
}

impl Turns for Look {
    fn turn(&mut self, _: Monotonic, _: &[Ready]) -> Next {
        let Claim { process, place, address, value } = &self.claim;
        let _ = self.proof.0.set(process.prove(*place, *address, value));
        self.ended.lock().push(self.peer);
        self.poller.wake();
        Next::Over
    }
}
