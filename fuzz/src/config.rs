//! Settings: any text for any key, and any environment. A refused value changes nothing; an accepted value is shown in
//! a form that is accepted again and is within its range.

use arbitrary::{Arbitrary, Unstructured};
use ferry::config::{Config, Setting, Valid};
use ferry::internals::config::from_variables;
use ferry::Status;
use std::net::IpAddr;

#[derive(Arbitrary, Debug)]
struct Input {
    sets: Vec<(Key, Value)>,
    environment: Vec<(Key, Value)>,
}

#[derive(Arbitrary, Debug)]
enum Key {
    Known(u8),
    Any(String),
    Ascend(u8),
}

#[derive(Arbitrary, Debug)]
enum Value {
    Text(String),
    Number(u64),
    Small(u16),
    Word(u8),
    Address(u8, u16),
    List(Vec<u8>),
    Hex(Vec<u8>, bool),
    Pool(u16, u16),
}

const WORDS: [&str; 24] = [
    "true",
    "false",
    "yes",
    "off",
    "1",
    "0",
    "auto",
    "epoll",
    "io_uring",
    "hccs",
    "roce",
    "system",
    "cubic",
    "tcp",
    "local",
    "rdma",
    "cuda",
    "ascend",
    "mlx5_0",
    "",
    "libcuda.so.1",
    "/tmp/x.so",
    "tcp,rdma",
    "4096",
];
const HOSTS: [&str; 10] =
    ["127.0.0.1", "0.0.0.0", "[::]", "[::1]", "[fe80::1%eth0]", "host", "a-b.c_d", "::1", "", "[0:0::0]"];
const ASCEND: [&str; 3] = ["ASCEND_BUFFER_POOL", "ASCEND_CONNECT_TIMEOUT", "ASCEND_TRANSFER_TIMEOUT"];

impl Key {
    fn text(&self) -> String {
        match self {
            Key::Known(nth) => known(*nth).name.into(),
            Key::Any(text) => text.clone(),
            Key::Ascend(nth) => ASCEND[usize::from(*nth) % ASCEND.len()].into(),
        }
    }

    fn variable(&self) -> String {
        match self {
            Key::Known(nth) => known(*nth).variable(),
            other => other.text(),
        }
    }
}

impl Value {
    fn text(&self) -> String {
        match self {
            Value::Text(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Small(number) => number.to_string(),
            Value::Word(nth) => WORDS[usize::from(*nth) % WORDS.len()].into(),
            Value::Address(host, port) => format!("{}:{port}", HOSTS[usize::from(*host) % HOSTS.len()]),
            Value::List(words) => {
                let words = words.iter().map(|nth| WORDS[usize::from(*nth) % WORDS.len()]);
                words.collect::<Vec<_>>().join(",")
            }
            Value::Hex(bytes, odd) => {
                let digits: String =
                    bytes.iter().cycle().take(40).map(|byte| format!("{byte:02x}")).collect();
                if *odd {
                    digits + "a"
                } else {
                    digits
                }
            }
            Value::Pool(buffers, mib) => format!("{buffers}:{mib}"),
        }
    }
}

fn known(nth: u8) -> &'static Setting {
    let all = Config::settings();
    &all[usize::from(nth) % all.len()]
}

fn shown(config: &Config) -> Vec<Option<String>> {
    Config::settings().iter().map(|setting| config.get(setting.name)).collect()
}

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    let mut config = Config::default();
    for (key, value) in &input.sets {
        set(&mut config, &key.text(), &value.text());
    }
    validate(&config);
    // A path would be read: the files of this machine are no part of the input.
    let is_path = |name: &str| name == "FERRY_SECRET_FILE";
    let lookup = |name: &str| {
        let set = input.environment.iter().find(|(key, _)| key.variable() == name);
        set.filter(|_| !is_path(name)).map(|(_, value)| value.text().into())
    };
    match from_variables(lookup) {
        Ok(config) => validate(&config),
        Err(error) => assert_eq!(error.status, Status::Invalid, "{error}"),
    }
}

fn set(config: &mut Config, key: &str, value: &str) {
    if key == "secret_file" && !value.is_empty() {
        return;
    }
    let before = shown(config);
    let setting = Config::settings().iter().find(|setting| setting.name == key);
    match config.set(key, value) {
        Err(error) => {
            assert_eq!(error.status, Status::Invalid);
            assert_eq!(shown(config), before, "a refused value changed something");
            let tells = key == "secret" && value.len() >= 16 && error.message.contains(value);
            assert!(!tells, "a secret is told");
        }
        Ok(()) => {
            let setting = setting.unwrap_or_else(|| panic!("{key:?} is no setting"));
            let text = config.get(key).unwrap_or_default();
            check_value(setting, value, &text);
            if key != "secret" {
                config.set(key, &text).unwrap_or_else(|error| panic!("{key}={text:?} is shown: {error}"));
                assert_eq!(config.get(key), Some(text));
            }
        }
    }
}

/// Checks an accepted value against the setting's valid values, by rules of our own.
fn check_value(setting: &Setting, given: &str, shown: &str) {
    let number = shown.parse::<u64>();
    match setting.valid {
        Valid::Bool => assert!(["true", "false"].contains(&shown)),
        Valid::Range(min, max) => assert!((min..=max).contains(&number.unwrap()), "{shown}"),
        Valid::ZeroOr(min, max) => assert!(matches!(number, Ok(n) if n == 0 || (min..=max).contains(&n))),
        Valid::AutoOr(min, max) => {
            assert!(shown == "auto" || matches!(number, Ok(n) if (min..=max).contains(&n)))
        }
        Valid::Words(words) => assert!(words.contains(&shown)),
        Valid::Mtu => assert!(["0", "256", "512", "1024", "2048", "4096"].contains(&shown)),
        Valid::Secret => assert!(given.is_empty() || (given.len() >= 64 && !shown.contains(given))),
        Valid::ListenAddress | Valid::PeerAddress if !shown.is_empty() => {
            let (host, port) = shown.rsplit_once(':').unwrap();
            port.parse::<u16>().unwrap();
            let ip = host.trim_matches(['[', ']']).split('%').next().unwrap_or_default().parse::<IpAddr>();
            assert!(!host.is_empty() && !host.contains(['/', ' ', '\0', '@']), "{shown:?}");
            let is_any = ip.is_ok_and(|ip| ip.is_unspecified());
            assert!(
                !(is_any && matches!(setting.valid, Valid::PeerAddress)),
                "{shown:?} reaches the peer itself"
            );
        }
        Valid::Library => assert!(!shown.contains('\0') && shown.len() <= 4096),
        _ => {}
    }
}

/// The rules between settings, which alone can fail here: every value was accepted.
fn validate(config: &Config) {
    let has_proof = config.shared_secret().is_some() || config.same_user || config.allow_unauthenticated;
    let hosted = config.advertised_host().is_none() || !config.listen_address.is_empty();
    let expected = config.drain_ms < config.lease_ms && has_proof && hosted;
    assert_eq!(config.validate().is_ok(), expected, "{config:?}");
}
