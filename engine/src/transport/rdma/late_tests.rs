//! Tests of closing endpoints, above all endpoints whose devices flush late: no endpoint counts as closed too early.
//! Only a test inside the crate can choose which queue pair breaks, and when its device has flushed it.

use super::*;
use crate::command::Command;
use crate::complete::Fence;
use crate::loss::{Cause, Loss};
use crate::peer::{Closed, PeerState, TransportService};
use crate::region::holder::Holder;
use crate::transport::rdma::endpoint::Endpoint;
use crate::types::LaneId;
use crate::Transfer;

/// Longer than a test takes: nothing here ends because its lease is over.
const LEASE_MS: &str = "60000";
const SHORT: Duration = Duration::from_millis(200);

/// Endpoints whose devices flush late until this is dropped. (Otherwise a failing test's engine could not close.)
struct Slow(Vec<Arc<Endpoint>>);

impl Slow {
    fn new(endpoints: Vec<Arc<Endpoint>>) -> Slow {
        endpoints.iter().for_each(|it| it.hold(true));
        Slow(endpoints)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.0.iter().for_each(|it| it.hold(false));
    }
}

fn two() -> Two {
    Two::with_lease(LEASE_MS)
}

/// Starts a long WRITE of which the first pair of devices carries a part until its endpoint is given up: the target's
/// queue pairs are broken, unnoticed, and answer nothing. Otherwise Soft-RoCE completes a WRITE before the posting
/// call returns.
fn carried(two: &Two, local: &Memory, remote: &Memory, bytes: usize) -> Transfer {
    let (ours, theirs) = (two.here.endpoints()[0].clone(), two.there.endpoints()[0].clone());
    assert_eq!(ours.lane, theirs.lane);
    (1..theirs.qp_numbers.len()).for_each(|qp| theirs.kill(qp));
    let options = TransferOptions { deadline: Deadline::After(BOUND), ..TransferOptions::default() };
    let requests = [request(local, remote, 0, bytes)];
    let transfer = two.a.submit(two.peer, Op::Write, &requests, &options).unwrap();
    until("the endpoint carries something", || ours.watch.has_work());
    transfer
}

/// Waits until nothing is queued or in flight: only records of a lost endpoint are left of the transfer.
fn run_dry(two: &Two) {
    let peer = two.a.whole().peers.get(two.peer).unwrap();
    until("nothing is queued or under way", || {
        let idle = |path: &RdmaPath| !path.endpoints().iter().any(|it| it.watch.has_work());
        !peer.has_work(Transport::Rdma, false) && !peer.has_work(Transport::Rdma, true) && idle(&two.here)
    });
}

/// At either end, only the transfer waits for its endpoint.
#[test]
fn what_an_endpoint_carried_is_not_final_before_it_is_gone() {
    const BYTES: usize = 8 * MIB;
    if !is_here("late::what_an_endpoint_carried_is_not_final_before_it_is_gone") {
        return;
    }
    for held_here in [true, false] {
        let two = two();
        let (local, remote) = two.memories(BYTES);
        let (small, there) = two.memories(4096);
        let (ours, theirs) = (two.here.endpoints()[0].clone(), two.there.endpoints()[0].clone());
        let lanes = two.lanes_without(&[]);
        let slow = Slow::new(vec![if held_here { ours.clone() } else { theirs }]);
        let transfer = carried(&two, &local, &remote, BYTES);
        ours.kill(1);
        // The other end may still list the old endpoint, because it has heard nothing of the loss yet.
        until("the devices are paired anew", || {
            let (here, there) = (two.here.endpoints(), two.there.endpoints());
            let stands = |lane: LaneId| lane != lanes[0] && there.iter().any(|it| it.lane == lane);
            here.len() == 2 && here.iter().all(|it| stands(it.lane))
        });
        // The control threads serve everything else meanwhile.
        for _ in 0..3 {
            let (result, _) = two.run(Op::Write, &[request(&small, &there, 0, 4096)]);
            assert_eq!(result.state, State::Done);
            two.a.probe(two.peer, Some(BOUND)).unwrap();
        }
        run_dry(&two);
        // Keys that the peer gives up stay held, because an endpoint that still exists may use them. A lane that is
        // lost a second time still owes its answers.
        let initiator = two.b.peers().unwrap()[0];
        if !held_here {
            let loss = Loss::of(Cause::Ours, "once more");
            two.b.whole().commands.push(Command::LaneLost { peer: initiator, lane: lanes[0], loss });
            two.b.probe(initiator, Some(BOUND)).unwrap();
            assert_eq!(there.unregister(Some(SHORT)).unwrap_err().status, Status::Busy);
        }
        assert!(!transfer.state().is_final(), "held here: {held_here}: it is {:?}", transfer.state());
        let busy = local.unregister(Some(Duration::ZERO)).unwrap_err();
        assert_eq!(busy.status, Status::Busy);
        drop(slow);
        assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Done);
        assert!(contents(&remote, 0, BYTES) == pattern(7, BYTES));
        there.unregister(Some(BOUND)).unwrap();
        // An unacknowledged fence would have ended the session in time.
        let lost = [&two.a, &two.b].map(|it| it.whole().stats.sessions_lost.load(Ordering::Relaxed));
        assert_eq!(lost, [0, 0], "held here: {held_here}");
    }
}

/// A thread that closes a late endpoint is held up only briefly; the service waits for the device.
#[test]
fn a_late_endpoint_keeps_its_closing_thread_for_a_moment() {
    if !is_here("late::a_late_endpoint_keeps_its_closing_thread_for_a_moment") {
        return;
    }
    let two = two();
    let (service, endpoint) = (two.a.rdma().unwrap(), two.here.endpoints()[0].clone());
    let slow = Slow::new(vec![endpoint.clone()]);
    let began = Instant::now();
    let closed = service.close_lane(two.peer, endpoint.lane);
    let took = began.elapsed();
    assert!(matches!(closed, Some(Closed::Soon(_))));
    assert!(took < SHORT, "{took:?}");
    drop(slow);
    two.lanes_without(&[endpoint.lane]);
}

/// The peer may give up keys while one of its endpoints closes. They are released when it has ended.
#[test]
fn keys_let_go_of_while_an_endpoint_closes_are_released_with_it() {
    if !is_here("late::keys_let_go_of_while_an_endpoint_closes_are_released_with_it") {
        return;
    }
    const REGION: RegionId = RegionId::from_raw(70);
    let two = two();
    let (service, endpoint) = (two.a.rdma().unwrap(), two.here.endpoints()[0].clone());
    assert!(service.key_holders.give(REGION, two.peer));
    service.lock().flushing.let_go(two.peer, &[REGION]);
    assert_eq!(service.key_holders.holders(REGION), [two.peer]);
    assert!(matches!(service.close_lane(two.peer, endpoint.lane), Some(Closed::Quiet(_))));
    assert!(service.key_holders.holders(REGION).is_empty());
}

/// A thread that waited for an endpoint's lock while the endpoint began to close posts nothing behind the flush.
#[test]
fn nothing_is_posted_behind_the_beginning_of_the_end() {
    if !is_here("late::nothing_is_posted_behind_the_beginning_of_the_end") {
        return;
    }
    let two = two();
    let endpoint = two.here.endpoints()[0].clone();
    let asks = || {
        let mut asked = false;
        endpoint.post(
            1,
            |_| {
                asked = true;
                None
            },
            &mut endpoint.peer.after(),
        );
        asked
    };
    assert!(asks());
    endpoint.stop_posting();
    // Simulates a thread that read `broken` before the close began.
    endpoint.set_broken(false);
    assert!(!asks());
    endpoint.probe();
    assert!(!endpoint.watch.has_work());
    endpoint.set_broken(true);
}

/// At the target, the fence of the peer, its keys and the end of the transfer wait for the endpoints to end.
#[test]
fn a_peer_is_fenced_when_its_endpoints_are_gone() {
    const BYTES: usize = 8 * MIB;
    if !is_here("late::a_peer_is_fenced_when_its_endpoints_are_gone") {
        return;
    }
    let two = two();
    let (local, remote) = two.memories(BYTES);
    let initiator = two.b.peers().unwrap()[0];
    let theirs: Vec<Arc<Endpoint>> = two.there.endpoints().to_vec();
    let slow = Slow::new(theirs);
    let transfer = carried(&two, &local, &remote, BYTES);
    assert_eq!(two.b.fence(initiator, Some(SHORT)).unwrap_err().status, Status::Timeout);
    assert!(
        !transfer.state().is_final(),
        "nobody has told it that its lanes are closed: {:?}",
        transfer.state()
    );
    assert_eq!(remote.unregister(Some(SHORT)).unwrap_err().status, Status::Busy);
    drop(slow);
    two.b.fence(initiator, Some(BOUND)).unwrap();
    remote.unregister(Some(BOUND)).unwrap();
    let result = transfer.wait(Some(BOUND)).unwrap();
    assert_eq!((result.state, result.fence), (State::Failed, Fence::Confirmed), "{result:?}");
}

/// A new connection sends Ready once the lanes of the earlier connection are closed. The other side takes Ready as the
/// acknowledgement of all its fences.
#[test]
fn a_session_goes_on_when_the_endpoints_before_it_are_gone() {
    const BYTES: usize = 8 * MIB;
    if !is_here("late::a_session_goes_on_when_the_endpoints_before_it_are_gone") {
        return;
    }
    for held_here in [true, false] {
        let two = two();
        let (local, remote) = two.memories(BYTES);
        let (ours, theirs) = (two.here.endpoints().to_vec(), two.there.endpoints().to_vec());
        let initiator = two.b.peers().unwrap()[0];
        let (late, waiting, held) =
            if held_here { (&ours, &two.b, initiator) } else { (&theirs, &two.a, two.peer) };
        let object = waiting.whole().peers.get(held).unwrap();
        let lanes = object.path(Transport::Tcp).unwrap().lanes();
        let slow = Slow::new(late.clone());
        let transfer = carried(&two, &local, &remote, BYTES);
        let broken = Command::PathBroken { peer: two.peer, transport: Transport::Rdma };
        two.a.whole().commands.push(broken);
        until("the endpoints are given up at both ends", || {
            ours.iter().chain(&theirs).all(|it| it.is_broken())
        });
        // The lanes of the new connection are open, and earlier messages were handled before the probe's answer: only
        // Ready is missing.
        until("the connection is made anew", || {
            waiting.probe(held, Some(SHORT)).is_ok()
                && object.path(Transport::Tcp).is_some_and(|it| it.lanes() == lanes)
        });
        waiting.probe(held, Some(BOUND)).unwrap();
        assert_ne!(object.state(), PeerState::Up, "held here: {held_here}");
        assert!(!transfer.state().is_final(), "held here: {held_here}: it is {:?}", transfer.state());
        drop(slow);
        assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Done);
        assert!(contents(&remote, 0, BYTES) == pattern(7, BYTES));
    }
}
