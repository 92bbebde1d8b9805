//! The input of a directory: the values of etcd's entries, URLs and files, and what becomes of names. A program that
//! applies the changes that it is told must know the table.

use ferry::types::EngineId;
use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use ferry::{Descriptor, Status};
use ferry_directory::parts::{decode, encode, parse, parse_file, Etcd, Place, Table, Url};
use ferry_directory::{limits, Change, Entry};

#[derive(Arbitrary, Debug)]
enum Input {
    Value(Vec<u8>),
    /// The bytes of an entry, some of which are changed, and the rest cut off.
    Changed {
        engine_id: [u8; 16],
        incarnation: u64,
        port: u16,
        changes: Vec<(u8, u8)>,
        length: u16,
    },
    Url(String),
    Servers {
        has_tls: bool,
        password: u64,
        rest: String,
    },
    File(String),
    Table(Vec<Step>),
}

#[derive(Arbitrary, Debug)]
enum Step {
    Set(u8, Option<u8>),
    Replace(Vec<(u8, u8)>),
    Next,
}

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    match input {
        Input::Value(value) => check_value(&value),
        Input::Changed { engine_id, incarnation, port, changes, length } => {
            let address = format!("host:{}", port.max(1));
            let descriptor = Descriptor { engine_id: EngineId(engine_id), incarnation, address };
            let mut value = encode(&descriptor).into_bytes();
            assert_eq!(decode(&value), Some(Place::of(&descriptor)));
            for (at, change) in changes {
                let at = usize::from(at) % value.len();
                value[at] ^= change;
            }
            value.truncate(length.into());
            check_value(&value);
        }
        Input::Url(url) => check_url(&url),
        Input::Servers { has_tls, password, rest } => {
            let scheme = if has_tls { "https" } else { "http" };
            check_url(&format!("etcd:{scheme}://{rest}"));
            // No error text contains what may be a password.
            let secret = format!("{password:016x}");
            let error =
                parse(&format!("etcd:{scheme}://user:{secret}@{}", rest.replace('/', ""))).unwrap_err();
            assert!(!error.message.contains(&secret), "{error}");
        }
        Input::File(text) => match parse_file(&text) {
            Ok(entries) => check_list(&entries),
            Err(error) => is_known(error.status),
        },
        Input::Table(steps) => follow(steps),
    }
}

fn is_known(status: Status) {
    assert!(matches!(status, Status::Invalid | Status::Limit), "{status}");
}

/// An entry that parses has a whole identity and an address.
fn check_value(value: &[u8]) {
    let Some(place) = decode(value) else { return };
    let identity = place.identity.expect("an entry of etcd says who is there");
    let (engine_id, incarnation, address) = (identity.engine_id, identity.incarnation, place.address.clone());
    let again = encode(&Descriptor { engine_id, incarnation, address });
    assert!(value.len() <= limits::VALUE_BYTES_MAX && again.len() <= value.len());
    assert_eq!(decode(again.as_bytes()), Some(place));
}

fn check_url(url: &str) {
    match parse(url) {
        Ok(Url::List(entries)) => check_list(&entries),
        Ok(Url::Etcd(Etcd { servers, has_tls, prefix })) => {
            assert!((1..=limits::SERVERS_MAX).contains(&servers.len()), "{servers:?}");
            let scheme = if has_tls { "https://" } else { "http://" };
            assert!(servers.iter().all(|server| server.starts_with(scheme) && !server.contains('@')));
            assert!(prefix.len() > 2 && prefix.starts_with('/') && prefix.ends_with('/'), "{prefix}");
        }
        Ok(Url::File(path)) => assert!(path.starts_with('/')),
        Ok(Url::Addresses) => assert_eq!(url, "static:"),
        Err(error) => is_known(error.status),
    }
}

/// A list can be written as a file, and read again.
fn check_list(entries: &BTreeMap<String, Place>) {
    assert!(entries.len() <= limits::ENTRIES_MAX);
    let lines = entries.iter().map(|(name, place)| format!("{name}={}\n", place.address));
    assert_eq!(parse_file(&lines.collect::<String>()).as_ref().ok(), Some(entries));
}

fn name(number: u8) -> String {
    format!("n/{}", number % 8)
}

fn place(number: u8) -> Place {
    Place { address: format!("host:{}", 1 + number % 4), identity: None }
}

fn follow(steps: Vec<Step>) {
    let (mut table, mut entries) = (Table::default(), BTreeMap::new());
    let mut known = BTreeMap::new();
    for step in steps {
        match step {
            Step::Set(at, value) => {
                table.set(&name(at), value.map(place));
                match value {
                    Some(value) => entries.insert(name(at), place(value)),
                    None => entries.remove(&name(at)),
                };
            }
            Step::Replace(list) => {
                entries = list.into_iter().map(|(at, value)| (name(at), place(value))).collect();
                table.replace(entries.clone());
            }
            Step::Next => {
                let change = table.next_change();
                assert_eq!(change.is_none(), known == entries, "{change:?}");
                change.into_iter().for_each(|change| learn(&mut known, &table, change));
            }
        }
        let all: Vec<Entry> = entries.iter().map(|(name, place)| place.clone().named(name)).collect();
        assert_eq!((table.list(""), table.count(), table.left_out()), (all, entries.len(), 0));
        assert_eq!(table.has_changes(), known != entries);
    }
}

/// A program learns of one change.
fn learn(known: &mut BTreeMap<String, Place>, table: &Table, change: Change) {
    let place = |entry: Entry| Place { address: entry.address, identity: entry.identity };
    match change {
        Change::Added(entry) => assert_eq!(known.insert(entry.name.clone(), place(entry)), None),
        Change::Changed(entry) => {
            let old = known.insert(entry.name.clone(), place(entry.clone()));
            assert!(old.is_some_and(|old| old != place(entry)));
        }
        Change::Removed(entry) => assert_eq!(known.remove(&entry.name), Some(place(entry))),
        Change::ListAnew => {
            *known = table.list("").into_iter().map(|entry| (entry.name.clone(), place(entry))).collect();
        }
    }
}
