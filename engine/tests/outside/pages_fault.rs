//! A page of registered memory that faults, at either end, fails the requests that name it, with SYSTEM and EFAULT. It
//! raises no signal, and costs no lane and no other request.

use crate::common::data::{check, pattern};
use crate::common::{self, Pair, PATIENCE};
use crate::pages::{page_bytes, Loss, Pages};
use ferry::notify::{EventBody, WHAT_NOTIFICATIONS};
use ferry::types::{Op, RegionId, Request};
use ferry::{Notification, RegionOptions, RequestResult, State, Status, TransferOptions};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Local,
    Remote,
}

/// Three requests, of which the second names the page that is lost.
struct Case {
    pair: Pair,
    local: Pages,
    remote: Pages,
    regions: (RegionId, RegionId),
    length: usize,
    stride: usize,
}

impl Case {
    fn new(length: usize) -> Case {
        let pair = Pair::new(&[("transports", "tcp"), ("lanes", "1")]);
        // The request that faults lies last: a truncated file ends there.
        let stride = length.next_multiple_of(page_bytes()) + page_bytes();
        let pages = 3 * stride / page_bytes();
        let (local, remote) = (Pages::new(pages), Pages::new(pages));
        let regions = (local.register(&pair.a), remote.register(&pair.b));
        common::wait_for_region(&pair.a, pair.b_at_a, regions.1);
        Case { pair, local, remote, regions, length, stride }
    }

    /// The middle request of the transfer is the last one in memory.
    fn place(&self, nth: usize) -> usize {
        [0, 2, 1][nth] * self.stride
    }

    fn requests(&self) -> Vec<Request> {
        let request = |nth: usize| Request {
            local: self.local.address() + self.place(nth) as u64,
            remote: self.remote.address() + self.place(nth) as u64,
            length: self.length as u64,
            remote_region: self.regions.1,
        };
        (0..3).map(request).collect()
    }

    fn run(&self, op: Op, options: &TransferOptions) -> (State, Vec<RequestResult>, Notification) {
        let transfer = self.pair.a.submit(self.pair.b_at_a, op, &self.requests(), options).unwrap();
        let result = transfer.wait(Some(PATIENCE)).unwrap();
        (result.state, transfer.results(), result.notification)
    }

    fn lanes_lost(&self) -> u64 {
        let lost = |engine: &ferry::Engine| engine.stats().unwrap().counts.lanes_lost;
        lost(&self.pair.a) + lost(&self.pair.b)
    }

    /// Runs the transfer with the page lost, and the good requests once more.
    fn check(&self, what: &str, op: Op, checksum: bool, shares_fate: bool) {
        let (from, to) = match op {
            Op::Write => (&self.local, &self.remote),
            Op::Read => (&self.remote, &self.local),
        };
        let options = TransferOptions { no_coalesce: true, checksum, ..TransferOptions::default() };
        let (_, results, _) = self.run(op, &options);
        let seen: Vec<(Status, i32)> = results.iter().map(|it| (it.status, it.os_error)).collect();
        let (good, bad) = ((Status::Ok, 0), (Status::System, libc::EFAULT));
        let beside = if shares_fate { bad } else { good };
        assert_eq!(seen, [beside, bad, beside], "{what}");
        let good = [self.requests()[0], self.requests()[2]];
        let again = self.pair.a.submit(self.pair.b_at_a, op, &good, &options).unwrap();
        assert_eq!(again.wait(Some(PATIENCE)).unwrap().status, Status::Ok, "{what}");
        for nth in [0, 2] {
            let [from, to] = [from, to].map(|pages| pages.read(self.place(nth), self.length));
            check(what, &to, &from);
        }
        assert_eq!(self.lanes_lost(), 0, "{what}");
    }

    fn fill(&self) {
        for nth in 0..3 {
            self.local.write(self.place(nth), &pattern(nth as u32 + 1, self.length));
            self.remote.write(self.place(nth), &pattern(nth as u32 + 11, self.length));
        }
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.pair.a.unregister(self.regions.0, Some(PATIENCE)).unwrap();
            self.pair.b.unregister(self.regions.1, Some(PATIENCE)).unwrap();
        }
    }
}

fn each_case(length: usize) {
    for loss in [Loss::Unmapped, Loss::Truncated, Loss::ReadOnly] {
        for (op, side) in [
            (Op::Write, Side::Local),
            (Op::Write, Side::Remote),
            (Op::Read, Side::Local),
            (Op::Read, Side::Remote),
        ] {
            let is_source = (op == Op::Write) == (side == Side::Local);
            if loss == Loss::ReadOnly && is_source {
                continue;
            }
            for checksum in [false, true] {
                let case = Case::new(length);
                case.fill();
                let pages = if side == Side::Local { &case.local } else { &case.remote };
                // In the midst of a large request, behind pages that are there.
                pages.lose(case.place(1) + length / 2, loss);
                let what = format!("{op:?} of {length}, {loss:?} {side:?}, checksum {checksum}");
                // Bytes that are not in memory can't be compared: docs/contracts.md.
                let shares_fate = checksum && !is_source && 3 * length <= 1 << 20;
                case.check(&what, op, checksum, shares_fate);
            }
        }
    }
}

#[test]
fn a_small_request_whose_page_faults_fails_alone() {
    each_case(64);
}

#[test]
fn a_request_of_pages_of_which_one_faults_fails_alone() {
    each_case(20_000);
}

#[test]
fn a_large_request_with_a_page_that_faults_in_its_midst_fails_alone() {
    each_case(1 << 20);
}

/// The target must not take filler for the data of a notification.
#[test]
fn data_that_cannot_be_read_is_not_announced() {
    for length in [64, 20_000, 300_000] {
        let case = Case::new(length);
        case.fill();
        case.local.lose(case.place(1) + length / 2, Loss::Unmapped);
        let arrived = case.pair.b.queue(WHAT_NOTIFICATIONS, 8).unwrap();
        let options =
            |text| TransferOptions { no_coalesce: true, notify: Some(text), ..TransferOptions::default() };
        let (state, results, notification) = case.run(Op::Write, &options(b"not this"));
        assert_eq!(state, State::Failed, "{length}");
        assert_eq!((results[1].status, results[1].os_error), (Status::System, libc::EFAULT), "{length}");
        assert_ne!(notification, Notification::Delivered, "{length}");
        // The number of the notification that was given up holds up none behind it.
        let good = [case.requests()[0], case.requests()[2]];
        let next = case.pair.a.submit(case.pair.b_at_a, Op::Write, &good, &options(b"this")).unwrap();
        let next = next.wait(Some(PATIENCE)).unwrap();
        assert_eq!((next.status, next.notification), (Status::Ok, Notification::Delivered), "{length}");
        let mut events = Vec::new();
        common::eventually("a notification is delivered", || {
            arrived.drain(&mut events, 8);
            !events.is_empty()
        });
        let said: Vec<&[u8]> = events
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::Notification { bytes, .. } => Some(&**bytes),
                _ => None,
            })
            .collect();
        assert_eq!(said, [b"this"], "{length}");
        // The head of a larger frame may have left before its data faults: then the lane ends.
        assert!(case.lanes_lost() == 0 || length > 64, "{length}");
    }
}

/// What lies together where it is read goes to the kernel as one, and apart at the other end.
#[test]
fn requests_that_lie_together_where_they_are_read_fail_alone() {
    let page = page_bytes();
    for (op, lost, checksum) in [Op::Write, Op::Read]
        .into_iter()
        .flat_map(|op| (0..3).flat_map(move |lost| [false, true].map(|checksum| (op, lost, checksum))))
    {
        let case = Case::new(2 * page);
        let (from, to) = match op {
            Op::Write => (&case.local, &case.remote),
            Op::Read => (&case.remote, &case.local),
        };
        from.write(0, &pattern(1, 3 * page));
        let apart = |nth: usize| 2 * nth * page;
        let requests: Vec<Request> = (0..3)
            .map(|nth| {
                let (from, to) = (from.address() + (nth * page) as u64, to.address() + apart(nth) as u64);
                let (local, remote) = if op == Op::Write { (from, to) } else { (to, from) };
                Request { local, remote, length: page as u64, remote_region: case.regions.1 }
            })
            .collect();
        let expected: Vec<Vec<u8>> = (0..3).map(|nth| from.read(nth * page, page)).collect();
        from.lose(lost * page, Loss::Unmapped);
        let options = TransferOptions { checksum, ..TransferOptions::default() };
        let transfer = case.pair.a.submit(case.pair.b_at_a, op, &requests, &options).unwrap();
        transfer.wait(Some(PATIENCE)).unwrap();
        let what = format!("{op:?}, request {lost}, checksum {checksum}");
        for (nth, result) in transfer.results().iter().enumerate() {
            if nth == lost {
                assert_eq!((result.status, result.os_error), (Status::System, libc::EFAULT), "{what}");
            } else {
                assert_eq!(result.status, Status::Ok, "{what}");
                check(&what, &to.read(apart(nth), page), &expected[nth]);
            }
        }
        assert_eq!(case.lanes_lost(), 0, "{what}");
    }
}

/// Memory that ferry allocated is mapped by peers of this host; what the program registered at the other end may fault.
#[test]
fn memory_that_faults_beside_a_mapping_of_the_peers_raises_no_signal() {
    let pair = Pair::new(&[("transports", "local,tcp")]);
    let length = 4 * page_bytes();
    let remote = pair.b.alloc(length, &RegionOptions::default()).unwrap();
    common::wait_for_region(&pair.a, pair.b_at_a, remote.region());
    for (op, loss) in [
        (Op::Write, Loss::Truncated),
        (Op::Write, Loss::Unmapped),
        (Op::Read, Loss::ReadOnly),
        (Op::Read, Loss::Truncated),
    ] {
        let local = Pages::new(4);
        let region = local.register(&pair.a);
        local.write(0, &pattern(3, length));
        local.lose(3 * page_bytes(), loss);
        for length in [64, 3 * page_bytes(), length] {
            let at = if length == 64 { 3 * page_bytes() } else { 0 };
            let request = Request {
                local: local.address() + at as u64,
                remote: remote.address(),
                length: length as u64,
                remote_region: remote.region(),
            };
            let options = TransferOptions::default();
            let at_once = pair.a.at_once(pair.b_at_a, op, &[request], &options).unwrap();
            let faults = length != 3 * page_bytes();
            assert!(at_once.is_none() || !faults, "{op:?}, {loss:?}, {length}");
            let transfer = pair.a.submit(pair.b_at_a, op, &[request], &options).unwrap();
            transfer.wait(Some(PATIENCE)).unwrap();
            let result = &transfer.results()[0];
            let expected = if faults { (Status::System, libc::EFAULT) } else { (Status::Ok, 0) };
            assert_eq!((result.status, result.os_error), expected, "{op:?}, {loss:?}, {length}");
        }
        pair.a.unregister(region, Some(PATIENCE)).unwrap();
    }
}
