//! Routing by example. `tests/plan_properties.rs` has the general statements about bytes.

use super::*;
use crate::cover::requests_of;
use crate::plan::Range;
use crate::status::Status;
use crate::types::{Request, Slice, Transport};

fn path(transport: Transport, weight: u32) -> PathState {
    PathState { transport, usable: Ok(()), weight, slice_bytes_max: 1 << 20 }
}

fn broken(transport: Transport, why: &str) -> PathState {
    PathState { usable: Err(why.to_owned()), ..path(transport, 1000) }
}

#[test]
fn the_heaviest_path_wins_and_tcp_is_last() {
    let paths = [path(Transport::Tcp, 900), path(Transport::Local, 10), path(Transport::Rdma, 20)];
    let choice = choose(&paths, 0).unwrap();
    assert_eq!(choice.chosen, [2]);
    let chosen: Vec<_> = choice.why.iter().map(|(transport, chosen, _)| (*transport, *chosen)).collect();
    assert_eq!(chosen, [(Transport::Tcp, false), (Transport::Local, false), (Transport::Rdma, true)]);
    assert!(choice.why[0].2.contains("last resort"), "{:?}", choice.why);
    assert_eq!(choose(&paths[..1], 0).unwrap().chosen, [0]);
}

#[test]
fn devices_of_one_transport_share_the_fastest_first() {
    let paths = [
        path(Transport::Rdma, 10),
        path(Transport::Tcp, 1),
        path(Transport::Rdma, 30),
        broken(Transport::Rdma, "port down"),
    ];
    let choice = choose(&paths, 0).unwrap();
    assert_eq!(choice.chosen, [2, 0]);
    assert_eq!(choice.why[3], (Transport::Rdma, false, "port down".to_owned()));
}

#[test]
fn equals_keep_the_callers_order() {
    let paths = [path(Transport::Local, 5), path(Transport::Rdma, 5)];
    assert_eq!(choose(&paths, 0).unwrap().chosen, [0]);
}

#[test]
fn a_mask_makes_it_fail_rather_than_fall_back() {
    let paths = [path(Transport::Tcp, 1), broken(Transport::Rdma, "no libibverbs.so.1")];
    assert_eq!(choose(&paths, 0).unwrap().chosen, [0]);
    let error = choose(&paths, Transport::Rdma.bit()).unwrap_err();
    assert_eq!(error.status, Status::Unavailable);
    assert!(error.message.contains("tcp: not among the allowed"), "{error}");
    assert!(error.message.contains("rdma: no libibverbs.so.1"), "{error}");
    assert_eq!(choose(&[], 0).unwrap_err().status, Status::Unavailable);
}

fn range(first: u32, at: u64, length: u64) -> Range {
    Range { local: at, remote: at + (1 << 40), length, region: 0, first_offset: 0, first, count: 1 }
}

fn lengths(shares: &[Vec<Range>]) -> Vec<u64> {
    shares.iter().map(|share| share.iter().map(|range| range.length).sum()).collect()
}

#[test]
fn bytes_are_divided_by_weight() {
    let ranges = [range(0, 0, 4096 * 10), range(1, 1 << 20, 4096 * 30)];
    assert_eq!(lengths(&split(&ranges, &[1, 3]).unwrap()), [4096 * 10, 4096 * 30]);
    assert_eq!(lengths(&split(&ranges, &[1, 1]).unwrap()), [4096 * 20, 4096 * 20]);
    assert_eq!(lengths(&split(&ranges, &[0, 1, 0]).unwrap()), [0, 4096 * 40, 0]);
    assert_eq!(lengths(&split(&ranges, &[0, 0]).unwrap()), [4096 * 20, 4096 * 20]);
}

#[test]
fn a_cut_range_remembers_where_it_begins() {
    let shares = split(&[range(7, 0, 4096 * 4)], &[1, 3]).unwrap();
    let tail = Range { length: 4096 * 3, first_offset: 4096, ..range(7, 4096, 0) };
    assert_eq!(shares, [vec![range(7, 0, 4096)], vec![tail]]);
}

#[test]
fn a_small_range_is_not_cut() {
    for length in [1, 100, 4095, 4096] {
        let shares = split(&[range(0, 0, length)], &[1, 1]).unwrap();
        assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), 1);
        assert_eq!(lengths(&shares).iter().sum::<u64>(), length);
    }
}

#[test]
fn a_tail_leads_into_later_requests_when_it_is_sliced() {
    let requests: Vec<Request> = (0..4)
        .map(|nth| Request { local: nth * 3000, remote: nth * 3000, length: 3000, remote_region: 0 })
        .collect();
    let merged = Range { local: 0, remote: 0, length: 12000, count: 4, ..range(0, 0, 0) };
    let shares = split(&[merged], &[1, 1]).unwrap();
    // Cut at 4096, within request 1, or at 8192, within request 2.
    let tail = slice(&shares[1], &[], &requests, 1 << 20).unwrap();
    let cut = shares[1][0].local;
    assert_eq!((tail[0].first, tail[0].first_offset), ((cut / 3000) as u32, cut % 3000));
    let covered: Vec<_> = requests_of(&[], &requests, &tail[0]).collect();
    assert_eq!(covered.last(), Some(&(3, 0, 3000)));
}

#[test]
fn slices_stop_at_the_limit() {
    let requests = [Request { local: 0, remote: 1 << 40, length: 10, remote_region: 0 }];
    let of = |limit| slice(&[range(0, 0, 10)], &[], &requests, limit);
    assert_eq!(of(0).unwrap_err().status, Status::Invalid);
    assert_eq!(of(10).unwrap().len(), 1);
    assert_eq!(of(1).unwrap().len(), 10);
    let last = Slice { local: 9, remote: (1 << 40) + 9, region: 0, first_offset: 9, length: 1, first: 0 };
    assert_eq!(of(9).unwrap()[1], last);
}

#[test]
fn more_slices_than_memory_is_an_error() {
    let requests = [Request { local: 0, remote: 0, length: u64::MAX, remote_region: 0 }];
    let whole = Range { remote: 0, length: u64::MAX, ..range(0, 0, 0) };
    assert_eq!(slice(&[whole, whole], &[], &requests, 1).unwrap_err().status, Status::NoMemory);
    assert_eq!(slice(&[whole], &[], &requests, 1).unwrap_err().status, Status::NoMemory);
}
