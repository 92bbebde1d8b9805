//! An idle engine with idle peers costs next to nothing. Runs alone in its process, whose CPU time it reads.

mod common;

use common::process::cpu_time_idle;
use common::{request, run, Pair};
use ferry::types::Op;
use ferry::{Deadline, State, TransferOptions};
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(2);

#[test]
fn idle_engines_take_no_cpu() {
    for poller in ["epoll", "io_uring"] {
        let pair = Pair::new(&[("tcp_poller", poller)]);
        let (local, remote) = pair.memories(1 << 20, 1 << 20);
        // Every lane and the notifications have been used: nothing runs after that.
        for length in [64, 4096, 1 << 20] {
            for op in [Op::Write, Op::Read] {
                let one = [request(&local, 0, &remote, 0, length)];
                let result = run(&pair.a, pair.b_at_a, op, &one, &TransferOptions::default());
                assert_eq!(result.state, State::Done);
            }
        }
        pair.a.notify(pair.b_at_a, b"the last for now", Deadline::Default).unwrap();
        // The least of several measurements, in case one still includes the end of the exchange (a short spin, a late
        // wake-up) or the machine is busy.
        let mut least = cpu_time_idle(PERIOD);
        let mut tries = 1;
        while least >= PERIOD / 1000 && tries < 5 {
            least = least.min(cpu_time_idle(PERIOD));
            tries += 1;
        }
        println!("{poller}: two idle engines took {least:?} of {PERIOD:?}");
        assert!(least < PERIOD / 1000, "{poller}: {least:?} of {PERIOD:?}");
    }
}
