//! The conformance suite over TCP and over the same-host path, in each of their configurations, and from an engine to
//! itself. Over RDMA it is in `rdma`.

mod common;

use common::data::Random;
use common::suite::{no_coalesce, plain, Setup};
use common::{Pair, Settings};
use ferry::types::Transport;
use ferry::TransferOptions;

#[test]
fn epoll() {
    Setup::tcp("epoll", &[("tcp_poller", "epoll")]).all();
}

#[test]
fn io_uring() {
    Setup::tcp("io_uring", &[("tcp_poller", "io_uring")]).all();
}

#[test]
fn same_host() {
    Setup::local("same host", &[]).all();
}

#[test]
fn same_host_with_a_secret_and_one_thread() {
    let secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    Setup::local("one thread", &[("secret", secret), ("local_threads", "1")]).all();
}

#[test]
fn same_host_and_nothing_inline() {
    let settings = [("express_bytes_max", "0"), ("spin_us", "0"), ("local_threads", "3")];
    Setup::local("no express, no spin", &settings).all();
}

/// Without a listener, and with a setting that names another transport for peers.
#[test]
fn one_engine() {
    Setup::own("one engine", &[("listen_address", ""), ("transports", "tcp")]).all();
}

#[test]
fn one_engine_and_one_thread() {
    Setup::own("one engine, one thread", &[("local_threads", "1")]).all();
}

#[test]
fn one_engine_and_nothing_inline() {
    let settings = [("express_bytes_max", "0"), ("spin_us", "0"), ("frame_bytes_max", "65536")];
    Setup::own("one engine, no express, no spin", &settings).all();
}

/// Moves the largest class: its neighbours, and a short tail after many frames.
#[test]
fn large() {
    let mut setup = Setup::tcp("large", &[]);
    setup.sizes(&[(64 << 20) - 1, 64 << 20, (64 << 20) + 1]);
    setup.scattered(&[1024], 16 << 10, &plain());
    setup.scattered(&[1024], 16 << 10, &no_coalesce());
    setup.scattered(&[1024], 16 << 10, &TransferOptions { checksum: true, ..plain() });
    setup.contiguous(&[4096], 4096, &TransferOptions { checksum: true, ..no_coalesce() });
}

#[test]
fn one_lane_and_one_worker() {
    Setup::tcp("one lane, one worker", &[("lanes", "1"), ("workers", "1")]).all();
}

#[test]
fn two_lanes_and_two_workers() {
    Setup::tcp("two lanes, two workers", &[("lanes", "2"), ("workers", "2"), ("tcp_poller", "epoll")]).all();
}

#[test]
fn four_lanes_and_two_workers() {
    Setup::tcp("four lanes, two workers", &[("lanes", "4"), ("workers", "2")]).all();
}

/// The calling thread neither sends nor receives, and no thread spins.
#[test]
fn workers_do_everything() {
    Setup::tcp("no express, no spin", &[("express_bytes_max", "0"), ("spin_us", "0")]).all();
}

#[test]
fn small_frames_and_buffers() {
    Setup::tcp("small frames", &[("frame_bytes_max", "65536"), ("socket_buffer_bytes", "65536")]).all();
}

#[test]
fn a_secret_in_place_of_the_same_user() {
    let secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    Setup::tcp("secret", &[("secret", secret)]).all();
}

/// Two ends agree on the smaller of their limits.
#[test]
fn unequal_ends() {
    let small: Settings = &[("lanes", "1"), ("workers", "1"), ("frame_bytes_max", "65536"), ("spin_us", "0")];
    let large: Settings = &[("lanes", "4"), ("workers", "2"), ("tcp_poller", "epoll")];
    for (ours, theirs) in [(small, large), (large, small)] {
        let pair = Pair::of(common::engine(ours), common::engine(theirs));
        Setup { pair, transport: Transport::Tcp, random: Random::new("unequal ends") }.all();
    }
}
