//! The types of settings: how each is read from text, shown again and checked against the setting's valid values. Used
//! by the table in `config`.

use super::address;
use crate::status::{Error, Result};
use crate::types::Transport;
use std::fmt;

/// The valid values of a setting. Its `Display` is the phrase in error messages and the documentation.
#[derive(Clone, Copy, Debug)]
pub enum Valid {
    Bool,
    Range(u64, u64),
    ZeroOr(u64, u64),
    Words(&'static [&'static str]),
    AutoOr(u64, u64),
    /// 0 takes the port's own MTU.
    Mtu,
    Names,
    ListenAddress,
    PeerAddress,
    Library,
    Transports,
    Congestion,
    Secret,
    SecretFile,
}

impl fmt::Display for Valid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Valid::Bool => f.write_str("true or false"),
            Valid::Range(min, max) => write!(f, "{min} to {max}"),
            Valid::ZeroOr(min, max) => write!(f, "0, or {min} to {max}"),
            Valid::Words(words) => f.write_str(&words.join(", ")),
            Valid::AutoOr(min, max) => write!(f, "auto, or {min} to {max}"),
            Valid::Mtu => f.write_str("0, 256, 512, 1024, 2048 or 4096"),
            Valid::Names => f.write_str("a comma list of names, or empty"),
            Valid::ListenAddress => f.write_str("host:port, [ipv6]:port, or empty"),
            Valid::PeerAddress => {
                f.write_str("host:port or [ipv6]:port that a peer can connect to, or empty")
            }
            Valid::Library => f.write_str("a library's name or path, or empty"),
            Valid::Transports => {
                let names: Vec<_> = Transport::named().map(Transport::name).collect();
                write!(f, "auto, or a comma list of {}", names.join(", "))
            }
            Valid::Congestion => {
                f.write_str("auto, system, or the name of an algorithm (1 to 15 characters)")
            }
            Valid::Secret => f.write_str("at least 64 hexadecimal digits, an even number, or empty"),
            Valid::SecretFile => {
                f.write_str("path of a file of at least 32 bytes that only its owner may use, or empty")
            }
        }
    }
}

/// A type of setting. `show` and `parse` are inverse, except for secrets.
pub(super) trait Value: Sized {
    fn parse(text: &str) -> Result<Self>;
    fn show(&self) -> String;
    fn is_valid(&self, valid: &Valid) -> bool;

    /// Returns INVALID, with the reason, unless the value is valid.
    fn check(&self, valid: &Valid) -> Result<()> {
        self.is_valid(valid).then_some(()).ok_or_else(|| Error::invalid("out of range"))
    }
}

/// Reads a value and checks it.
pub(super) fn parse<V: Value>(text: &str, valid: &Valid) -> Result<V> {
    let value = V::parse(text)?;
    value.check(valid).map(|()| value)
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn parse(text: &str) -> Result<$type> {
                // Digits only: the standard parser would also accept "+5".
                if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(Error::invalid("not a whole number"));
                }
                text.parse().map_err(|_| Error::invalid("out of range"))
            }

            fn show(&self) -> String {
                self.to_string()
            }

            fn is_valid(&self, valid: &Valid) -> bool {
                let number = u64::from(*self);
                match *valid {
                    Valid::Range(min, max) => (min..=max).contains(&number),
                    Valid::ZeroOr(min, max) => number == 0 || (min..=max).contains(&number),
                    Valid::Mtu => [0, 256, 512, 1024, 2048, 4096].contains(&number),
                    _ => false,
                }
            }
        }
    )*};
}

number!(u32, u64);

impl Value for bool {
    fn parse(text: &str) -> Result<bool> {
        match text {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err(Error::invalid("not a boolean")),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn is_valid(&self, _: &Valid) -> bool {
        true
    }
}

/// Addresses and libraries: settings that stay text, because names are resolved when they are used.
impl Value for String {
    fn parse(text: &str) -> Result<String> {
        Ok(text.into())
    }

    fn show(&self) -> String {
        self.clone()
    }

    fn is_valid(&self, valid: &Valid) -> bool {
        self.check(valid).is_ok()
    }

    fn check(&self, valid: &Valid) -> Result<()> {
        let is_library = matches!(valid, Valid::Library);
        if is_library && (self.len() > 4096 || self.contains('\0')) {
            return Err(Error::invalid("out of range"));
        }
        if is_library || self.is_empty() {
            return Ok(());
        }
        let checked = address::split(self).and_then(|(host, _)| match valid {
            // Port 0 stands for the bound port.
            Valid::PeerAddress => address::check_dialed(host),
            _ => Ok(()),
        });
        checked.map_err(|flaw| Error::invalid(format!("it {flaw}")))
    }
}

/// A number, or None for `auto`.
impl Value for Option<u32> {
    fn parse(text: &str) -> Result<Option<u32>> {
        if text == "auto" {
            return Ok(None);
        }
        u32::parse(text).map(Some)
    }

    fn show(&self) -> String {
        self.map_or("auto".into(), |number| number.to_string())
    }

    fn is_valid(&self, valid: &Valid) -> bool {
        match *valid {
            Valid::AutoOr(min, max) => self.is_none_or(|number| (min..=max).contains(&u64::from(number))),
            _ => false,
        }
    }
}

/// Names in the given order; an empty list stands for all existing names.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Names(pub Vec<String>);

impl Names {
    /// True if the list has this name or is empty.
    pub fn include(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|other| other == name)
    }
}

impl Value for Names {
    fn parse(text: &str) -> Result<Names> {
        let names = text.split(',').map(str::trim).filter(|_| !text.is_empty());
        Ok(Names(names.map(String::from).collect()))
    }

    fn show(&self) -> String {
        self.0.join(",")
    }

    fn is_valid(&self, _: &Valid) -> bool {
        let plain = |name: &String| {
            (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
        };
        self.0.len() <= 64 && self.0.iter().all(plain)
    }
}

/// A set of transports by `Transport::bit`; empty means that the engine chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Transports(pub u64);

impl Transports {
    pub const AUTO: Transports = Transports(0);

    pub fn allows(self, transport: Transport) -> bool {
        self == Transports::AUTO || self.0 & transport.bit() != 0
    }
}

impl Value for Transports {
    fn parse(text: &str) -> Result<Transports> {
        if text == "auto" {
            return Ok(Transports::AUTO);
        }
        let mut mask = 0;
        for name in text.split(',').map(str::trim) {
            let named = Transport::named().find(|transport| transport.name() == name);
            mask |= named.ok_or_else(|| Error::invalid(format!("{name:?} is not a transport")))?.bit();
        }
        Ok(Transports(mask))
    }

    fn show(&self) -> String {
        if *self == Transports::AUTO {
            return "auto".into();
        }
        let chosen = Transport::named().filter(|transport| self.allows(*transport));
        chosen.map(|transport| transport.name()).collect::<Vec<_>>().join(",")
    }

    fn is_valid(&self, _: &Valid) -> bool {
        self.0 & !Transport::named().fold(0, |mask, transport| mask | transport.bit()) == 0
    }
}

/// Makes the type of a setting that is one of several words.
macro_rules! words {
    ($(#[$doc:meta])* $type:ident: $($(#[$why:meta])* $variant:ident $word:literal),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$why])* $variant,)+
        }

        impl $type {
            pub(super) const WORDS: &'static [&'static str] = &[$($word),+];
        }

        impl Value for $type {
            fn parse(text: &str) -> Result<$type> {
                match text {
                    $($word => Ok($type::$variant),)+
                    _ => Err(Error::invalid("not one of the choices")),
                }
            }

            fn show(&self) -> String {
                $type::WORDS[*self as usize].into()
            }

            fn is_valid(&self, _: &Valid) -> bool {
                true
            }
        }
    };
}

words! {
    /// How lane threads wait for sockets.
    TcpPoller: Auto "auto", Epoll "epoll", IoUring "io_uring"
}

words! {
    /// How files are read and written.
    FileIo: Auto "auto", IoUring "io_uring", Threads "threads"
}

words! {
    /// The fabric over which Ascend devices of different hosts reach each other.
    AscendFabric: /** None. */ Off "off", Hccs "hccs", Roce "roce"
}

/// Congestion control of data lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// reno to peers on this host if the kernel allows it, the system's default otherwise.
    Auto,
    /// The system's default for a new socket.
    System,
    /// This algorithm; the connection fails if the kernel does not allow it.
    Named(String),
}

impl Value for Congestion {
    fn parse(text: &str) -> Result<Congestion> {
        Ok(match text {
            "auto" => Congestion::Auto,
            "system" => Congestion::System,
            name => Congestion::Named(name.into()),
        })
    }

    fn show(&self) -> String {
        match self {
            Congestion::Auto => "auto".into(),
            Congestion::System => "system".into(),
            Congestion::Named(name) => name.clone(),
        }
    }

    fn is_valid(&self, _: &Valid) -> bool {
        // TCP_CA_NAME_MAX is 16 with the terminating zero.
        let Congestion::Named(name) = self else { return true };
        (1..=15).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
    }
}
