//! Sorts checked requests by their remote place and merges neighbours that touch on both sides. Stands between `check`,
//! which finds the place of each request, and `route`, which cuts the ranges.
//!
//! ```text
//!            local   remote                       local    remote
//! request 0  [5]     [2]       sort by remote     [5 6 7]  [2 3 4]   range of requests 0, 2, 1
//! request 1  [7]     [4]      ───────────────▶
//! request 2  [6]     [3]       and merge          [9]      [5]       range of request 3: the local
//! request 3  [9]     [5]                                             side does not go on
//! ```

use super::check::{Checker, UNKNOWN};
use crate::status::Result;
use crate::try_reserve::{push, reserve};
use crate::types::{Range, Request};

/// The sort key of a request, as a single number that compares without branches: 100,000 scattered requests are planned
/// in 7 ms; a struct with field-by-field order took 15 ms.
///
/// ```text
/// 127                             96 95             32 31      0
/// [ remote region's place in its map ][ remote address ][ index ]
/// ```
/// The index makes keys distinct, so an unstable sort gives the stable result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u128);

impl Key {
    fn new(region: u32, remote: u64, index: u32) -> Key {
        Key(u128::from(region) << 96 | u128::from(remote) << 32 | u128::from(index))
    }

    fn region(self) -> u32 {
        (self.0 >> 96) as u32
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }
}

/// The checked requests.
struct Survey {
    /// In the caller's order at first.
    keys: Vec<Key>,
    /// By the caller's index: the index of the local region's handle.
    locals: Vec<u32>,
    /// True if the caller's order is the order of the keys.
    sorted: bool,
}

/// Returns each request as its own range, in the caller's order, and the empty order that stands for it.
pub(super) fn in_place(checker: &mut Checker) -> Result<(Vec<Range>, Vec<u32>)> {
    let requests = checker.input.requests;
    let mut ranges = Vec::new();
    reserve(&mut ranges, requests.len())?;
    for (index, request) in requests.iter().enumerate() {
        checker.check(index)?;
        ranges.push(range_of(request, index as u32));
    }
    Ok((ranges, Vec::new()))
}

/// Returns a range for each contiguous run, and the order of the requests in the ranges.
pub(super) fn merged(checker: &mut Checker) -> Result<(Vec<Range>, Vec<u32>)> {
    let requests = checker.input.requests;
    let mut survey = survey(checker)?;
    let mut order = Vec::new();
    if !survey.sorted {
        survey.keys.sort_unstable();
        reserve(&mut order, requests.len())?;
        order.extend(survey.keys.iter().map(|key| key.index() as u32));
    }
    Ok((merge(requests, &survey)?, order))
}

fn survey(checker: &mut Checker) -> Result<Survey> {
    let requests = checker.input.requests;
    let mut survey = Survey { keys: Vec::new(), locals: Vec::new(), sorted: true };
    reserve(&mut survey.keys, requests.len())?;
    reserve(&mut survey.locals, requests.len())?;
    let mut last = Key(0);
    for (index, request) in requests.iter().enumerate() {
        let home = checker.check(index)?;
        let key = Key::new(home.remote, request.remote, index as u32);
        survey.sorted &= last <= key;
        survey.keys.push(key);
        survey.locals.push(home.local);
        last = key;
    }
    Ok(survey)
}

/// Merges sorted requests into ranges. Never merges requests in unknown regions: if only one of them is valid, the
/// target would have to refuse both.
fn merge(requests: &[Request], survey: &Survey) -> Result<Vec<Range>> {
    let Survey { keys, locals, .. } = survey;
    let mut ranges = Vec::new();
    reserve(&mut ranges, keys.len().min(RANGES_AT_ONCE))?;
    let mut open = range_of(&requests[keys[0].index()], 0);
    for (position, pair) in keys.windows(2).enumerate() {
        let (before, here) = (pair[0], pair[1]);
        let request = &requests[here.index()];
        let same_remote = request.remote_region == open.region
            && here.region() == before.region()
            && here.region() != UNKNOWN;
        let same_local = locals[here.index()] == locals[before.index()];
        if same_remote && same_local && continues(&open, request) {
            open.length += request.length;
            open.count += 1;
        } else {
            push(&mut ranges, open)?;
            open = range_of(request, position as u32 + 1);
        }
    }
    push(&mut ranges, open)?;
    Ok(ranges)
}

/// Ranges for which room is reserved at the start: 40 KiB.
const RANGES_AT_ONCE: usize = 1024;

/// True if the request begins where the range ends, on both sides. The sums do not overflow: `check` has computed the
/// end of each request, and the range ends with its last request.
fn continues(range: &Range, request: &Request) -> bool {
    range.local + range.length == request.local && range.remote + range.length == request.remote
}

fn range_of(request: &Request, position: u32) -> Range {
    Range {
        local: request.local,
        remote: request.remote,
        length: request.length,
        region: request.remote_region,
        first: position,
        count: 1,
    }
}
