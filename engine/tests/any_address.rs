//! Engines that listen at any address: which address they tell, and that a peer counts as on this host by proof and not
//! by its address. Each case runs in a network namespace of its own, which ends with its process.

mod common;

use common::{engine, eventually, Pair, PATIENCE};
use ferry::{Config, Engine};
use std::process::Command;

const ROLE: &str = "FERRY_TEST_ANY_ADDRESS";
const SECRET: (&str, &str) = ("secret", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");

/// Runs the test `role` in a network namespace that `commands` of ip have set up, and returns what it prints behind
/// "says: ". None, with the reason printed, where there are no such namespaces.
fn in_network(commands: &[&str], listen: &str) -> Option<Vec<String>> {
    let script =
        commands.iter().map(|command| format!("ip {command} && ")).collect::<String>() + "exec \"$0\" \"$@\"";
    let test = std::env::current_exe().unwrap();
    let mut inside = Command::new("unshare");
    inside.args(["-r", "-n", "sh", "-c", &script]).arg(test);
    inside.args(["--exact", "role", "--ignored", "--nocapture"]).env(ROLE, listen);
    let output = inside.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() && errors.contains("unshare failed") {
        println!("SKIPPED: no network namespace can be made here: {errors}");
        return None;
    }
    assert!(output.status.success(), "{text}{errors}");
    Some(text.lines().filter_map(|line| line.strip_prefix("says: ")).map(String::from).collect())
}

#[test]
#[ignore = "the other tests run it, in a network namespace"]
fn role() {
    let listen = std::env::var(ROLE).unwrap();
    let mut config = Config::new().unwrap();
    for pair in listen.split(' ') {
        let (key, value) = pair.split_once('=').unwrap();
        config.set(key, value).unwrap();
    }
    println!();
    let b = match Engine::open(config) {
        Ok(engine) => engine,
        Err(error) => return println!("says: {error}"),
    };
    println!("says: {}", b.address());
    if listen.contains("advertise") {
        return;
    }
    // Peers reach it there, and are told that address.
    let a = engine(&[]);
    let peer = a.connect(b.address(), Some(PATIENCE)).unwrap();
    assert_eq!(a.peer_info(peer).unwrap().address, b.address());
    assert_eq!(b.descriptor().unwrap().address, b.address());
}

fn pair_of(name: &str, address: &str) -> [String; 4] {
    [
        format!("link add {name} type veth peer name {name}x"),
        format!("addr add {address} dev {name} nodad"),
        format!("link set {name}x up"),
        format!("link set {name} up"),
    ]
}

fn network(parts: &[String]) -> Vec<&str> {
    ["link set lo up"].into_iter().chain(parts.iter().map(String::as_str)).collect()
}

#[test]
fn without_an_address_besides_the_loopback_any_address_is_refused() {
    let Some(said) = in_network(&["link set lo up"], "listen_address=0.0.0.0:7000") else { return };
    let expected =
        "INVALID: listen_address: 0.0.0.0:7000 is any address, and ferry can't tell which one peers reach: \
                    only the loopback has an address here; set advertise_address, or listen at one address";
    assert_eq!(said, [expected]);
    let told = "listen_address=0.0.0.0:7000 advertise_address=node1:7000";
    assert_eq!(in_network(&["link set lo up"], told).unwrap(), ["node1:7000"]);
}

#[test]
fn the_only_address_of_an_interface_is_told() {
    let one = pair_of("v", "198.51.100.7/24");
    let Some(said) = in_network(&network(&one), "listen_address=0.0.0.0:7000") else { return };
    assert_eq!(said, ["198.51.100.7:7000"]);
    assert_eq!(in_network(&network(&one), "listen_address=[::]:7000").unwrap(), ["198.51.100.7:7000"]);
    let v6 = pair_of("v", "fd00:1::7/64");
    assert_eq!(in_network(&network(&v6), "listen_address=[::]:7000").unwrap(), ["[fd00:1::7]:7000"]);
}

#[test]
fn of_several_addresses_that_of_the_default_route_is_told() {
    let two = [pair_of("v", "198.51.100.7/24"), pair_of("w", "192.0.2.7/24")].concat();
    let Some(said) = in_network(&network(&two), "listen_address=0.0.0.0:7000") else { return };
    assert_eq!(said.len(), 1);
    for part in
        ["INVALID: listen_address: ", "no default route", "198.51.100.7, 192.0.2.7", "set advertise_address"]
    {
        assert!(said[0].contains(part), "{said:?}");
    }
    for (gateway, address) in [("198.51.100.1", "198.51.100.7"), ("192.0.2.1", "192.0.2.7")] {
        let routed = [&two[..], &[format!("route add default via {gateway}")]].concat();
        let said = in_network(&network(&routed), "listen_address=0.0.0.0:7000").unwrap();
        assert_eq!(said, [format!("{address}:7000")]);
    }
}

/// Two engines of this host at one address: whether they count as on one host depends on what they have proven.
#[test]
fn a_peer_is_on_this_host_by_proof_alone() {
    let open = [("same_user", "false"), ("allow_unauthenticated", "true")];
    for (settings, expected) in [
        // By the user, in the handshake.
        (&[("transports", "tcp")][..], true),
        // By the same-host path.
        (&[SECRET, ("transports", "auto")][..], true),
        // A secret proves no place.
        (&[SECRET, ("transports", "tcp")][..], false),
        (&[open[0], open[1], ("transports", "tcp")][..], false),
    ] {
        let pair = Pair::new(settings);
        let seen = || {
            let infos = [pair.a.peer_info(pair.b_at_a), pair.b.peer_info(pair.a_at_b)];
            infos.map(|info| info.unwrap().same_host)
        };
        if expected {
            // The end that did not connect has its path a moment later.
            eventually(&format!("{settings:?}: both know"), || seen() == [true; 2]);
        }
        assert_eq!(seen(), [expected; 2], "{settings:?}");
    }
}
