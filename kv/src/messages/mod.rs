//! Messages in notifications, for the libraries above the engine: their bytes (`codec`), the parts of long ones (`parts`),
//! and those that wait for room (`outgoing`). Handoffs and the pool have their own messages, on channels of their own.

mod codec;
mod outgoing;
mod parts;

pub use codec::{malformed, Reader, Writer};
pub use outgoing::{MessagePart, Outgoing};
pub use parts::{part, parts, Joiner};
