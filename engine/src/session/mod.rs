//! The session with a peer: authentication (`handshake`), the sealed control channel (`channel`), its messages
//! (`message`) and their order (`order`), the greeting of a lane (`greeting`), and the reactions to lost lanes,
//! connections and processes (`machine`).
//! Sans-I/O: bytes, events and the time come in; bytes and actions go out. The control loop (`control`) drives these
//! parts; tests drive them without sockets.

pub mod channel;
pub mod greeting;
pub mod handshake;
pub mod machine;
pub mod message;
pub mod order;
