//! Faults of the network, of processes and of hosts, as the other end of a connection sees them.

use super::net::{
    at, connect, connected, fill, hosts, receive_all, send_all, within, MS, READ, SECOND_NS, WRITE,
};
use super::seeded;
use crate::clock;
use crate::net::{self, Faults, Listener};
use crate::poller::{poll, Interest};
use crate::task;
use crate::{run, Options};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

/// Options without partial sends and receives.
fn exact() -> Options {
    let faults = Faults { short_send_ppm: 0, short_receive_ppm: 0, ..Faults::default() };
    Options { faults, ..Options::default() }
}

#[test]
fn a_partition_holds_data_and_acknowledgements_until_it_is_healed() {
    for seed in 0..20 {
        seeded(seed, || {
            let (a, b, one, other) = connected();
            net::partition(a.host(), b.host());
            let one = within(a, move || {
                assert_eq!(fill(&one), 128 << 10);
                task::sleep(500 * MS);
                assert!(net::send(one.as_raw_fd(), &[7]).is_err());
                one
            });
            let other = within(b, move || {
                let error = net::receive(other.as_raw_fd(), &mut [0; 10]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                other
            });
            net::heal(a.host(), b.host());
            // Nothing else is sent: what was held comes because its kernel tries again.
            let other = within(b, move || {
                let mut came = 0;
                while came < 128 << 10 {
                    assert_eq!(poll(&[(other.as_raw_fd(), READ)], None).unwrap().len(), 1);
                    came += net::receive(other.as_raw_fd(), &mut [0; 5000]).unwrap();
                }
                other
            });
            within(a, move || {
                assert_eq!(poll(&[(one.as_raw_fd(), WRITE)], None).unwrap().len(), 1);
                assert!(fill(&one) > 0);
            });
            let (came, end) = within(b, move || receive_all(&other));
            assert!(!came.is_empty() && end.is_ok());
        })
        .check();
    }
}

/// Data passes, acknowledgements do not: the buffer of the sender stays full although the other side has read all.
#[test]
fn a_partition_one_way_holds_the_acknowledgements() {
    for seed in 0..20 {
        seeded(seed, || {
            let (a, b, one, other) = connected();
            net::partition_one_way(b.host(), a.host());
            let one = within(a, move || {
                send_all(&one, &[7; 1000]).unwrap();
                one
            });
            let other = within(b, move || {
                let mut buffer = [0; 1000];
                let mut came = 0;
                while came < 1000 {
                    poll(&[(other.as_raw_fd(), READ)], None).unwrap();
                    came += net::receive(other.as_raw_fd(), &mut buffer).unwrap();
                }
                other
            });
            let one = within(a, move || {
                task::sleep(1000 * MS);
                assert_eq!(fill(&one), (128 << 10) - 1000);
                one
            });
            net::heal_all();
            let rest = b.spawn("taker", move || receive_all(&other).0.len());
            within(a, move || {
                poll(&[(one.as_raw_fd(), WRITE)], Some(1000 * SECOND_NS)).unwrap();
                assert!(fill(&one) > 0);
            });
            assert!(rest.unwrap().join().unwrap() > 0);
        })
        .check();
    }
}

#[test]
fn a_killed_process_is_heard_at_the_other_end() {
    for seed in 0..40 {
        seeded(seed, || {
            let (a, b, one, other) = connected();
            // Unread data makes it a reset.
            let unread = seed % 2 == 0;
            if unread {
                within(b, move || {
                    net::send(other.as_raw_fd(), &[7; 100]).unwrap();
                    task::sleep(100 * MS);
                    // Its descriptor stays open.
                    std::mem::forget(other);
                });
            } else {
                std::mem::forget(other);
            }
            let waits = b.spawn("waits", || {
                let number = 4;
                let ready = poll(&[(number, READ)], None).unwrap()[0];
                assert!(ready.readable && ready.hangup);
                net::receive(number, &mut [0; 10])
            });
            task::sleep(MS);
            a.kill();
            match waits.unwrap().join().unwrap() {
                Ok(count) => assert!(count == 0 && !unread),
                Err(error) => assert!(error.kind() == ErrorKind::ConnectionReset && unread, "{error}"),
            }
            drop(one);
        })
        .check();
    }
}

#[test]
fn a_host_that_vanishes_leaves_half_open_connections_which_it_resets_when_it_is_back() {
    for seed in 0..20 {
        seeded(seed, || {
            let (a, b, one, _other) = connected();
            b.host().crash();
            assert!(!b.is_alive());
            let sends = a.spawn("sends", move || {
                net::send(one.as_raw_fd(), &[7; 100]).unwrap();
                task::sleep(10_000 * MS);
                assert_eq!(net::pending_error(one.as_raw_fd()).map(|error| error.kind()), None);
                poll(&[(one.as_raw_fd(), READ)], None).unwrap();
                let error = net::receive(one.as_raw_fd(), &mut [0; 10]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                assert_eq!(net::send(one.as_raw_fd(), &[7]).unwrap_err().kind(), ErrorKind::BrokenPipe);
            });
            task::sleep(11_000 * MS);
            let before = b.host().boot();
            b.host().boot_again();
            assert_ne!(before, b.host().boot());
            sends.unwrap().join().unwrap();
        })
        .check();
    }
}

#[test]
fn dials_are_refused_hang_or_find_no_host() {
    seeded(1, || {
        let (a, b) = hosts();
        within(a.start("a"), move || {
            assert_eq!(connect(at(b, 7000)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            let nowhere = SocketAddr::new("192.0.2.1".parse().unwrap(), 7000);
            assert_eq!(net::dial(nowhere, 0).unwrap_err().raw_os_error(), Some(libc::ENETUNREACH));
            net::hang_dials(a, b, true);
            let begun = clock::virtual_ns();
            assert_eq!(connect(at(b, 7000)).unwrap_err().kind(), ErrorKind::TimedOut);
            assert!(clock::virtual_ns() - begun > 60 * SECOND_NS);
            net::hang_dials(a, b, false);
            assert_eq!(connect(at(b, 7000)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        });
    })
    .check();
}

#[test]
fn a_full_backlog_lets_dials_wait_and_closing_a_listener_resets_them() {
    seeded(1, || {
        let (a, b) = hosts();
        let taker = b.start("b");
        let listener = within(taker, move || Listener::bind_with(at(b, 7000), 0, 1).unwrap());
        within(a.start("a"), move || {
            let first = connect(at(b, 7000)).unwrap();
            let second = net::dial(at(b, 7000), 0).unwrap();
            task::sleep(500 * MS);
            assert!(poll(&[(second.as_raw_fd(), WRITE)], Some(0)).unwrap().is_empty());
            within(taker, move || {
                drop(listener.accept().unwrap());
                task::sleep(5_000 * MS);
                drop(listener);
            });
            let ready = poll(&[(second.as_raw_fd(), READ)], None).unwrap();
            assert!(ready[0].hangup);
            assert_eq!(net::receive(first.as_raw_fd(), &mut [0; 4]).unwrap(), 0);
            let error = net::receive(second.as_raw_fd(), &mut [0; 4]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        });
    })
    .check();
}

#[test]
fn an_address_is_listened_at_once_and_free_again_after_a_kill() {
    seeded(1, || {
        let (a, b) = hosts();
        let listen = move || Listener::bind(at(a, 7000), 0).map(std::mem::forget);
        let first = a.start("first");
        within(first, listen).unwrap();
        let taken = within(a.start("second"), listen).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        assert_eq!(within(b.start("b"), listen).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        first.kill();
        within(a.start("third"), listen).unwrap();
    })
    .check();
}

#[test]
fn a_reset_is_heard_at_both_ends_and_shut_ends_say_so() {
    seeded(1, || {
        let (a, b, one, other) = connected();
        let standing = net::connections();
        assert_eq!((standing.len(), standing[0].dialer.0, standing[0].acceptor.0), (1, a, b));
        net::reset(standing[0].id);
        assert_eq!(net::connections(), []);
        for (process, socket) in [(a, one), (b, other)] {
            within(process, move || {
                let ready = poll(&[(socket.as_raw_fd(), Interest::default())], Some(0)).unwrap();
                assert!(ready[0].hangup);
                let error = net::pending_error(socket.as_raw_fd()).unwrap();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            });
        }
        let (a, b, one, other) = connected();
        let one = within(a, move || {
            send_all(&one, &[7; 10]).unwrap();
            net::shutdown(one.as_raw_fd());
            assert_eq!(net::send(one.as_raw_fd(), &[7]).unwrap_err().kind(), ErrorKind::BrokenPipe);
            one
        });
        within(b, move || {
            assert_eq!(receive_all(&other).0, [7; 10]);
            // Data for an end that was shut is answered by a reset.
            assert!(net::send(other.as_raw_fd(), &[8]).is_ok());
            poll(&[(other.as_raw_fd(), Interest::default())], None).unwrap();
            assert_eq!(net::send(other.as_raw_fd(), &[8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        });
        within(a, move || drop(one));
    })
    .check();
}

#[test]
fn a_middleman_flips_one_bit_and_repeats_bytes() {
    let body = || {
        let (a, b, one, other) = connected();
        let id = net::connections()[0].id;
        let one = within(a, move || {
            net::flip(id, true);
            net::send(one.as_raw_fd(), &[0; 100]).unwrap();
            one
        });
        let other = within(b, move || {
            poll(&[(other.as_raw_fd(), READ)], None).unwrap();
            task::sleep(50 * MS);
            let mut buffer = [0; 200];
            let count = net::receive(other.as_raw_fd(), &mut buffer).unwrap();
            assert_eq!(buffer[..count].iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            other
        });
        within(a, move || {
            net::replay(id, true);
            net::send(one.as_raw_fd(), b"abc").unwrap();
        });
        let rest = within(b, move || receive_all(&other).0);
        assert_eq!(rest, b"abcabc");
    };
    run(1, exact(), body).check();
}

#[test]
fn a_suspended_host_hears_nothing_until_it_wakes() {
    seeded(1, || {
        let (a, b, one, other) = connected();
        b.host().suspend();
        let one = within(a, move || {
            net::send(one.as_raw_fd(), &[7; 100]).unwrap();
            one
        });
        task::sleep(5_000 * MS);
        b.host().wake_up();
        within(a, move || drop(one));
        assert_eq!(within(b, move || receive_all(&other).0).first(), Some(&7));
    })
    .check();
}
