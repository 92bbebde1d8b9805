//! Leases over two clocks that drift within the assumed bound, with samples that any delay makes old. When the lease of
//! a frame is over at the initiator, the target already refuses the frame.

use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::peer::LeaseClock;
use ferry::types::Boottime;

const MS: u64 = 1_000_000;
/// Where both clocks begin in true time; each shows its own number there.
const BEGIN_NS: u64 = 1 << 50;

#[derive(Arbitrary, Debug)]
struct Input {
    lease_ms: u32,
    /// The rates' errors in parts per million: within the bound of 1,000, which both share.
    here_ppm: i16,
    there_ppm: i16,
    /// The clocks' readings at the beginning.
    here_ns: u64,
    there_ns: u64,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Pass(u32),
    PassLong(u16),
    /// A frame of the peer that was so long under way.
    Sample(u32),
    SampleNow,
    Post,
    /// As `Sample`, by a thread that read its clock so long ago and stood still since.
    SampleLate(u32, u32),
}

struct Clock {
    begin_ns: u64,
    ppm: i64,
}

impl Clock {
    fn at(&self, true_ns: u64) -> Boottime {
        let passed = i128::from(true_ns - BEGIN_NS);
        let shown = passed + passed * i128::from(self.ppm) / 1_000_000;
        Boottime::from_ns(self.begin_ns + shown as u64)
    }
}

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    // The assumed bound of either rate is 1/1000.
    let here = Clock { begin_ns: input.here_ns >> 8 | 1 << 40, ppm: i64::from(input.here_ppm) % 1000 };
    let there = Clock { begin_ns: input.there_ns >> 8 | 1 << 40, ppm: i64::from(input.there_ppm) % 1000 };
    let lease_ns = (u64::from(input.lease_ms) % 600_000 + 50) * MS;
    let clock = LeaseClock::new(lease_ns);
    let (mut now_ns, mut last_sample_ns) = (BEGIN_NS, None::<u64>);
    for step in &input.steps {
        match step {
            Step::Pass(us) => now_ns += u64::from(*us % 10_000_000) * 1000,
            Step::PassLong(seconds) => now_ns += u64::from(*seconds) * 1000 * MS,
            Step::Sample(us) => {
                let sent_ns = now_ns.saturating_sub(u64::from(*us) * 1000).max(BEGIN_NS);
                clock.sample(there.at(sent_ns), here.at(now_ns));
                last_sample_ns = Some(now_ns);
            }
            Step::SampleLate(way_us, still_us) => {
                let before = |ns: u64, us: u32| ns.saturating_sub(u64::from(us) * 1000).max(BEGIN_NS);
                let read_ns = before(now_ns, *still_us);
                clock.sample(there.at(before(read_ns, *way_us)), here.at(read_ns));
                last_sample_ns = last_sample_ns.max(Some(read_ns));
            }
            Step::SampleNow => {
                clock.sample(there.at(now_ns), here.at(now_ns));
                last_sample_ns = Some(now_ns);
                let fresh = clock.not_after(here.at(now_ns)).expect("a fresh sample is enough");
                // At least half of the lease is left: otherwise nothing could be posted.
                assert!(fresh >= there.at(now_ns) + lease_ns / 2, "the lease of a fresh sample is short");
            }
            Step::Post => {
                let Some(not_after_ns) = clock.not_after(here.at(now_ns)) else {
                    let old = last_sample_ns.is_none_or(|at_ns| now_ns - at_ns > lease_ns * 60);
                    assert!(old, "a sample of this lease is too old");
                    continue;
                };
                assert!(last_sample_ns.is_some(), "nothing was sampled");
                // True time at which the initiator's clock shows that the lease is over.
                let over_ns = now_ns + lease_ns - lease_ns * 1000 / 1_001_000;
                assert!(here.at(over_ns) <= here.at(now_ns) + lease_ns);
                assert!(
                    there.at(over_ns) > not_after_ns,
                    "the target still applies a frame whose lease is over"
                );
            }
        }
    }
}
