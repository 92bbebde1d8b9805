//! Cuts long messages into notifications, and joins them again.

use ferry::status::{Error, Result};
use ferry::Status;

use super::malformed;

/// Bits of a part's first byte.
const MORE_FOLLOW: u8 = 1;
const CONTINUES: u8 = 2;

/// Cuts a message into notifications of at most `bytes_max` bytes. The first byte of each says whether more follow, and
/// whether the part continues a message.
pub fn parts(message: &[u8], bytes_max: usize) -> Vec<Vec<u8>> {
    let count = message.len().div_ceil(bytes_max.saturating_sub(1).max(1));
    (0..count).map(|number| part(message, number, bytes_max).0).collect()
}

/// Returns one of the notifications of `parts`, from number 0 on, and whether it is the last one.
pub fn part(message: &[u8], number: usize, bytes_max: usize) -> (Vec<u8>, bool) {
    let size = bytes_max.saturating_sub(1).max(1);
    let rest = message.get(number.saturating_mul(size)..).unwrap_or_default();
    let (chunk, rest) = rest.split_at(size.min(rest.len()));
    let head = if number == 0 { 0 } else { CONTINUES } | if rest.is_empty() { 0 } else { MORE_FOLLOW };
    ([&[head], chunk].concat(), rest.is_empty())
}

/// Joins the parts of one peer's messages. A cache that was closed and opened anew meets the rest of a message that its
/// predecessor began to hear, or a message behind the half of one that the peer's predecessor began to say.
#[derive(Clone, Debug, Default)]
pub struct Joiner(Option<Vec<u8>>);

impl Joiner {
    /// Returns the message that this part ends. A rest without a beginning is passed over, and so is a beginning without
    /// its rest. INVALID for a part that is none, LIMIT for a message of more than
    /// `bytes_max` bytes.
    pub fn add(&mut self, part: &[u8], bytes_max: usize) -> Result<Option<Vec<u8>>> {
        let (head, bytes) = match part {
            [head @ 0..=3, bytes @ ..] => (*head, bytes),
            _ => return Err(malformed("a part of it has no head")),
        };
        let joined = match self.0.take() {
            Some(joined) if head & CONTINUES != 0 => joined,
            None if head & CONTINUES != 0 => return Ok(None),
            _ => Vec::new(),
        };
        if bytes.len() > bytes_max - joined.len().min(bytes_max) {
            let text = format!("a message of the peer has more than {bytes_max} bytes");
            return Err(Error::new(Status::Limit, text));
        }
        let joined = self.0.insert(joined);
        joined.extend_from_slice(bytes);
        Ok(if head & MORE_FOLLOW == 0 { self.0.take() } else { None })
    }
}
