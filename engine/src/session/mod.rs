//! The session with a peer: who they are (`handshake`), the sealed control channel (`channel`), what is
//! said on it (`message`) and when (`order`), and what has to happen when lanes, connections or processes fail
//! (`machine`). Sans-I/O: bytes, events and the time come in, bytes and actions go out. The control loop in
//! `transport/tcp` drives it, and its tests drive it without any socket.

pub mod channel;
pub mod handshake;
pub mod machine;
pub mod message;
pub mod order;
