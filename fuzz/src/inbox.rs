//! Incoming notifications: any numbers, twice, skipped or beyond the credits. They are delivered once, in order, without
//! gaps, and data with a number is taken in by one lane at a time.

use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::peer::{Accepted, Arrival, Inbox};
use ferry::limits::NOTIFY_CREDITS;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Arbitrary, Debug)]
enum Step {
    Accept(Number, bool),
    Arrives(Number),
    Departs(Number),
    /// The application takes so many.
    Take(u16),
    Grant,
}

#[derive(Arbitrary, Debug)]
enum Number {
    /// From the next number on.
    Near(u8),
    /// Before it.
    Past(u8),
    /// From the limit on.
    Limit(i8),
    Any(u64),
}

#[derive(Default)]
struct Model {
    decided: BTreeMap<u64, bool>,
    arriving: BTreeSet<u64>,
    next: u64,
    delivered: u64,
    taken: u64,
}

impl Model {
    fn number(&self, number: &Number, limit: u64) -> u64 {
        match *number {
            Number::Near(ahead) => self.next + u64::from(ahead),
            Number::Past(back) => self.next.saturating_sub(back.into()),
            Number::Limit(off) => limit.saturating_add_signed(off.into()),
            Number::Any(number) => number,
        }
    }
}

pub fn run(data: &[u8]) {
    let Ok(steps) = Vec::<Step>::arbitrary(&mut Unstructured::new(data)) else { return };
    let (mut inbox, mut model) = (Inbox::new(), Model::default());
    for step in steps {
        let limit = inbox.granted();
        match step {
            Step::Accept(number, skipped) => {
                let number = model.number(&number, limit);
                let body = (!skipped).then(|| number.to_le_bytes().into());
                match inbox.accept(number, body) {
                    Accepted::Duplicate => assert!(model.decided.contains_key(&number), "{number} is new"),
                    Accepted::Overrun => assert!(number >= limit && !model.decided.contains_key(&number)),
                    Accepted::Deliver(bodies) => {
                        assert!(number < limit, "{number} is beyond the limit {limit}");
                        assert_eq!(model.decided.insert(number, skipped), None, "{number} twice");
                        let mut expected = Vec::new();
                        while let Some(skipped) = model.decided.get(&model.next) {
                            if *skipped {
                                model.taken += 1;
                            } else {
                                expected.push(Box::from(model.next.to_le_bytes()));
                                model.delivered += 1;
                            }
                            model.next += 1;
                        }
                        assert_eq!(bodies, expected, "not once, or not in order");
                    }
                }
            }
            Step::Arrives(number) => {
                let number = model.number(&number, limit);
                let expected = match number {
                    number if model.decided.contains_key(&number) => Arrival::Duplicate,
                    number if model.arriving.contains(&number) => Arrival::Busy,
                    _ => Arrival::Fresh,
                };
                assert_eq!(inbox.arrives(number), expected);
                if expected == Arrival::Fresh {
                    model.arriving.insert(number);
                }
            }
            Step::Departs(number) => {
                let number = model.number(&number, limit);
                inbox.departs(number);
                model.arriving.remove(&number);
            }
            Step::Take(count) => {
                for _ in 0..u64::from(count % 600).min(model.delivered) {
                    (model.delivered, model.taken) = (model.delivered - 1, model.taken + 1);
                    granted(inbox.take(), &inbox, limit);
                }
            }
            Step::Grant => granted(inbox.grant(), &inbox, limit),
        }
        // The application's progress bounds the numbers that may come.
        assert!(inbox.granted() <= model.taken + u64::from(NOTIFY_CREDITS));
        assert!(inbox.granted() >= limit, "a grant is taken back");
    }
}

fn granted(limit: Option<u64>, inbox: &Inbox, before: u64) {
    if let Some(limit) = limit {
        assert!(limit == inbox.granted() && limit >= before + u64::from(NOTIFY_CREDITS) / 4);
    }
}
