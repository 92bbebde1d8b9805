//! A peer's outbox, strikes, losses and sweeps: contracts 1, 2, 10 and 11 in every order of the threads that submit,
//! post, settle, strike and sweep.

use crate::rig::*;
use ferry::internals::complete::{is_pending, notification_number};
use ferry::internals::peer::{Peer, Pulled};
use ferry::types::{Monotonic, SliceRange};
use ferry::{Fence, Notification, State, Status, TransferCore};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

struct Rig {
    peer: Peer,
    first: Arc<TransferCore>,
    second: Arc<TransferCore>,
    target: RefCell<Target>,
    refused: Cell<bool>,
}

impl Rig {
    fn new(first: Wish, second: Wish) -> Rc<Rig> {
        Rc::new(Rig {
            peer: peer(),
            first: first.transfer(1),
            second: second.transfer(2),
            target: RefCell::default(),
            refused: Cell::new(false),
        })
    }

    fn submit(&self, transfer: &Arc<TransferCore>) {
        self.peer.submit(transfer.clone()).unwrap();
    }

    /// Takes all that is queued. The target's books change where nothing switches.
    fn serve(&self) {
        while let Some(pulled) = pull(&self.peer, 1) {
            self.answer(pulled);
        }
    }

    fn answer(&self, pulled: Pulled) {
        match pulled {
            Pulled::Slices { transfer, range, with_notification, .. } => {
                if with_notification {
                    self.target.borrow_mut().take(notification_number(&transfer), false);
                }
                confirm(&self.peer, &transfer, range, with_notification);
            }
            Pulled::Notify(transfer) => {
                self.target.borrow_mut().take(notification_number(&transfer), false);
                self.peer.confirm_notification(&transfer, &mut self.peer.after());
            }
            Pulled::Skip(number) => self.target.borrow_mut().take(number, true),
        }
    }
}

/// A thread posts and settles while another cancels. The transfer ends once, its notification's number is taken or
/// given up, and what the result says of it is what the target saw.
#[test]
fn a_cancel_meets_a_thread_that_posts() {
    explore(2, || {
        let rig = Rig::new(Wish { slices: 2, notify: true, ..Wish::default() }, Wish::default());
        rig.submit(&rig.first);
        let posts = start(&rig, "posts", Rig::serve);
        let cancels = start(&rig, "cancels", |rig| {
            rig.peer.strike(&rig.first, CANCEL);
        });
        join([posts, cancels]);
        rig.serve();
        control(&rig.peer);
        check_end(&rig.peer, &[&rig.first]);
        let result = rig.first.result().unwrap();
        let mut target = rig.target.borrow_mut();
        let (delivered, skipped) = (target.delivered.len(), target.skipped.len());
        match result.notification {
            Notification::Delivered => assert_eq!((result.state, delivered), (State::Done, 1)),
            Notification::NotSent => assert_eq!((result.state, delivered, skipped), (State::Cancelled, 0, 1)),
            other => panic!("{other:?}, although every frame was answered"),
        }
        assert!(target.accept_all(1), "the number is neither taken nor given up");
    });
}

/// A cancel that comes before, during or after the submit.
#[test]
fn a_cancel_meets_the_submit() {
    explore(3, || {
        let rig = Rig::new(Wish { slices: 1, notify: true, ..Wish::default() }, Wish::default());
        let submits = start(&rig, "submits", |rig| rig.submit(&rig.first));
        let cancels = start(&rig, "cancels", |rig| assert!(rig.peer.strike(&rig.first, CANCEL)));
        join([submits, cancels]);
        rig.serve();
        check_end(&rig.peer, &[&rig.first]);
        assert_eq!(rig.first.result().unwrap().state, State::Cancelled);
    });
}

/// The records of a lost lane are released while the transfer is cancelled: it is queued again whole, or given up.
#[test]
fn a_cancel_meets_the_release_of_a_lost_lane() {
    explore(2, || {
        let rig = Rig::new(Wish { slices: 2, notify: true, ..Wish::default() }, Wish::default());
        rig.submit(&rig.first);
        // The whole transfer in one frame, which the target has applied.
        let Some(Pulled::Slices { range, with_notification: true, .. }) = pull(&rig.peer, 2) else {
            panic!("not one frame")
        };
        rig.target.borrow_mut().take(0, false);
        let releases = start(&rig, "releases", move |rig| {
            rig.peer.release_run(&rig.first, range, true, Fence::Lease, &mut rig.peer.after());
        });
        let cancels = start(&rig, "cancels", |rig| {
            rig.peer.strike(&rig.first, CANCEL);
        });
        join([releases, cancels]);
        rig.serve();
        check_end(&rig.peer, &[&rig.first]);
        let result = rig.first.result().unwrap();
        assert_eq!((result.state, result.notification), (State::Cancelled, Notification::Unknown));
        assert!(rig.target.borrow_mut().accept_all(1));
        assert_eq!(rig.target.borrow().delivered, [0], "a notification is delivered twice");
    });
}

/// The peer is lost while one transfer is submitted and the frame of another is released. Nothing ends OK, and the
/// control loop learns when the last one has ended.
#[test]
fn a_loss_meets_a_submit_and_a_release() {
    explore(2, || {
        let rig = Rig::new(Wish { slices: 2, ..Wish::default() }, Wish { slices: 1, ..Wish::default() });
        rig.submit(&rig.first);
        let Some(Pulled::Slices { range, .. }) = pull(&rig.peer, 1) else { panic!("no data") };
        let submits = start(&rig, "submits", |rig| {
            rig.refused.set(rig.peer.submit(rig.second.clone()).is_err());
        });
        let releases = start(&rig, "releases", move |rig| {
            rig.peer.release_run(&rig.first, range, false, Fence::Dead, &mut rig.peer.after());
        });
        // The control loop.
        rig.peer.set_lost(Status::PeerLost);
        while rig.peer.sweep(Monotonic::ZERO) {}
        let was_idle = rig.peer.active() == 0;
        join([submits, releases]);
        let told = control(&rig.peer);
        let ended: &[_] = if rig.refused.get() { &[&rig.first] } else { &[&rig.first, &rig.second] };
        check_end(&rig.peer, ended);
        for transfer in ended {
            assert_eq!(transfer.result().unwrap().status, Status::PeerLost);
        }
        assert!(was_idle || told, "nobody tells the control loop that the lost peer is idle");
    });
}

/// A request for a sweep is not lost between a sweep's last look and its end.
#[test]
fn a_request_meets_the_end_of_a_sweep() {
    explore(3, || {
        let wish = || Wish { slices: 1, ordered: true, ..Wish::default() };
        let rig = Rig::new(wish(), wish());
        rig.submit(&rig.first);
        rig.submit(&rig.second);
        let Some(Pulled::Slices { range, .. }) = pull(&rig.peer, 1) else { panic!("no data") };
        // The first one fails, which dooms the second: the thread that settles asks for a sweep.
        let fails = start(&rig, "fails", move |rig| {
            rig.peer.strike(&rig.first, CANCEL);
            rig.peer.release_run(&rig.first, range, false, Fence::Confirmed, &mut rig.peer.after());
        });
        while rig.peer.sweep(Monotonic::ZERO) {}
        join([fails]);
        control(&rig.peer);
        check_end(&rig.peer, &[&rig.first, &rig.second]);
        assert_eq!(rig.second.result().unwrap().status, Status::Cancelled);
    });
}

/// A failure asks for a sweep while the sweep of an earlier failure ends: what it dooms is not forgotten.
#[test]
fn a_second_request_meets_the_end_of_a_sweep() {
    explore(2, || {
        let wish = || Wish { slices: 1, ordered: true, ..Wish::default() };
        let rig = Rig::new(wish(), wish());
        let [third, fourth] = [3, 4].map(|handle| wish().transfer(handle));
        rig.submit(&rig.first);
        rig.submit(&rig.second);
        let Some(Pulled::Slices { range, .. }) = pull(&rig.peer, 1) else { panic!("no data") };
        rig.peer.strike(&rig.first, CANCEL);
        rig.peer.release_run(&rig.first, range, false, Fence::Confirmed, &mut rig.peer.after());
        let later = [third.clone(), fourth.clone()];
        let fails = start(&rig, "fails", move |rig| {
            later.iter().for_each(|transfer| rig.submit(transfer));
            // Nothing is posted while the first failure cancels what is submitted.
            if let Some(Pulled::Slices { transfer, range, .. }) = pull(&rig.peer, 1) {
                rig.peer.strike(&transfer, CANCEL);
                rig.peer.release_run(&transfer, range, false, Fence::Confirmed, &mut rig.peer.after());
            }
        });
        // The sweep that the first failure has asked for.
        control(&rig.peer);
        join([fails]);
        control(&rig.peer);
        rig.serve();
        check_end(&rig.peer, &[&rig.first, &rig.second, &third, &fourth]);
    });
}

/// The last transfer of a peer ends while the peer is lost: either the control loop finds the peer idle after the loss,
/// or it is told.
#[test]
fn a_loss_meets_the_last_end() {
    explore(2, || {
        let rig = Rig::new(Wish { slices: 1, ..Wish::default() }, Wish::default());
        rig.submit(&rig.first);
        let Some(Pulled::Slices { range, .. }) = pull(&rig.peer, 1) else { panic!("no data") };
        let settles = start(&rig, "settles", move |rig| confirm(&rig.peer, &rig.first, range, false));
        rig.peer.set_lost(Status::PeerLost);
        while rig.peer.sweep(Monotonic::ZERO) {}
        let was_idle = rig.peer.active() == 0;
        join([settles]);
        let told = control(&rig.peer);
        check_end(&rig.peer, &[&rig.first]);
        assert!(was_idle || told, "nobody tells the control loop that the lost peer is idle");
    });
}

/// No byte of an ORDERED transfer is posted before the one ahead of it is done.
#[test]
fn an_ordered_transfer_waits_for_the_one_ahead() {
    explore(2, || {
        let wish = || Wish { slices: 1, ordered: true, ..Wish::default() };
        let rig = Rig::new(wish(), wish());
        rig.submit(&rig.first);
        let Some(Pulled::Slices { range, .. }) = pull(&rig.peer, 1) else { panic!("no data") };
        let settles = start(&rig, "settles", move |rig| confirm(&rig.peer, &rig.first, range, false));
        let follows = start(&rig, "follows", |rig| {
            rig.submit(&rig.second);
            while let Some(pulled) = pull(&rig.peer, 1) {
                assert!(!is_pending(&rig.first) || rig.first.progress().bytes_confirmed != 0, "too early");
                rig.answer(pulled);
            }
        });
        join([settles, follows]);
        rig.serve();
        check_end(&rig.peer, &[&rig.first, &rig.second]);
    });
}

/// Two lanes post one transfer: no slice is posted twice, and none is left.
#[test]
fn two_lanes_share_a_transfer() {
    explore(2, || {
        let rig = Rig::new(Wish { slices: 3, notify: true, ..Wish::default() }, Wish::default());
        rig.submit(&rig.first);
        let lane = |rig: &Rc<Rig>, name: &str| start(rig, name, Rig::serve);
        join([lane(&rig, "lane-0"), lane(&rig, "lane-1")]);
        rig.serve();
        check_end(&rig.peer, &[&rig.first]);
        assert_eq!(rig.first.result().unwrap().state, State::Done);
        assert_eq!(rig.target.borrow().delivered, [0]);
        let all = SliceRange { first: 0, end: 3 };
        assert_eq!(rig.first.progress().bytes_confirmed, u64::from(all.count() * SLICE_BYTES));
    });
}
